//go:build e2e

package e2e

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/cluster/annotation"
	"hairpin/lab"
	"hairpin/lab/attack"
	"hairpin/lab/probe"
)

const podLink = "eth0"

const victimManifest = `
apiVersion: v1
kind: Pod
metadata: {name: victim, labels: {app: victim}}
spec:
  nodeName: node-a
  terminationGracePeriodSeconds: 0
  containers: [{name: server, image: pod:dev, imagePullPolicy: Never, args: [serve], resources: {requests: {cpu: 50m}}}]
`

// Port 6443 of the first address is the API server; the other address is unused.
const tenantManifest = `
apiVersion: v1
kind: Service
metadata: {name: taker}
spec:
  selector: {app: victim}
  externalIPs: [172.18.0.3, 203.0.113.66]
  ports: [{port: 6443, targetPort: 8080}]
`

// nobodyManifest isolates the victim.
const nobodyManifest = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: nobody}
spec: {podSelector: {matchLabels: {app: victim}}, policyTypes: [Ingress]}
`

// makeVictim creates a second pod on node-a, unless it exists.
func (e *e2e) makeVictim() {
	e.Helper()
	e.apply(victimManifest)
	e.until("the victim is ready", time.Minute, func() (bool, error) { return len(e.pods("victim")) == 1, nil })
}

// attacker is a pod on node-a that can send any frame, with the targets of its attacks.
type attacker struct {
	*e2e
	from, victim lab.Place // on the same node
	host         lab.Place // of that node
	mac, gateway cluster.MAC
	mp0          cluster.MAC  // the host's, on the pods' switch
	own, others  []netip.Addr // of the attacker and the victim, IPv4 first
}

// way sends a packet with a mark, and returns the part of it that arrives.
type way func(mark []byte) (seen []byte, err error)

// TestAttacks sends some of the attacks of `make demo` (docs/development/attacks.md) from pods that
// containerd and the chart's CNI plugin made.
func TestAttacks(t *testing.T) {
	e := open(t)
	e.makeVictim()
	a := &attacker{e2e: e, from: e.place(e.clientPod("node-a").Name), victim: e.place("victim"),
		host: e.Lab().Node("node-a").Host}
	a.own, a.others = e.podIPs(e.clientPod("node-a").Name), e.podIPs("victim")
	node, err := e.Client().CoreV1().Nodes().Get(e.Context(), "node-a", metav1.GetOptions{})
	e.check(err)
	router := netip.MustParsePrefix(node.Spec.PodCIDR).Addr().Next()
	a.gateway = cluster.MACFor(router)
	a.mac, err = attack.MAC(a.from, podLink)
	e.check(err)
	a.mp0, err = attack.MAC(a.host, claims.ManagementPort)
	e.check(err)
	a.forge()
	a.pretend(router)
	a.tunnel()
	a.tenant()
}

// forge sends with the victim's source address to a pod on another node and to the host, and with
// the attacker's own to the host's masquerade address.
func (a *attacker) forge() {
	server := a.clientPod("node-b").Name
	for i, masquerade := range []string{"169.254.169.2", "fd69::2"} {
		ear := a.listen(a.place(server))
		to := netip.AddrPortFrom(a.podIPs(server)[i], ear.Port)
		a.refused(fmt.Sprintf("%s with source %s", to, a.others[i]), ear, a.datagram(a.own[i], to, a.gateway),
			a.datagram(a.others[i], to, a.gateway))

		ear = a.listen(a.host)
		to = netip.AddrPortFrom(a.Lab().Node("node-a").Addresses()[i].Addr(), ear.Port)
		a.refused(fmt.Sprintf("%s with source %s", to, a.others[i]), ear, a.datagram(a.own[i], to, a.mp0),
			a.datagram(a.others[i], to, a.mp0))
		inside := netip.AddrPortFrom(netip.MustParseAddr(masquerade), ear.Port)
		a.refused(inside.String()+" by the router", ear, a.datagram(a.own[i], to, a.gateway),
			a.datagram(a.own[i], inside, a.gateway))
		a.refused(inside.String()+" past the router", ear, a.datagram(a.own[i], to, a.mp0),
			a.datagram(a.own[i], inside, a.mp0))
	}
}

// pretend announces to the victim addresses that the attacker does not have.
func (a *attacker) pretend(router netip.Addr) {
	ear, err := attack.Listen(a.victim, podLink)
	a.check(err)
	a.Cleanup(ear.Close)
	announce := func(frame []byte) way {
		return func([]byte) ([]byte, error) { return frame, attack.Send(a.from, podLink, frame) }
	}
	honest := announce(attack.NeighborAdvertisement(a.mac, a.own[1]))
	a.refused("ARP reply for the gateway", ear, honest, announce(attack.ARPReply(a.mac, router)))
	a.refused("ARP reply for the victim", ear, honest, announce(attack.ARPReply(a.mac, a.others[0])))
	a.refused("neighbour advertisement for the victim", ear, honest,
		announce(attack.NeighborAdvertisement(a.mac, a.others[1])))
}

// tunnel sends tunnel packets from node-b to node-a: node-b's host may send them, its pods may not.
func (a *attacker) tunnel() {
	pod := a.clientPod("node-b").Name
	ear := a.listen(a.victim)
	var ids []uint16
	var macs []cluster.MAC // of the cluster routers' ports on the transit switch
	for _, name := range []string{"node-b", "node-a"} {
		node, err := a.Client().CoreV1().Nodes().Get(a.Context(), name, metav1.GetOptions{})
		a.check(err)
		var id uint16
		_, err = fmt.Sscan(node.Annotations[annotation.NodeID], &id)
		a.check(err)
		ids, macs = append(ids, id), append(macs,
			cluster.MACFor(netip.AddrFrom4([4]byte{100, 88, byte((id + 1) >> 8), byte(id + 1)})))
	}
	src, dst := netip.AddrPortFrom(a.podIPs(pod)[0], 40000), netip.AddrPortFrom(a.others[0], ear.Port)
	end := netip.AddrPortFrom(a.Lab().Node("node-a").Addresses()[0].Addr(), attack.GenevePort)
	from := func(at lab.Place) way {
		return func(mark []byte) ([]byte, error) {
			packet := attack.Geneve(claims.TransitTunnelKey, ids[0], ids[1],
				attack.Frame(macs[0], macs[1], attack.UDP(src, dst, mark)))
			return mark, lab.Do(at, func() error {
				conn, err := net.Dial("udp", end.String())
				if err != nil {
					return err
				}
				defer conn.Close()
				_, err = conn.Write(packet)
				return err
			})
		}
	}
	a.refused("tunnel packet to "+end.String(), ear, from(a.Lab().Node("node-b").Host), from(a.place(pod)))
}

// tenant creates a Service at the API server's address, which gets an event and does not answer
// there, and a NetworkPolicy, which isolates the victim as long as it exists.
func (a *attacker) tenant() {
	a.apply(tenantManifest)
	ask := func(to string) probe.Answer {
		return lab.Get(a.Context(), a.from,
			probe.Request{Protocol: "tcp", To: netip.MustParseAddrPort(to), Timeout: time.Second})
	}
	answers := func(what string, want bool) {
		a.until(what, 20*time.Second, func() (bool, error) {
			return (ask("203.0.113.66:6443").Name == "victim") == want, nil
		})
	}
	answers("the Service answers at its other address", true)
	if got := ask("172.18.0.3:6443"); got.Name != "" {
		a.Errorf("%s answers at the API server's address", got.Name)
	}
	const event = "172.18.0.3:6443 is the API server's address: not served there"
	a.until("the Service has an event: "+event, time.Minute, func() (bool, error) {
		out, err := a.Kubectl(a.Context(), "", "get", "events", "--field-selector", "involvedObject.name=taker",
			"-o", "jsonpath={.items[*].message}")
		return strings.Contains(out, event), err
	})
	a.apply(nobodyManifest)
	answers("the NetworkPolicy isolates the victim", false)
	_, err := a.Kubectl(a.Context(), nobodyManifest, "delete", "-f", "-")
	a.check(err)
	answers("the Service answers without the NetworkPolicy", true)
}

// refused sends a legitimate packet, which must arrive, then a forged one, which must not, and a
// legitimate one again.
func (a *attacker) refused(what string, ear *attack.Ear, honest, forged way) {
	a.Helper()
	arrives := func(by way, times int) bool {
		mark := []byte(rand.Text())
		var seen []byte
		for range times {
			var err error
			seen, err = by(mark)
			a.check(err)
		}
		return ear.Hear(a.Context(), time.Second, func(b []byte) bool { return bytes.Contains(b, seen) }) != nil
	}
	works := func() (bool, error) { return arrives(honest, 1), nil }
	a.until(what+": the honest packet before", 20*time.Second, works)
	if arrives(forged, 3) { // the first may wait for a flow of Open vSwitch
		a.Errorf("%s: it arrived", what)
		return
	}
	a.until(what+": the honest packet after", 20*time.Second, works)
	a.Logf("%s: refused", what)
}

// datagram sends through the attacker's link.
func (a *attacker) datagram(src netip.Addr, to netip.AddrPort, next cluster.MAC) way {
	return func(mark []byte) ([]byte, error) {
		return mark, attack.Send(a.from, podLink,
			attack.Frame(a.mac, next, attack.UDP(netip.AddrPortFrom(src, 40000), to, mark)))
	}
}

func (a *attacker) listen(at lab.Place) *attack.Ear {
	a.Helper()
	ear, err := attack.ListenUDP(at, 0)
	a.check(err)
	a.Cleanup(ear.Close)
	return ear
}

// podIPs returns a pod's addresses, IPv4 first.
func (e *e2e) podIPs(pod string) (list []netip.Addr) {
	e.Helper()
	p, err := e.Client().CoreV1().Pods(metav1.NamespaceDefault).Get(e.Context(), pod, metav1.GetOptions{})
	e.check(err)
	for _, ip := range p.Status.PodIPs {
		list = append(list, netip.MustParseAddr(ip.IP))
	}
	return list
}
