package cni_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"hairpin/lab"
)

// TestCommands runs the tests that need one node with an agent that is ready and stays.
func TestCommands(t *testing.T) { engines(t, commands) }

func commands(t *testing.T, engine string) {
	w, n := singleWith(t, engine)
	for _, c := range []struct {
		name string
		test func(*testing.T, *world, *lab.Node)
	}{
		{"result", result}, {"wiring", wiring}, {"versions", versions}, {"again", again}, {"del", del}, {"gc", gc},
		{"check", check}, {"bad input", badInput}, {"plugin is killed", pluginKilled}, {"thirty at once", thirtyAtOnce},
		{"through the runtime's way", runtimeCalls},
	} {
		t.Run(c.name, func(t *testing.T) {
			mine := *w
			mine.t = t
			c.test(t, &mine, n)
			consistent(t, n) // each test cleans up
		})
	}
}

func result(t *testing.T, w *world, n *lab.Node) {
	s := w.sandbox(n, "web")
	r := s.call("ADD").result(t)
	defer s.del()
	if r.CNIVersion != "1.1.0" || len(r.Interfaces) != 2 || len(r.IPs) != 2 || len(r.Routes) != 2 {
		t.Fatalf("result %+v", r)
	}
	in, host := r.Interfaces[1], r.Interfaces[0]
	if in.Name != "eth0" || in.Sandbox != s.env["CNI_NETNS"] || in.Mac != "0a:58:0a:f4:01:03" || in.Mtu != 1400 {
		t.Errorf("interface in the sandbox %+v", in)
	}
	if host.Sandbox != "" || host.Mtu != 1400 || len(host.Mac) != 17 {
		t.Errorf("interface of the host %+v", host)
	}
	for i, want := range []struct{ ip, gateway, all string }{
		{"10.244.1.3/24", "10.244.1.1", "0.0.0.0/0"}, {"fd00:10:244:1::3/64", "fd00:10:244:1::1", "::/0"},
	} {
		ip, route := r.IPs[i], r.Routes[i]
		if ip.Address.String() != want.ip || ip.Gateway.String() != want.gateway || *ip.Interface != 1 {
			t.Errorf("address %v, want %v", ip, want)
		}
		if route.Dst.String() != want.all || route.GW.String() != want.gateway {
			t.Errorf("route %v, want %v", route, want)
		}
	}
	ids := row(t, n, host.Name).ExternalIDs
	for key, value := range map[string]string{
		"iface-id": "default_web", "iface-id-ver": "10.244.1.3,fd00:10:244:1::3", "attached_mac": in.Mac,
		"sandbox":      s.id,
		"ip_addresses": "10.244.1.3/24,fd00:10:244:1::3/64", "k8s.ovn.org/pod-namespace": "default",
		"k8s.ovn.org/pod-name": "web",
		"k8s.ovn.org/pod-uid":  "uid-web", "k8s.ovn.org/pod-ifname": "eth0", "k8s.ovn.org/network": "hairpin",
	} {
		if ids[key] != value {
			t.Errorf("external_ids:%s=%q, want %q", key, ids[key], value)
		}
	}
}

// wiring checks both ends of a veth pair with the node's tools.
func wiring(t *testing.T, w *world, n *lab.Node) {
	s := w.sandbox(n, "web")
	s.add()
	defer s.del()
	in := "ip netns exec " + s.netns() + " "
	mtu := sh(t, n, "cat /sys/class/net/"+s.host+"/mtu; ip -n "+s.netns()+
		" -o link show eth0 | grep -o 'mtu [0-9]*'; ovs-vsctl get Interface "+s.host+" mtu")
	if mtu != "1400\nmtu 1400\n1400" {
		t.Errorf("MTU of both ends, and as Open vSwitch sees it: %q", mtu)
	}
	if link := sh(t, n, "ip -d link show "+s.host); !strings.Contains(link, "NOARP") ||
		!strings.Contains(link, "alias hairpin: default/web") {
		t.Errorf("the host's end: %s", link)
	}
	if v := sh(t, n, "cat /proc/sys/net/ipv6/conf/"+s.host+"/disable_ipv6"); v != "1" {
		t.Errorf("disable_ipv6 of the host's end: %s", v)
	}
	if a := sh(t, n, "ip -o addr show "+s.host); a != "" {
		t.Errorf("the host's end has addresses: %s", a)
	}
	for _, cmd := range []string{"ethtool -k " + s.host, in + "ethtool -k eth0"} {
		if out := sh(t, n, cmd); !strings.Contains(out, "tx-checksumming: off") {
			t.Errorf("%s: %s", cmd, out)
		}
	}
	if addr := sh(t, n, "ip -n "+s.netns()+" -o -6 addr show dev eth0 scope global"); strings.Contains(addr,
		"tentative") || !strings.Contains(addr, "nodad") {
		t.Errorf("IPv6 address in the sandbox: %s", addr)
	}
}

