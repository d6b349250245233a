package uplink_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"hairpin/apply"
	"hairpin/hostnet/uplink"
	"hairpin/lab"
	"hairpin/lab/probe"
	"hairpin/ovsdb"
)

func config() uplink.Config {
	p := netip.MustParsePrefix
	return uplink.Config{Bridge: "br-ex", Prefixes: []netip.Prefix{p("169.254.169.0/29"), p("fd69::/125")}}
}

func sh(t testing.TB, n *lab.Node, script string) string {
	t.Helper()
	out, err := n.Exec(t.Context(), "sh", "-ec", script)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// plain is a machine with addresses and routes of all kinds on eth0, and Open vSwitch without a
// bridge.
func plain(t *testing.T) (*lab.Lab, *lab.Node) {
	t.Helper()
	l := lab.Start(t, lab.Config{Name: fmt.Sprintf("br%d", os.Getpid())})
	n := l.Add(t, lab.NodeConfig{Plain: true})
	sh(t, n,
		`ip addr add 172.18.0.33/16 dev eth0; ip addr add 10.9.9.1/24 dev eth0 label eth0:x; ip addr add 192.0.2.7/32 dev eth0 noprefixroute
		ip addr add fc00:f853:ccd::33/64 dev eth0 nodad; ip addr add 172.18.0.44/16 dev eth0 valid_lft 5000 preferred_lft 4000
		ip route add 203.0.113.0/24 via 172.18.0.1 dev eth0 metric 50 mtu 1400; ip route add 198.51.100.0/24 dev eth0 table 77 proto static
		ip route add default via 172.18.0.1 dev eth0 metric 200 proto dhcp src 172.18.0.3; ip route add 192.0.2.8/32 via 192.0.2.9 dev eth0 onlink
		ip -6 route add 2001:db8::/32 via fc00:f853:ccd::1 dev eth0 metric 77; ip -6 route add default via fc00:f853:ccd::1 dev eth0 metric 300`)
	for _, p := range []lab.Place{n.Host, l.Host("underlay")} {
		stop, err := lab.Serve(t.Context(), p, p.Name(), 8081)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = stop() })
	}
	start(t, n)
	return l, n
}

func start(t *testing.T, n *lab.Node) {
	t.Helper()
	for _, d := range []string{lab.OVSDB, lab.VSwitchd} {
		if err := n.Start(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		if d == lab.OVSDB {
			sh(t, n, "ovs-vsctl --no-wait init")
		}
	}
}

// open returns a client of a process that has just started.
func open(t testing.TB, n *lab.Node) *ovsdb.Client {
	t.Helper()
	db, err := ovsdb.Open(ovsdb.Config{Endpoint: "unix:" + n.Path("/run/openvswitch/db.sock"), Database: "Open_vSwitch",
		Tables: []ovsdb.Table{ovsdb.Mirror[ovsdb.OpenVSwitch](), ovsdb.Mirror[ovsdb.Bridge](),
			ovsdb.Mirror[ovsdb.Port](), ovsdb.Mirror[ovsdb.Interface]()}})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.WaitSynced(t.Context()); err != nil {
		t.Fatal(err)
	}
	return db
}

type stepper func(context.Context, *ovsdb.Client, uplink.Config) (string, error)

// step takes one step in a separate process, as if the process were killed then.
func step(t testing.TB, n *lab.Node, do stepper) (what string) {
	t.Helper()
	db := open(t, n)
	defer db.Close()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		err := n.Do(func() (err error) {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			what, err = do(ctx, db, config())
			return err
		})
		if waits := (*apply.Waiting)(nil); errors.As(err, &waits) && time.Now().Before(deadline) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		return what
	}
}

// all takes all steps, each in a separate process, and calls after each of them.
func all(t testing.TB, n *lab.Node, do stepper, after func(what string)) (count int) {
	t.Helper()
	for {
		what := step(t, n, do)
		if what == "" {
			return count
		}
		count++
		after(what)
	}
}

// network prints the complete network configuration of the machine.
func network(t testing.TB, n *lab.Node) string {
	t.Helper()
	sh(t, n, "for i in $(seq 50); do ip addr | grep -q tentative || exit 0; sleep 0.1; done; exit 1")
	return sh(t, n,
		`ip -d link; ip addr | grep -v valid_lft; ip rule; ip route show table all | sort; ip -6 route show table all | sort; ethtool -k eth0
		sysctl net.ipv4.conf net.ipv6.conf; nft list ruleset`)
}

