package kernel_test

import (
	"fmt"
	"net/netip"
	"os/exec"

	"strings"
	"sync"
	"testing"

	"hairpin/apply"
	"hairpin/apply/applytest"
	"hairpin/apply/inside"
	"hairpin/apply/inside/insidetest"
	"hairpin/apply/kernel"
	"hairpin/claims"
	"hairpin/datapath/datapathtest"
	"hairpin/datapath/host"
	"hairpin/datapath/host/hosttest"
)

// system is a network namespace with the links of a node, and what is wanted in it.
type system struct {
	ns string

	mu   sync.Mutex
	want host.State
}

func newSystem(t testing.TB) *system {
	s := &system{ns: insidetest.NetNS(t)}
	s.ip(t, "link add br-ex address 02:42:ac:12:00:03 type veth peer name wire",
		"link add ovn-k8s-mp0 type veth peer name pods",
		"link add eth0.10 type veth peer name other", "link set wire up", "link set pods up")
	s.ip(t, strings.Split(machines, "\n")...)
	return s
}

// machines returns addresses of the machine, which routes have as their source.
const machines = "addr add 172.18.0.3/32 dev lo\naddr add fc00:f853:ccd::3/128 dev lo nodad"

func (s *system) target(t testing.TB) *kernel.Target {
	t.Helper()
	target, err := kernel.New(kernel.Config{NetNS: s.ns, Links: []string{hosttest.Own, claims.ServiceHost},
		Prefixes: hosttest.Masquerade(), Wanted: s.wanted})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(target.Close)
	return target
}

func (s *system) wanted() host.State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.want
}

// wants sets the wanted State.
func (s *system) wants(want host.State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.want = want
}