// versions calls the plugin in every version of the specification.
func versions(t *testing.T, w *world, n *lab.Node) {
	v := w.plugin(n, "VERSION", map[string]any{"cniVersion": "1.1.0", "name": "x"}, nil)
	must(t, v.err)
	var next struct{ SupportedVersions []string }
	must(t, json.Unmarshal([]byte(v.stdout), &next))
	if !slices.Equal(next.SupportedVersions, []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}) {
		t.Errorf("VERSION: %s", v.stdout)
	}
	for _, version := range next.SupportedVersions {
		s := w.sandbox(n, "old")
		s.conf["cniVersion"] = version
		o := s.call("ADD")
		must(t, o.err)
		var r struct {
			CNIVersion string
			IPs        []struct{ Version, Address, Gateway string }
			Routes     []struct{ Dst, GW string }
		}
		must(t, json.Unmarshal([]byte(o.stdout), &r))
		family := "4" // results before 1.0.0 have it
		if version >= "1.0.0" {
			family = ""
		}
		if r.CNIVersion != version || len(r.IPs) != 2 || len(r.Routes) != 2 || r.IPs[0].Version != family ||
			r.IPs[0].Gateway != "10.244.1.1" {
			t.Errorf("%s: %s", version, o.stdout)
		}
		if version >= "0.4.0" {
			must(t, s.call("CHECK").err)
		} else {
			s.call("CHECK").refused(t, types.ErrIncompatibleCNIVersion, "CHECK")
		}
		if version < "1.1.0" {
			w.plugin(n, "STATUS", s.conf, nil).refused(t, types.ErrIncompatibleCNIVersion, "STATUS")
			w.plugin(n, "GC", s.conf, nil).refused(t, types.ErrIncompatibleCNIVersion, "GC")
		}
		s.del()
	}
	s := w.sandbox(n, "new")
	s.conf["cniVersion"] = "1.2.0"
	s.call("ADD").refused(t, types.ErrIncompatibleCNIVersion, "incompatible")
}

// again runs ADD for the same sandbox twice, and then for a second interface in it.
func again(t *testing.T, w *world, n *lab.Node) {
	s := w.sandbox(n, "web")
	first := s.call("ADD")
	second := s.call("ADD")
	must(t, second.err)
	if first.stdout != second.stdout {
		t.Errorf("first %s, then %s", first.stdout, second.stdout)
	}
	other := *s
	other.env = maps.Clone(s.env)
	other.env["CNI_IFNAME"] = "net1"
	other.call("ADD").refused(t, types.ErrInvalidEnvironmentVariables, "net1", "eth0", "Pod/default/web")
	serve(t, s.path())
	s.reachable()
	// The sandbox's end was removed: it is made again, and works.
	sh(t, n, "ip -n "+s.netns()+" link del eth0")
	s.add()
	must(t, s.call("CHECK").err)
	s.reachable()
	// The port was removed, and is restored without a request.
	sh(t, n, "ovs-vsctl del-port "+w.bridge()+" "+s.host)
	s.add()
	must(t, s.call("CHECK").err)
	s.reachable()
	s.del()
}

func del(t *testing.T, w *world, n *lab.Node) {
	s := w.sandbox(n, "web")
	s.add()
	s.del()
	s.del()
	if links(t, n) != nil || row(t, n, s.host) != nil {
		t.Error("DEL left something")
	}
	w.sandbox(n, "never-added").del()
	gone := w.sandbox(n, "gone")
	gone.add()
	gone.vanish()
	gone.del()
	if row(t, n, gone.host) != nil {
		t.Error("DEL left the row of a sandbox that is gone")
	}
	nowhere := w.sandbox(n, "nowhere")
	nowhere.add()
	nowhere.vanish()
	delete(nowhere.env, "CNI_NETNS") // as the specification allows
	delete(nowhere.env, "CNI_ARGS")
	nowhere.del()
}

