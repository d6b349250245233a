package agent_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"hairpin/cluster"
	"hairpin/lab"
)

// far is the n-th Service whose endpoint is an external machine.
func far(name string, n int, port uint16, endpoint4, endpoint6 string) string {
	service := fmt.Sprintf(`apiVersion: v1
kind: Service
metadata: {name: %[1]s, namespace: default}
spec:
  type: NodePort
  clusterIPs: [10.96.6.%[2]d, "fd00:10:96::6%02[2]d"]
  ipFamilies: [IPv4, IPv6]
  ipFamilyPolicy: RequireDualStack
  ports:
  - {name: tcp, port: 80, protocol: TCP, nodePort: 3060%[2]d}
  - {name: udp, port: 80, protocol: UDP, nodePort: 3060%[2]d}
`, name, n)
	for family, endpoint := range map[string]string{"IPv4": endpoint4, "IPv6": endpoint6} {
		service += fmt.Sprintf(`---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s-%[4]s, namespace: default, labels: {kubernetes.io/service-name: %[1]s}}
addressType: %[2]s
endpoints: [{addresses: ["%[3]s"], conditions: {ready: true}}]
ports: [{name: tcp, port: %[5]d, protocol: TCP}, {name: udp, port: %[5]d, protocol: UDP}]
`, name, family, endpoint, strings.ToLower(family), port)
	}
	return service
}

// TestServicesByHost: where the host forwards Services, its routes lead to endpoints that are
// neither pods nor on the gateway bridge's network. This holds for every client: the host, a pod,
// an external machine. The endpoint sees the address of the link that the routes name.
func TestServicesByHost(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{cluster.ModeLocal, cluster.ModeDetached} {
		t.Run(mode, func(t *testing.T) { testServicesByHost(t, mode) })
	}
}