// run runs a command in the namespace.
func (s *system) run(t testing.TB, args ...string) string {
	t.Helper()
	var out []byte
	err := inside.Do(s.ns, func() error {
		var err error
		out, err = exec.Command(args[0], args[1:]...).CombinedOutput()
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// batch runs a file of ip commands, and returns their error messages.
func (s *system) batch(file string) string {
	out, err := exec.Command("ip", "-batch", file).CombinedOutput()
	if err != nil {
		return fmt.Sprintf("ip -batch: %v: %s", err, out)
	}
	return string(out)
}

func (s *system) ip(t testing.TB, commands ...string) {
	t.Helper()
	for _, c := range commands {
		s.run(t, append([]string{"ip"}, strings.Fields(c)...)...)
	}
}

// hand runs commands as an administrator.
func (s *system) hand(commands ...string) func(testing.TB) {
	return func(t testing.TB) {
		t.Helper()
		s.run(t, "sh", "-ec", strings.Join(commands, "\n"))
	}
}

func example(t testing.TB) host.State {
	return datapathtest.Read[host.State](t, "../../datapath/host/testdata/node-a.json")
}

func TestLaws(t *testing.T) {
	s := newSystem(t)
	mac := "ip link set ovn-k8s-mp0 address 0a:58:00:00:00:09"
	applytest.Laws(t, applytest.Harness[host.State, host.Delta]{
		New: func(t testing.TB) apply.Target[host.State, host.Delta] { return s.target(t) },
		Diff: func(want, have host.State) host.Delta {
			s.wants(want)
			return host.Diff(want, have)
		},
		Print: host.Print, States: hosttest.States(), Rich: example(t),
		Foreign: func(t testing.TB) func() string {
			s.hand("ip addr add 198.51.100.2/24 dev br-ex", "ip -6 addr add 2001:db8::2/64 dev br-ex nodad",
				"ip route add 203.0.113.0/24 via 198.51.100.1",
				"ip route add 192.0.2.0/24 dev br-ex metric 7 table 1000",
				"ip -6 route add 2001:db8:1::/48 via 2001:db8::1",
				"ip addr add 198.51.100.3/32 dev eth0.10", "ip -6 addr add 2001:db8::3/128 dev eth0.10 nodad",
				"ip neigh add 198.51.100.1 lladdr 02:00:00:00:00:01 dev br-ex nud permanent",
				"ip neigh add 198.51.100.9 lladdr 02:00:00:00:00:09 dev br-ex nud stale",
				"ip rule add priority 5000 from 198.51.100.0/24 table 1000",
				"ip rule add priority 6010 from 198.51.100.0/24 table 1000",
				"sysctl -qw net.ipv4.conf.br-ex.arp_ignore=1")(t)
			return func() string {
				return s.run(t, "sh", "-ec",
					`ip addr show | grep -e 198.51 -e 2001:db8; ip route show table all | grep -e 203.0.113 -e 'metric 7'; ip -6 route show | grep 2001:db8
					ip neigh show | grep 198.51 | sed 's/ *$//'; ip rule | grep -e 5000 -e 6010; sysctl net.ipv4.conf.br-ex.arp_ignore`)
			}
		},
		Spoils: map[string]func(testing.TB){
			"route deleted":         s.hand("ip route del 10.96.0.0/16"),
			"route of IPv6 deleted": s.hand("ip -6 route del fd00:10:96::/112"),
			"route altered": s.hand("ip route replace 10.96.0.0/16 via 169.254.169.4 dev " +
				"br-ex mtu 1300 proto 85"),
			"route replaced":         s.hand("ip route replace 10.96.0.0/16 via 169.254.169.5 dev br-ex"),
			"route of IPv6 replaced": s.hand("ip -6 route replace fd00:10:96::/112 via fd69::3 dev br-ex"),
			"route with a metric":    s.hand("ip route add 10.96.0.0/16 via 169.254.169.5 dev br-ex metric 9 proto 85"),
			"route with a metric alone": s.hand("ip -6 route del fd00:10:96::/112",
				"ip -6 route add fd00:10:96::/112 via fd69::4 dev br-ex metric 9 proto 85"),
			"route that drops": s.hand("ip route replace blackhole 10.96.0.0/16 proto 85"),
			"route that drops IPv6": s.hand("ip -6 route del fd00:10:96::/112",
				"ip -6 route add blackhole fd00:10:96::/112 proto 85"),
			"route too much": s.hand("ip route add 10.97.0.0/16 via 169.254.169.5 proto 85 table 77"),
			"routes in two ways": s.hand("ip route replace 10.244.0.0/16 proto 85 nexthop via 10.244.1.1 " +
				"nexthop via 10.244.1.3"),
			"address deleted":         s.hand("ip addr del 169.254.169.2/29 dev br-ex"),
			"address of IPv6 deleted": s.hand("ip -6 addr del fd69::2/125 dev br-ex"),
			"address preferred": s.hand("ip -6 addr change fd69::2/125 dev br-ex preferred_lft " +
				"forever valid_lft forever"),
			"address of another length": s.hand("ip -6 addr del fd69::2/125 dev br-ex",
				"ip -6 addr add fd69::2/120 dev br-ex nodad"),
			"address too much": s.hand("ip addr add 10.244.1.7/24 dev ovn-k8s-mp0"),
			"egress address deleted": s.hand("ip addr del 10.10.10.100/32 dev eth0.10",
				"ip -6 addr del fd10::64/128 dev eth0.10"),
			"all addresses":     s.hand("ip addr flush dev ovn-k8s-mp0 scope global"),
			"neighbour deleted": s.hand("ip neigh del 169.254.169.4 dev br-ex"),
			"neighbour altered": s.hand("ip -6 neigh replace fd69::4 lladdr 02:00:00:00:00:05 dev " +
				"br-ex nud permanent"),
			"neighbour not permanent": s.hand("ip neigh replace 169.254.169.1 lladdr 02:42:ac:12:00:03 dev " +
				"br-ex nud reachable"),
			"neighbour too much": s.hand("ip neigh add 169.254.169.5 lladdr 02:42:ac:12:00:03 dev " +
				"br-ex nud permanent"),
			"link down":  s.hand("ip link set br-ex down"),
			"link flaps": s.hand("ip link set br-ex down", "ip link set br-ex up"),
			"MAC":        s.hand(mac),
			"MTU":        s.hand("ip link set ovn-k8s-mp0 mtu 1500"),
			"link made anew": s.hand("ip link del ovn-k8s-mp0",
				"ip link add ovn-k8s-mp0 type veth peer name pods", "ip link set pods up"),
			"both links made anew": s.hand("ip link del ovn-k8s-mp0", "ip link del br-ex",
				"ip link add br-ex address 02:42:ac:12:00:03 type veth peer name wire",
				"ip link add ovn-k8s-mp0 type veth peer name pods", "ip link set pods up", "ip link set wire up"),
			"rule deleted":  s.hand("ip rule del priority 6000"),
			"rule too much": s.hand("ip rule add priority 6001 from 10.0.0.0/8 table 1000"),
			"rule of odd form": s.hand("ip rule add priority 6000 to 10.0.0.0/8 iif lo table 1000",
				"ip -6 rule add priority 6003 blackhole"),
			"rp_filter":  s.hand("sysctl -qw net.ipv4.conf.br-ex.rp_filter=1"),
			"forwarding": s.hand("sysctl -qw net.ipv4.ip_forward=0"),
		},
		Refused: func(t testing.TB) host.Delta {
			bad := example(t)
			k := host.RouteKey{Table: 254, Prefix: netip.MustParsePrefix("10.98.0.0/16")}
			bad.Routes[k] = host.Route{RouteKey: k, Link: "br-ex", Via: netip.MustParseAddr("192.0.2.77")}
			n := host.NeighborKey{Link: "br-ex", IP: netip.MustParseAddr("169.254.169.6")}
			bad.Neighbors[n] = host.Neighbor{NeighborKey: n}
			bad.Sysctls["net/ipv4/ip_forward"] = host.Sysctl{Path: "net/ipv4/ip_forward", Value: "perhaps"}
			return host.Diff(bad, example(t))
		},
	})
}