// streams are connections to the machine and from it, in both families. flow waits until each of
// them has continued.
func streams(t *testing.T, l *lab.Lab, n *lab.Node) (flow func(what string), end func() []probe.Report) {
	t.Helper()
	wire := l.Host("underlay")
	var list []*lab.Stream
	for i, to := range []netip.Addr{n.Addresses()[0].Addr(), n.Addresses()[1].Addr(), netip.MustParseAddr("172.18.0.1"),
		netip.MustParseAddr("fc00:f853:ccd::1")} {
		from := lab.Place(wire)
		if i > 1 {
			from = n.Host
		}
		s, err := lab.StartStream(t.Context(), from,
			probe.StreamConfig{Protocol: "tcp", To: netip.AddrPortFrom(to, 8081), Rate: 50, Long: 5,
				Every: 5 * time.Millisecond, Timeout: 3 * time.Second, Duration: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, s)
	}
	flow = func(what string) {
		t.Log(what)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := lab.Flow(ctx, 20, list...); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	end = func() (reports []probe.Report) {
		for _, s := range list {
			r, err := s.End()
			if err != nil {
				t.Fatal(err)
			}
			reports = append(reports, r)
		}
		return reports
	}
	return flow, end
}

// noneFailed asserts that no connection failed or broke.
func noneFailed(t *testing.T, what string, reports []probe.Report) {
	t.Helper()
	for i, r := range reports {
		direction := []string{"network → machine IPv4", "network → machine IPv6", "machine → network IPv4",
			"machine → network IPv6"}[i]
		t.Logf("%s, %s: %d of %d new connections failed, longest time without one %.0f ms; %d of %d open ones "+
			"broke, longest silence %.0f ms",
			what, direction, r.Failed, r.Opened, r.OpenGapMs, r.Broken, r.Long, r.LongGapMs)
		if r.Failed > 0 || r.Broken > 0 {
			t.Errorf("%s, %s: %v", what, direction, r.Errors)
		}
	}
}

// TestThereAndBack: a device is adopted and given back, interrupted after every step, under
// traffic; then everything is as before.
func TestThereAndBack(t *testing.T) {
	l, n := plain(t)
	before := network(t, n)
	for range 2 {
		flow, end := streams(t, l, n)
		steps := all(t, n, uplink.AdoptStep, flow)
		noneFailed(t, "adopted", end())
		if steps < 6 {
			t.Errorf("%d steps", steps)
		}
		onBridge := sh(t, n,
			"ip -o addr show dev br-ex; ip route show table all dev br-ex; ip -6 route show table all dev br-ex")
		for _, words := range []string{"172.18.0.3/16", "172.18.0.33/16 scope global secondary br-ex", "br-ex:x",
			"fc00:f853:ccd::33/64", "198.51.100.0/24 table 77 proto static",
			"203.0.113.0/24 via 172.18.0.1 metric 50 mtu 1400",
			"default via 172.18.0.1 proto dhcp src 172.18.0.3 metric 200", "2001:db8::/32 via fc00:f853:ccd::1",
			"192.0.2.8 via 192.0.2.9 onlink", "default via fc00:f853:ccd::1 metric 300"} {
			if !strings.Contains(onBridge, words) {
				t.Errorf("br-ex has no %q:\n%s", words, onBridge)
			}
		}
		if left := sh(t, n, "ip -o addr show dev eth0 scope global; ip route show table all dev eth0"); left != "" {
			t.Errorf("eth0 still has\n%s", left)
		}
		flow, end = streams(t, l, n)
		all(t, n, uplink.GiveBackStep, flow)
		noneFailed(t, "given back", end())
		if after := network(t, n); after != before {
			t.Errorf("not as it was:\n%s", lab.Difference(before, after))
		}
	}
}

// TestUnsupportedFeatures: with TSO a device has no feature that ovs-vswitchd does not support when
// Open vSwitch opens it, and has it again when it is given back.
func TestUnsupportedFeatures(t *testing.T) {
	l := lab.Start(t, lab.Config{Name: fmt.Sprintf("br%d", os.Getpid()), TSO: true})
	n := l.Add(t, lab.NodeConfig{Plain: true})
	start(t, n)
	sh(t, n,
		"ovs-vsctl set Open_vSwitch . external_ids:hairpin-datapath=netdev external_ids:hairpin-tso=true; ethtool "+
			"-K eth0 tx-checksum-sctp on rx-udp-gro-forwarding on rx-gro-list off")
	features := func() string {
		return strings.TrimSpace(sh(t, n, "ethtool -k eth0 | grep -E 'tx-checksum-sctp|rx-udp-gro-forwarding|rx-gro-list'; "+
			"ovs-vsctl list-ports br-ex || true"))
	}
	all(t, n, uplink.AdoptStep, func(what string) {
		if got := features(); strings.HasSuffix(got, "eth0") && strings.Contains(got, ": on") {
			t.Errorf("after %s: %s", what, got)
		}
	})
	if got := features(); !strings.HasSuffix(got, "eth0") || strings.Count(got, ": off") != 3 {
		t.Errorf("taken in: %q", got)
	}
	all(t, n, uplink.GiveBackStep, func(what string) { t.Log(what) })
	if got := features(); strings.Count(got, ": on") != 2 || !strings.Contains(got, "rx-gro-list: off") {
		t.Errorf("given back: %q", got)
	}
}