func gc(t *testing.T, w *world, n *lab.Node) {
	keep, drop, other := w.sandbox(n, "keep"), w.sandbox(n, "drop"), w.sandbox(n, "other")
	other.conf["name"] = "another-network"
	for _, s := range []*sandbox{keep, drop, other} {
		s.add()
	}
	conf := netconf(n)
	w.plugin(n, "GC", conf, nil).refused(t, types.ErrInvalidNetworkConfig, "cni.dev/valid-attachments")
	consistent(t, n, keep, drop, other)
	conf["cni.dev/valid-attachments"] = []map[string]string{{"containerID": keep.id, "ifname": "eth0"},
		{"containerID": drop.id, "ifname": "net1"}}
	must(t, w.plugin(n, "GC", conf, nil).err)
	consistent(t, n, keep, other)
	must(t, keep.call("CHECK").err)
	drop.del()
	conf["cni.dev/valid-attachments"] = []any{}
	must(t, w.plugin(n, "GC", conf, nil).err)
	consistent(t, n, other)
	other.del()
}

// check damages one thing after the other.
func check(t *testing.T, w *world, n *lab.Node) {
	for _, c := range []struct{ name, do, says string }{
		{"IPv4 address", "ip -n NS addr del 10.244.1.0/24 dev eth0", "lost the address 10.244.1."},
		{"IPv6 address", "ip -n NS -6 addr flush dev eth0 scope global", "lost the address fd00:10:244:1::"},
		{"IPv4 route", "ip -n NS route del default", "lost the default route via 10.244.1.1"},
		{"IPv6 route", "ip -n NS -6 route del default", "lost the default route via fd00:10:244:1::1"},
		{"other route", "ip -n NS route replace default via 10.244.1.2", "lost the default route via 10.244.1.1"},
		{"veth", "ip link del HOST", "HOST"},
		{"sandbox's end down", "ip -n NS link set eth0 down", "eth0 in the sandbox is down"},
		{"host's end down", "ip link set HOST down", "HOST is down"},
		{"MTU", "ip -n NS link set eth0 mtu 1300", "MTU 1300"},
		{"MAC", "ip -n NS link set eth0 address 02:00:00:00:00:01", "MAC 02:00:00:00:00:01"},
		{"iface-id", "ovs-vsctl set Interface HOST external_ids:iface-id=other", "external_ids:iface-id"},
	} {
		s := w.sandbox(n, "web")
		s.add()
		must(t, s.call("CHECK").err)
		do := strings.NewReplacer("NS", s.netns(), "HOST", s.host, "10.244.1.0/24", s.ips[0].String()+
			"/24").Replace(c.do)
		sh(t, n, do)
		// Open vSwitch's own tools return once it has done it
		eventually(t, 10*time.Second, c.name, func() error {
			if c.says == "HOST is down" { // the agent may have set it up by now
				sh(t, n, do)
			}
			o := s.call("CHECK")
			if o.code() == 100 && strings.Contains(o.err.Error(), strings.ReplaceAll(c.says, "HOST", s.host)) {
				return nil
			}
			return fmt.Errorf("CHECK says: %v", o.err)
		})
		s.del()
	}
	s := w.sandbox(n, "web")
	s.call("CHECK").refused(t, 100, "no port")
	s.add()
	good := s.conf["prevResult"].(json.RawMessage)
	s.conf["prevResult"] = json.RawMessage(bytes.ReplaceAll(good, []byte(s.ips[0].String()+"/24"),
		[]byte("10.244.1.99/24")))
	s.call("CHECK").refused(t, 100, "10.244.1.99/24", s.ips[0].String())
	delete(s.conf, "prevResult")
	s.call("CHECK").refused(t, types.ErrInvalidNetworkConfig, "prevResult")
	s.vanish()
	s.call("CHECK").refused(t, types.ErrInvalidEnvironmentVariables, "CNI_NETNS")
	s.del()
}