func testServicesByHost(t *testing.T, mode string) {
	const sink = 9100
	t.Parallel()
	l := startDemoIn(t, mode)
	a, client, p := l.Node("node-a"), l.Host("client"), netip.MustParsePrefix
	for i, wire := range []string{"wire1", "wire2"} {
		link := fmt.Sprintf("eth%d", i+1)
		noError(t, a.Join(t.Context(), wire, link, p(fmt.Sprintf("10.10.%d.3/24", i+1)),
			p(fmt.Sprintf("fd10:%d::3/64", i+1))))
		noError(t, client.Join(t.Context(), wire, link, p(fmt.Sprintf("10.10.%d.100/24", i+1)),
			p(fmt.Sprintf("fd10:%d::64/64", i+1))))
		sh(t, a, "sysctl -qw net.ipv4.conf."+link+".rp_filter=2") // a reply may come by another link
	}
	outside := func(script string) {
		t.Helper()
		_, err := client.Exec(t.Context(), "sh", "-ec", script)
		noError(t, err)
	}
	outside("sysctl -qw net.ipv4.conf.eth1.rp_filter=2 net.ipv4.conf.eth2.rp_filter=2")
	for _, x := range []string{"10.9.0.7/32", "fd09::7/128", "172.18.200.7/32", "fc00:f853:ccd::c807/128"} {
		noError(t, client.AddAddress("lo", p(x)))
	}
	put(t, l, "far.yaml", strings.Join([]string{
		far("far", 1, 9000, "10.9.0.7", "fd09::7"), far("near", 2, 9000, "172.18.200.7", "fc00:f853:ccd::c807"),
		far("big", 3, sink, "10.9.0.7", "fd09::7"),
	}, "---\n"))
	stop, err := lab.Sink(t.Context(), client, sink)
	noError(t, err)
	t.Cleanup(func() { noError(t, stop()) })
	sh(t, a, "ip route add 10.9.0.0/24 via 10.10.1.100; ip route add fd09::/64 via fd10:1::64")
	waitServes(t, a)

	v := newViewer(t, l)
	v.pods["host-a"], v.pods["client"] = a.Host, client
	services := map[string][]string{ // of one Service, for each client
		"host-a": {"10.96.6.%[1]d:80", "[fd00:10:96::6%02[1]d]:80", "172.18.0.3:3060%[1]d",
			"[fc00:f853:ccd::3]:3060%[1]d"},
		"client": {"172.18.0.3:3060%[1]d", "[fc00:f853:ccd::3]:3060%[1]d"},
	}
	services["pod-a2"] = services["host-a"]
	// seen waits until an endpoint sees every client as it should, and then tests UDP, too.
	seen := func(t *testing.T, service int, want4, want6 string) {
		t.Helper()
		for from, list := range services {
			var to, want []string
			for _, x := range list {
				to = append(to, fmt.Sprintf(x, service))
				want = append(want, map[bool]string{false: want4, true: want6}[strings.HasPrefix(x, "[")])
			}
			v.until(from, to, want...)
		}
	}
	explained := func(t *testing.T, service string, want ...string) {
		t.Helper()
		for i, w := range want {
			eventually(t, 20*time.Second, "explain says "+w, func() (bool, string) {
				out, err := a.Exec(t.Context(), "hairpin", "explain", "--live", "-v", "--family", []string{"4", "6"}[i],
					"host/node-a", "svc/default/"+service)
				return err == nil && strings.Contains(out, w), out
			})
		}
	}
	run := func(name string, test func(*testing.T)) {
		t.Run(name, func(t *testing.T) {
			v.t = t
			test(t)
		})
	}
	each := func(name, script, undo string, test func(*testing.T)) {
		run(name, func(t *testing.T) {
			sh(t, a, script)
			defer sh(t, a, undo)
			test(t)
		})
	}

	run("another link", func(t *testing.T) {
		seen(t, 1, "10.10.1.3", "fd10:1::3")
		explained(t, "far", "out of eth1 to 10.10.1.100", "out of eth1 to fd10:1::64")
	})
	each("within the network of the node",
		"ip route add 172.18.200.7 via 10.10.2.100; ip route add fc00:f853:ccd::c807 via fd10:2::64",
		"ip route del 172.18.200.7; ip route del fc00:f853:ccd::c807", func(t *testing.T) {
			seen(t, 2, "10.10.2.3", "fd10:2::3")
			explained(t, "near", "out of eth2 to 10.10.2.100", "out of eth2 to fd10:2::64")
		})
	run("a VPN", func(t *testing.T) {
		tunnel(t, a.Host, client)
		outside("ip address add fd20::2 peer fd20::1 dev tun0 nodad")
		sh(t, a,
			"ip address add fd20::1 peer fd20::2 dev tun0 nodad; ip route add 10.9.0.7 dev tun0; ip route "+
				"add fd09::7 dev tun0")
		defer sh(t, a, "ip route del 10.9.0.7; ip route del fd09::7")
		seen(t, 1, "10.20.0.1", "fd20::1")
		explained(t, "far", "out of tun0", "out of tun0")
		// The endpoint does not know the MTU, so the sender must be notified. A host's kernel
		// remembers no MTU for its own address, and Open vSwitch's userspace datapath corrupts
		// errors of IPv6 that it translates (docs/reference/compatibility.md).
		sh(t, a, "ip link set tun0 mtu 1300")
		for from, list := range services {
			for _, to := range list {
				to := fmt.Sprintf(to, 3)
				if from == "host-a" && !strings.HasSuffix(to, ":80") || strings.HasPrefix(to, "[") &&
					a.Datapath() == "netdev" {
					continue
				}
				if err := lab.Do(v.pods[from], func() error { return pour(t.Context(), to) }); err != nil {
					t.Errorf("more than a packet from %s to %s: %v", from, to, err)
				}
			}
		}
	})
	each("policy routing",
		"for f in -4 -6; do ip $f rule add iif svc-host pref 100 lookup 100; done; ip route add 10.9.0.0/24 via "+
			"10.10.2.100 table 100; ip route add fd09::/64 via fd10:2::64 table 100",
		"for f in -4 -6; do ip $f rule del pref 100; ip $f route flush table 100; done", func(t *testing.T) {
			for from := range services {
				if from != "pod-a2" { // arrives by another link
					v.until(from, []string{"172.18.0.3:30601", "[fc00:f853:ccd::3]:30601"}, "10.10.2.3", "fd10:2::3")
				}
			}
			explained(t, "far", "100: from all iif svc-host lookup 100", "100: from all iif svc-host lookup 100")
			explained(t, "far", "out of eth2 to 10.10.2.100", "out of eth2 to fd10:2::64")
		})
	each("the host's firewall",
		"nft 'add table inet admin; add chain inet admin forward { type filter hook forward priority 0; }; add rule "+
			"inet admin forward oifname eth1 ip protocol tcp reject; add rule inet admin forward oifname eth1 ip6 "+
			"nexthdr tcp reject with tcp reset'",
		"nft delete table inet admin", func(t *testing.T) {
			for from, list := range services {
				for _, to := range list {
					to := fmt.Sprintf(to, 1)
					if got := v.saw(from, "tcp", to); !strings.Contains(got, "refused") {
						t.Errorf("tcp %s from %s is seen as %s, not refused", to, from, got)
					}
				}
			}
		})
	run("the answer comes by another link", func(t *testing.T) {
		outside("ip route add 10.10.1.3 via 10.10.2.3 dev eth2; ip route add fd10:1::3 via fd10:2::3 dev eth2")
		defer outside("ip route del 10.10.1.3; ip route del fd10:1::3 via fd10:2::3")
		before := received(t, a, "eth2")
		seen(t, 1, "10.10.1.3", "fd10:1::3")
		if n := received(t, a, "eth2") - before; n < 20 {
			t.Errorf("%d packets came by eth2", n)
		}
	})
	each("two next hops", `sysctl -qw net.ipv4.fib_multipath_hash_policy=1 net.ipv6.fib_multipath_hash_policy=1
ip route replace 10.9.0.0/24 nexthop via 10.10.1.100 nexthop via 10.10.2.100
ip route del fd09::/64; ip route add fd09::/64 nexthop via fd10:1::64 nexthop via fd10:2::64`,
		"ip route replace 10.9.0.0/24 via 10.10.1.100; ip route del fd09::/64; ip route add fd09::/64 via fd10:1::64",
		func(t *testing.T) {
			for from, list := range services {
				for _, to := range list {
					ways := map[string]int{}
					for range 64 { // all by one of two: once in 2^63
						ways[v.saw(from, "tcp", fmt.Sprintf(to, 1))]++
						if len(ways) > 1 {
							break
						}
					}
					if got := slices.Sorted(maps.Keys(ways)); !slices.Equal(got, []string{"10.10.1.3", "10.10.2.3"}) &&
						!slices.Equal(got, []string{"fd10:1::3", "fd10:2::3"}) {
						t.Errorf("%s from %s is seen as %v", to, from, ways)
					}
				}
			}
		})
	run("a default route beside the bridge", func(t *testing.T) {
		link := map[string]string{cluster.ModeLocal: "br-ex", cluster.ModeDetached: "eth0"}[mode]
		reroute(t, a, nil)
		sh(t, a,
			"ip route del 10.9.0.0/24; ip route del fd09::/64; ip route add default via 10.10.2.100; ip route add "+
				"default via fd10:2::64")
		waitServes(t, a)
		if got := sh(t, a,
			"ovn-nbctl lr-route-list GR_node-a | awk '$1 == \"0.0.0.0/0\" || $1 == \"::/0\" {print $2}'"); strings.Join(strings.Fields(got), " ") != "169.254.169.4 fd69::4" {
			t.Errorf("with no default gateway by %s, the gateway router's are %s", link, got)
		}
		seen(t, 1, "10.10.2.3", "fd10:2::3")
	})
}

// received returns how many packets have arrived by a link of a node.
func received(t *testing.T, n *lab.Node, link string) int {
	t.Helper()
	count, err := strconv.Atoi(strings.TrimSpace(sh(t, n, "awk '$1 == \""+link+":\" {print $3}' /proc/net/dev")))
	noError(t, err)
	return count
}

// pour sends many full packets by TCP, and waits until they have arrived.
func pour(ctx context.Context, to string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(*slow)*20*time.Second)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", to)
	if err != nil {
		return err
	}
	defer conn.Close()
	if end, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(end)
	}
	_, err = conn.Write(make([]byte, 100_000))
	if err == nil {
		err = conn.(*net.TCPConn).CloseWrite()
	}
	if err == nil {
		_, err = io.Copy(io.Discard, conn) // the sink ends when it has all
	}
	return err
}
