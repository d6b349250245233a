package agent_test

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/lab/probe"
)

// secondWire adds to node-b and node-c a link to a network that node-a does not have. A server is
// on it, and behind the server is another network.
func secondWire(t *testing.T, l *lab.Lab) {
	t.Helper()
	p := netip.MustParsePrefix
	for name, octet := range map[string]int{"node-b": 4, "node-c": 5, "client": 100} {
		err := l.Host(name).Join(t.Context(), "wire2", "eth1", p(fmt.Sprintf("10.10.10.%d/24", octet)),
			p(fmt.Sprintf("fd10::%x/64", octet)))
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, a := range []string{"192.0.2.9/32", "2001:db8:9::9/128"} {
		if err := l.Host("client").AddAddress("lo", p(a)); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range []string{"node-b", "node-c"} {
		sh(t, l.Node(n),
			"ip route add 192.0.2.0/24 via 10.10.10.100; ip route add 2001:db8:9::/64 via fd10::64; sysctl -qw "+
				"net.ipv4.conf.eth1.rp_filter=1")
	}
}

// viewer reads which sources a server sees.
type viewer struct {
	t        *testing.T
	pods     map[string]lab.Place
	patience time.Duration // the first packet to a neighbor may be lost
	port     uint16        // of the last UDP request
}

func newViewer(t *testing.T, l *lab.Lab) *viewer {
	v := &viewer{t: t, pods: map[string]lab.Place{}, patience: time.Duration(*slow) * 3 * time.Second, port: 10000}
	for _, n := range l.Nodes() {
		waitWell(t, n)
		for _, p := range n.Pods() {
			v.pods[p.Name()] = p
		}
	}
	return v
}

// saw returns the source that a server saw, or an error's text. Each UDP request has a port that no
// other one had: conntrack may still know the connection of a port that the kernel chooses again.
func (v *viewer) saw(from, protocol, to string) string {
	if protocol == "tcp" {
		return v.sawAt(from, protocol, to, 0)
	}
	v.port++
	return v.sawAt(from, protocol, to, v.port)
}

// sawAt is saw with a source port.
func (v *viewer) sawAt(from, protocol, to string, port uint16) string {
	a := lab.Get(v.t.Context(), v.pods[from],
		probe.Request{Protocol: protocol, To: netip.MustParseAddrPort(to), Port: port, Timeout: v.patience})
	if a.Error != "" {
		return a.Error
	}
	return a.Saw.Addr().String()
}

// until waits until servers see the wanted source of a pod, and then tests UDP once.
func (v *viewer) until(from string, to []string, want ...string) {
	v.t.Helper()
	for i, x := range to {
		took := eventually(v.t, 20*time.Second, fmt.Sprintf("%s from %s is seen as %s", x, from, want[i]),
			func() (bool, string) {
				got := v.saw(from, "tcp", x)
				return got == want[i], got
			})
		v.t.Logf("%s from %s is seen as %s after %v", x, from, want[i], took.Round(time.Millisecond))
	}
	v.see("udp too", from, to, want...)
}

func (v *viewer) see(what, from string, to []string, want ...string) {
	v.t.Helper()
	for i, x := range to {
		for _, protocol := range []string{"tcp", "udp"} {
			if got := v.saw(from, protocol, x); got != want[i] {
				v.t.Errorf("%s: %s %s from %s is seen as %s, not %s", what, protocol, x, from, got, want[i])
			}
		}
	}
}

// TestEgressIPOtherNetworks tests addresses of networks other than the gateway bridge's, in every
// mode, or in that of -egress.mode, with each engine.
func TestEgressIPOtherNetworks(t *testing.T) {
	modes := []string{cluster.ModeShared, cluster.ModeLocal, cluster.ModeDetached}
	if *egressMode != "" && *egressMode != "all" {
		modes = []string{*egressMode}
	}
	for _, mode := range modes {
		for _, engine := range []string{cluster.EngineOVN, cluster.EngineOpenFlow} {
			t.Run(mode+"-"+engine, func(t *testing.T) { testOtherNetworks(t, mode, engine) })
		}
	}
}

func testOtherNetworks(t *testing.T, mode, engine string) {
	t.Parallel()
	l := startDemoIn(t, mode, "[default]", "service-engine = "+engine)
	secondWire(t, l)
	v := newViewer(t, l)
	b := l.Node("node-b")
	server, beyond := []string{"10.10.10.100:9000", "[fd10::64]:9000"},
		[]string{"192.0.2.9:9000", "[2001:db8:9::9]:9000"}
	client, hosts := []string{"172.18.0.100:9000", "[fc00:f853:ccd::64]:9000"},
		[]string{"172.18.0.4:8081", "[fc00:f853:ccd::4]:8081"}
	nodeA, nodeB := []string{"172.18.0.3", "fc00:f853:ccd::3"}, []string{"172.18.0.4", "fc00:f853:ccd::4"}
	egress := []string{"10.10.10.33", "fd10::33"}
	on := func(selector string, items ...string) {
		t.Helper()
		put(t, l, "egressip.yaml", carriedAs([]string{"10.10.10.33", "10.10.10.44", "fd10::33", "fd10::44"}, selector,
			items...))
	}

	neighborsLearn(t, l, on)
	podsSend(t, l, v, on)

	on("target: podlocal", "10.10.10.33 node-b", "fd10::33 node-b")
	v.until("pod-a1", server, egress...)
	v.see("by a route of the link", "pod-a1", beyond, egress...)
	v.see("not selected", "pod-a2", client, nodeA...)
	v.see("to a node", "pod-a1", hosts, nodeA...)
	v.see("to a pod", "pod-a1", []string{"10.244.2.3:8080", "[fd00:10:244:2::3]:8080"}, "10.244.1.3",
		"fd00:10:244:1::3")
	v.see("to a Service", "pod-a1", []string{"10.96.1.2:80"}, "10.244.1.3")

	on("app: web", "10.10.10.33 node-b", "fd10::33 node-b")
	v.until("pod-b1", server, egress...)
	v.see("where the address is, beyond", "pod-b1", beyond, egress...)
	v.see("from where the address is, to a node", "pod-b1", []string{"172.18.0.3:8081", "[fc00:f853:ccd::3]:8081"},
		nodeB...)
	if engine == cluster.EngineOVN { // docs/user/bgp.md: the pod does not answer; the rest is the same
		put(t, l, "egressip.yaml", "# nothing\n")
		v.until("pod-b1", client, nodeB...)
		return
	}
	reachesPod(t, l)

	// By hand.
	for what, script := range map[string]string{
		"rule":    "ip rule del priority 6000 from 10.244.2.3; ip -6 rule del priority 6000 from fd00:10:244:2::3",
		"address": "ip addr del 10.10.10.33/32 dev eth1; ip addr del fd10::33/128 dev eth1",
		"routes":  "ip route flush table $(ip rule | sed -n 's/^6000:.*lookup //p' | head -1)",
		"nft":     "nft delete table inet hairpin",
	} {
		sh(t, b, script)
		waitWell(t, b)
		v.until("pod-b1", server, egress...)
		v.see("healed: "+what, "pod-a1", server, egress...)
	}

	// The link is removed: nothing leaves. It comes again, as another one.
	sh(t, b, "ip link set eth1 down")
	v.patience = 500 * time.Millisecond
	for i := range 2 {
		for _, from := range []string{"pod-a1", "pod-b1"} {
			for _, x := range slices.Concat(server, client) {
				if got := v.saw(from, "udp", x); !strings.Contains(got, "timeout") && !slices.Contains(egress, got) {
					t.Errorf("without the link (%d), %s from %s is seen as %s", i, x, from, got)
				}
			}
		}
	}
	v.patience = 3 * time.Second
	sh(t, b,
		"ip link set eth1 up; ip addr replace fd10::4/64 dev eth1 nodad; ip route replace 192.0.2.0/24 via 10.10.10.100")
	v.until("pod-a1", server, egress...)
	v.see("the link is back", "pod-b1", server, egress...)

	// Two nodes: both addresses are used.
	on("app: web", "10.10.10.33 node-b", "fd10::33 node-b", "10.10.10.44 node-c", "fd10::44 node-c")
	for _, from := range []string{"pod-a1", "pod-b1"} {
		for i, x := range server {
			seen := map[string]bool{}
			want := [][]string{{"10.10.10.33", "10.10.10.44"}, {"fd10::33", "fd10::44"}}[i]
			eventually(t, 30*time.Second, from+" is seen as both", func() (bool, string) {
				seen[v.saw(from, "tcp", x)] = true
				return seen[want[0]] && seen[want[1]], fmt.Sprint(seen)
			})
		}
	}

	put(t, l, "egressip.yaml", "# nothing\n")
	v.until("pod-a1", client, nodeA...)

	// Another address in place of the one.
	on("app: web", "10.10.10.33 node-b", "fd10::33 node-b")
	v.until("pod-a1", server, egress...)
	on("app: web", "10.10.10.44 node-b", "fd10::44 node-b")
	v.until("pod-a1", server, "10.10.10.44", "fd10::44")
	v.until("pod-b1", server, "10.10.10.44", "fd10::44")
	eventually(t, 20*time.Second, "the old address is gone", func() (bool, string) {
		has := sh(t, b, "ip -o address show dev eth1; nft list table inet hairpin")
		return !strings.Contains(has, "10.10.10.33") && !strings.Contains(has, "fd10::33"), has
	})

	const port = 9999
	if got := v.sawAt("pod-b1", "udp", server[0], port); got != "10.10.10.44" {
		t.Errorf("a client that keeps sending is seen as %s", got)
	}
	put(t, l, "egressip.yaml", "# nothing\n")
	v.until("pod-a1", client, nodeA...)
	if mode == cluster.ModeLocal { // its packets leave by the same link
		eventually(t, 20*time.Second, "a client that keeps sending has no egress address", func() (bool, string) {
			got := v.sawAt("pod-b1", "udp", server[0], port)
			return got == "10.10.10.4", got
		})
	}
	eventually(t, 20*time.Second, "nothing is left behind", func() (bool, string) {
		left := sh(t, b,
			"set +e; ip rule | grep -e 5999 -e 6000; ip addr show dev eth1 | grep 10.10.10.33; ip route show table "+
				"all proto 85 | grep eth1; true")
		return left == "", left
	})
}

// reachesPod: a machine with a route to pods by a node gets replies of a pod with an egress address
// on another link of the node.
func reachesPod(t *testing.T, l *lab.Lab) {
	t.Helper()
	client := l.Host("client")
	for to, route := range map[string]string{"10.244.2.3": "10.244.2.0/24 via 172.18.0.4",
		"fd00:10:244:2::3": "fd00:10:244:2::/64 via fc00:f853:ccd::4"} {
		_, err := client.Exec(t.Context(), "sh", "-c", "ip route replace "+route)
		noError(t, err)
		pod := netip.AddrPortFrom(netip.MustParseAddr(to), 8080)
		eventually(t, 20*time.Second, fmt.Sprintf("pod-b1 answers at %s", pod), func() (bool, string) {
			a := lab.Get(t.Context(), client, probe.Request{Protocol: "tcp", To: pod, Timeout: 3 * time.Second})
			return a.Error == "" && a.Name == "pod-b1", a.Name + a.Error
		})
		_, err = client.Exec(t.Context(), "sh", "-c", "ip route del "+route)
		noError(t, err)
	}
}

// neighborsLearn: a machine that accepts unsolicited announcements knows the node of an address
// within a second of its assignment or move. No pod sends meanwhile.
func neighborsLearn(t *testing.T, l *lab.Lab, on func(selector string, items ...string)) {
	client := l.Host("client")
	_, err := client.Exec(t.Context(), "sysctl", "-qw", "net.ipv4.conf.eth1.arp_accept=1",
		"net.ipv6.conf.eth1.forwarding=1",
		"net.ipv6.conf.eth1.accept_untracked_na=1")
	noError(t, err)
	for _, name := range []string{"node-b", "node-c", "node-b"} {
		n := l.Node(name)
		mac := strings.TrimSpace(sh(t, n, "cat /sys/class/net/eth1/address"))
		on("target: podlocal", "10.10.10.33 "+name, "fd10::33 "+name)
		eventually(t, 20*time.Second, name+" has the addresses", func() (bool, string) {
			has := sh(t, n, "ip -o address show dev eth1")
			return strings.Contains(has, "10.10.10.33/") && strings.Contains(has, "fd10::33/"), has
		})
		took := eventually(t, slack*time.Second, "neighbors know "+name, func() (bool, string) {
			has, err := client.Exec(t.Context(), "sh", "-c",
				"ip neighbor show to 10.10.10.33 dev eth1; ip neighbor show to fd10::33 dev eth1")
			return err == nil && strings.Count(has, "lladdr "+mac) == 2, has
		})
		t.Logf("neighbors know %s %v after it has the addresses", name, took.Round(time.Millisecond))
	}
	put(t, l, "egressip.yaml", "# nothing\n")
}

// podsSend: pods of the node that carries the addresses, and of another, send while the addresses
// come and go, by existing flows and by new ones. No address of the cluster's own networks is seen
// outside.
func podsSend(t *testing.T, l *lab.Lab, v *viewer, on func(selector string, items ...string)) {
	rec := &recorder{step: "addresses come and go"}
	stop := make(chan struct{})
	listening := rec.listen(t, l.Host("client"), nil, stop)
	var senders sync.WaitGroup
	server := []string{"10.10.10.100:9000", "[fd10::64]:9000"}
	var sent atomic.Int64
	for _, name := range []string{"pod-a1", "pod-b1"} {
		for i, to := range server {
			senders.Go(func() {
				var old net.Conn
				for turn := 0; ; turn++ {
					select {
					case <-stop:
						return
					case <-time.After(5 * time.Millisecond):
					}
					err := lab.Do(v.pods[name], func() error {
						fresh, err := net.Dial("udp", to)
						if err != nil {
							return err
						}
						if old == nil {
							old = fresh
						} else {
							defer fresh.Close()
						}
						for _, c := range []net.Conn{old, fresh} {
							if _, err := c.Write([]byte("get")); err == nil { // an earlier ICMP error is no failure
								sent.Add(1)
							}
						}
						return nil
					})
					if err != nil {
						t.Errorf("%s: %v", []string{"IPv4", "IPv6"}[i], err)
						return
					}
				}
			})
		}
	}
	end := sync.OnceFunc(func() { close(stop); senders.Wait(); <-listening })
	t.Cleanup(end)
	sends := func() {
		begin := sent.Load()
		eventually(t, 20*time.Second, "pods send", func() (bool, string) { return sent.Load() > begin+100, "" })
	}
	for range 3 {
		sends()
		on("app: web", "10.10.10.33 node-b", "fd10::33 node-b")
		v.until("pod-a1", server, "10.10.10.33", "fd10::33")
		v.until("pod-b1", server, "10.10.10.33", "fd10::33")
		sends()
		put(t, l, "egressip.yaml", "# nothing\n")
		eventually(t, 20*time.Second, "the addresses are gone", func() (bool, string) {
			has := sh(t, l.Node("node-b"), "ip -o address show dev eth1; ip rule; ip -6 rule")
			left := func(what string) bool { return strings.Contains(has, what) }
			return !slices.ContainsFunc([]string{"10.10.10.33", "fd10::33", "6000:"}, left), has
		})
	}
	sends()
	end()
	if len(rec.wrong) > 0 {
		some := rec.wrong[:min(len(rec.wrong), 20)]
		t.Errorf("%d packets from addresses of the cluster:\n%s", len(rec.wrong), strings.Join(some, "\n"))
	}
	t.Logf("%d datagrams were sent", sent.Load())
}