func badInput(t *testing.T, w *world, n *lab.Node) {
	for _, c := range []struct {
		name  string
		set   map[string]string
		code  uint
		words []string
	}{
		{"no pod", map[string]string{"CNI_ARGS": "IgnoreUnknown=1"}, 4, []string{"CNI_ARGS", "K8S_POD_NAME"}},
		{"no name", map[string]string{"CNI_ARGS": "K8S_POD_NAMESPACE=default"}, 4,
			[]string{"CNI_ARGS", "K8S_POD_NAME"}},
		{"no netns", map[string]string{"CNI_NETNS": "/run/netns/not-there"}, 4, []string{"CNI_NETNS", "not-there"}},
		{"no namespace file", map[string]string{"CNI_NETNS": "/etc/hostname"}, 4,
			[]string{"CNI_NETNS", "/etc/hostname"}},
		{"own netns", map[string]string{"CNI_NETNS": "/proc/1/ns/net"}, types.ErrInvalidNetNS, []string{"node's own"}},
		{"long name", map[string]string{"CNI_IFNAME": "a-name-of-more-than-15"}, 4, []string{"interface name"}},
		{"no sandbox", map[string]string{"CNI_CONTAINERID": ""}, 4, []string{"CNI_CONTAINERID"}},
	} {
		s := w.sandbox(n, "web")
		maps.Copy(s.env, c.set)
		o := s.call("ADD")
		t.Logf("%s: code %d: %v", c.name, o.code(), o.err)
		o.refused(t, c.code, c.words...)
	}
	s := w.sandbox(n, "web")
	sh(t, n, "ip -n "+s.netns()+" link add eth0 type veth peer name x")
	s.call("ADD").refused(t, types.ErrInternal, "eth0", "file exists")
	s.del()
	sh(t, n, "ip -n "+s.netns()+" link show x") // it is not Hairpin's
}

// pluginKilled kills the plugin during an ADD, as a runtime does after its timeout. The agent
// cleans up, and the next ADD of the pod works.
func pluginKilled(t *testing.T, w *world, n *lab.Node) {
	freeze(t, n, lab.Controller)
	s := w.sandbox(n, "web")
	ctx, killed := context.WithCancel(t.Context())
	ended := make(chan outcome, 1)
	go func() { ended <- s.callUntil(ctx, "ADD") }()
	eventually(t, 20*time.Second, "the port is there", func() error { return openedPort(t, n, s) })
	killed()
	if o := <-ended; o.err == nil {
		t.Fatal("ADD returned although ovn-controller does nothing")
	}
	consistent(t, n)
	next := w.sandbox(n, "web")
	serve(t, next.path())
	thaw(t, n, lab.Controller)
	next.add()
	next.reachable()
	next.del()
}

// thirtyAtOnce adds and removes thirty pods at the same time.
func thirtyAtOnce(t *testing.T, w *world, n *lab.Node) {
	pods := make([]*sandbox, 30)
	for i := range pods {
		pods[i] = w.sandbox(n, fmt.Sprintf("many-%d", i))
		serve(t, pods[i].path())
	}
	all := func(command string) time.Duration {
		begin := time.Now()
		var wg sync.WaitGroup
		for _, s := range pods {
			wg.Go(func() {
				if o := s.call(command); o.err != nil {
					t.Errorf("%s of %s: %v", command, s.pod, o.err)
				}
			})
		}
		wg.Wait()
		return time.Since(begin)
	}
	took := all("ADD")
	seen := map[netip.Addr]string{}
	for _, s := range pods {
		for _, ip := range s.ips {
			if seen[ip] != "" {
				t.Errorf("%s and %s have %s", seen[ip], s.pod, ip)
			}
			seen[ip] = s.pod
		}
		s.reachable()
	}
	if len(seen) != 2*len(pods) {
		t.Errorf("%d addresses of %d pods", len(seen), len(pods))
	}
	consistent(t, n, pods...)
	t.Logf("30 ADDs at once: %v, CHECKs: %v, DELs: %v", took, all("CHECK"), all("DEL"))
}

// runtimeCalls runs the plugin in the node, as everything else that a container runtime starts.
func runtimeCalls(t *testing.T, w *world, n *lab.Node) {
	p, err := n.AddPod(t.Context(), lab.PodConfig{Namespace: "default", Name: "web", UID: "1"})
	must(t, err)
	serve(t, p.Netns())
	for _, ip := range p.IPs() {
		must(t, get(n.Netns(), "udp", ip, port))
	}
	must(t, p.Check(t.Context()))
	for range 2 { // DEL after DEL is no error
		must(t, p.Delete(t.Context()))
	}
}
