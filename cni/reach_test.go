package cni_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"hairpin/lab"
)

// serviceManifest is a dual-stack Service on TCP and UDP port 80 with one endpoint in each family.
func serviceManifest(i int, endpoints []netip.Addr) string {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: v1
kind: Service
metadata: {name: svc-%[1]d, namespace: default}
spec:
  clusterIP: %[2]s
  clusterIPs: ["%[2]s", "%[3]s"]
  ipFamilyPolicy: RequireDualStack
  ipFamilies: [IPv4, IPv6]
  ports:
  - {name: tcp, protocol: TCP, port: 80, targetPort: 8080}
  - {name: udp, protocol: UDP, port: 80, targetPort: 8080}
`, i, clusterIPs(i)[0], clusterIPs(i)[1])
	for _, ip := range endpoints {
		family := "IPv6"
		if ip.Is4() {
			family = "IPv4"
		}
		fmt.Fprintf(&b, `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: svc-%[1]d-%[2]s
  namespace: default
  labels: {kubernetes.io/service-name: svc-%[1]d}
addressType: %[3]s
ports:
- {name: tcp, protocol: TCP, port: 8080}
- {name: udp, protocol: UDP, port: 8080}
endpoints:
- {addresses: ["%[4]s"], conditions: {ready: true}, nodeName: node-a}
`, i, strings.ToLower(family), family, ip)
	}
	return b.String()
}

func clusterIPs(i int) []netip.Addr {
	return []netip.Addr{netip.MustParseAddr(fmt.Sprintf("10.96.%d.%d", 2+i/256, i%256)),
		netip.MustParseAddr(fmt.Sprintf("fd00:10:96::2%03x", i))}
}

// path is a path of a first packet.
type path struct {
	name  string
	netns string // of the sender
	to    netip.Addr
	port  uint16
}

// TestReachableWhenAddReturns adds pods, and at once sends packets from and to each: from the host,
// from a pod of the node, from a pod on another node, through a ClusterIP, and in the other
// direction. No packet may be lost, not even the very first; another path is the first of each pod.
// A path that lacks a flow fails for half of the pods. A busy machine, on which a packet is late
// and retransmitted, fails for one or two.
func TestReachableWhenAddReturns(t *testing.T) { engines(t, reachableWhenAddReturns) }

func reachableWhenAddReturns(t *testing.T, engine string) {
	const pods = 30
	w := newWorld(t)
	w.engine = engine
	w.manifest("node-a.yaml", nodeManifest(1, usualCIDRs(1)))
	w.manifest("node-b.yaml", nodeManifest(2, usualCIDRs(2)))
	first := netip.MustParseAddr("10.244.1.3")
	first6 := netip.MustParseAddr("fd00:10:244:1::3")
	for i := range pods + 1 { // the pods will get the addresses in order
		w.manifest(fmt.Sprintf("svc-%d.yaml", i), serviceManifest(i, []netip.Addr{first, first6}))
		first, first6 = first.Next(), first6.Next()
	}
	a, b := w.node(1), w.node(2)
	w.start(a)
	w.start(b)
	w.ready(a)
	w.ready(b)
	peer, remote := w.sandbox(a, "peer"), w.sandbox(b, "remote")
	for _, s := range []*sandbox{peer, remote} {
		serve(t, s.path())
		s.add()
	}
	serve(t, a.Netns())
	serve(t, b.Netns())
	eventually(t, 20*time.Second, "the peers reach each other", func() error {
		return firstError(peer.path(), remote.ips, remote.path(), peer.ips, a.Netns(), remote.ips)
	})
	late := 0
	for i := 1; i <= pods; i++ {
		s := w.sandbox(a, fmt.Sprintf("pod-%d", i))
		serve(t, s.path())
		s.add()
		late += tryAll(t, s, i, pathsOf(s, i, a, b, peer, remote))
	}
	if late > pods/3 {
		t.Errorf("%d first packets were lost, or sent again", late)
	}
}

// pathsOf lists the paths from and to a pod that is the endpoint of Service i.
func pathsOf(s *sandbox, i int, a, b *lab.Node, peer, remote *sandbox) []path {
	var list []path
	for f := range s.ips {
		node := func(n *lab.Node) netip.Addr { return n.Addresses()[f].Addr() }
		list = append(list,
			path{"host → pod", a.Netns(), s.ips[f], port},
			path{"pod → other node's pod", s.path(), remote.ips[f], port},
			path{"other node's pod → pod", remote.path(), s.ips[f], port},
			path{"pod → pod", s.path(), peer.ips[f], port},
			path{"host → ClusterIP → pod", a.Netns(), clusterIPs(i)[f], 80},
			path{"pod → own host", s.path(), node(a), port},
			path{"other pod → pod", peer.path(), s.ips[f], port},
			path{"pod → ClusterIP → pod", s.path(), clusterIPs(0)[f], 80},
			path{"other node's host → ClusterIP → pod", b.Netns(), clusterIPs(i)[f], 80},
			path{"pod → other node's host", s.path(), node(b), port},
			path{"other pod → ClusterIP → pod", peer.path(), clusterIPs(i)[f], 80},
			path{"pod → ClusterIP → itself", s.path(), clusterIPs(i)[f], 80},
			path{"other node's pod → ClusterIP → pod", remote.path(), clusterIPs(i)[f], 80},
		)
	}
	return list
}

// tryAll tries all paths, that of the pod's number first, by TCP and UDP in turn. It returns the
// number of late packets.
func tryAll(t *testing.T, s *sandbox, number int, paths []path) (late int) {
	t.Helper()
	failed := 0
	for j := range paths {
		v := paths[(number+j)%len(paths)]
		protocol := []string{"tcp", "udp"}[(number/2+j)%2]
		err := get(v.netns, protocol, v.to, v.port)
		if err != nil && protocol == "udp" && get(v.netns, protocol, v.to, v.port) == nil {
			err = errors.Join(errSentAgain, err)
		}
		text := fmt.Sprintf("%s, its path number %d: %s, %s to %s: %v", s.pod, j, v.name, protocol, v.to, err)
		switch {
		case errors.Is(err, errSentAgain):
			t.Log(text)
			late++
		case err != nil:
			t.Error(text)
			if failed++; failed == 5 {
				t.FailNow()
			}
		}
	}
	return late
}

// firstError connects to servers. Its arguments are a network namespace, the addresses, and so on.
func firstError(args ...any) error {
	for i := 0; i < len(args); i += 2 {
		for _, ip := range args[i+1].([]netip.Addr) {
			for _, protocol := range []string{"tcp", "udp"} {
				if err := get(args[i].(string), protocol, ip, port); err != nil {
					return fmt.Errorf("%s to %s: %w", protocol, ip, err)
				}
			}
		}
	}
	return nil
}

// TestSandboxOfTheSamePod replaces a pod's sandbox repeatedly, as a kubelet does after a failure,
// with and without DEL of the old one. The new one has other addresses, and they work when ADD
// returns: OVN's state of the port must not be that of the old sandbox.
func TestSandboxOfTheSamePod(t *testing.T) { engines(t, sandboxOfTheSamePod) }

func sandboxOfTheSamePod(t *testing.T, engine string) {
	w, n := singleWith(t, engine)
	serve(t, n.Netns())
	var old *sandbox
	for i := range 10 {
		s := w.sandbox(n, "db-0")
		serve(t, s.path())
		if old != nil && i%2 == 0 {
			old.del()
		}
		s.add()
		if err := get(s.path(), "udp", n.Addresses()[0].Addr(), port); err != nil {
			t.Errorf("round %d: pod to host: %v", i, err)
		}
		s.reachable()
		if old != nil && old.ips[0] == s.ips[0] {
			t.Errorf("round %d: the address %s is used again at once", i, s.ips[0])
		}
		old = s
	}
	consistent(t, n, old)
}

// TestOVNIsBehind stops ovn-northd while a pod's sandbox is replaced. OVN knows the pod's port
// already, with the addresses of the old sandbox: ADD must not mistake their flows for its own.
func TestOVNIsBehind(t *testing.T) { engines(t, ovnIsBehind) }

func ovnIsBehind(t *testing.T, engine string) {
	w, n := singleWith(t, engine)
	old, s := w.sandbox(n, "db-0"), w.sandbox(n, "db-0")
	old.add()
	serve(t, s.path())
	freeze(t, n, lab.Northd)
	added := make(chan outcome, 1)
	go func() { added <- s.call("ADD") }()
	eventually(t, 20*time.Second, "Open vSwitch has the new interface", func() error { return openedPort(t, n, s) })
	select {
	case o := <-added:
		t.Fatalf("ADD returned (error: %v) although OVN does not know the addresses yet", o.err)
	case <-time.After(time.Second):
	}
	thaw(t, n, lab.Northd)
	must(t, (<-added).err)
	s.reachable()
	consistent(t, n, s)
}
