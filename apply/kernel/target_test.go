package kernel_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"hairpin/apply"
	"hairpin/apply/inside"
	"hairpin/apply/inside/insidetest"
	"hairpin/apply/kernel"
	"hairpin/cluster"
	"hairpin/datapath/host"
	"hairpin/datapath/host/hosttest"
)

// left reads, and returns the difference to the wanted State.
func (s *system) left(t testing.TB, target *kernel.Target) host.Delta {
	t.Helper()
	have, err := target.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return host.Diff(s.wanted(), have)
}

// reach makes the system equal to the wanted State.
func (s *system) reach(t testing.TB, target *kernel.Target) {
	t.Helper()
	if err := target.Apply(t.Context(), s.left(t, target)); err != nil {
		t.Fatal(err)
	}
	if d := s.left(t, target); !d.Empty() {
		t.Fatalf("left over:\n%s", d)
	}
}

// quiet waits until there was no signal for a while.
func quiet(t testing.TB, target *kernel.Target) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		select {
		case <-target.Changed():
		case <-time.After(150 * time.Millisecond):
			return
		}
	}
	t.Fatal("Changed tells of changes for ever")
}

func told(t testing.TB, target *kernel.Target, what string) {
	t.Helper()
	select {
	case <-target.Changed():
	case <-time.After(10 * time.Second):
		t.Fatalf("%s is not told within 10 s", what)
	}
}

// TestLinksComeLater checks that only objects on a missing link wait for it.
func TestLinksComeLater(t *testing.T) {
	s := &system{ns: insidetest.NetNS(t)}
	s.ip(t, strings.Split(machines, "\n")...)
	target := s.target(t)
	s.wants(example(t))
	for range 2 {
		err := target.Apply(t.Context(), s.left(t, target))
		var waits *apply.Waiting
		if !errors.As(err, &waits) || !slices.Equal(waits.Devices, []string{"br-ex", "eth0.10", hosttest.Own}) {
			t.Fatalf("without links, Apply gives error %v", err)
		}
		if d := s.left(t, target); len(d.Rules.Add) != 0 || d.Sysctls.Count() != 2 {
			t.Errorf("without links, rules and sysctls are missing:\n%s", d)
		}
		quiet(t, target)
		s.ip(t, "link add ovn-k8s-mp0 type veth peer name pods")
		told(t, target, "the first link")
		if err := target.Apply(t.Context(), s.left(t, target)); !errors.As(err, &waits) ||
			!slices.Equal(waits.Devices, []string{"br-ex", "eth0.10"}) {
			t.Fatalf("without the others, Apply gives error %v", err)
		}
		if out := s.run(t, "ip", "addr", "show", "dev", hosttest.Own); !strings.Contains(out, "10.244.1.2/24") ||
			!strings.Contains(out, "0a:58:0a:f4:01:02") {
			t.Errorf("the link that came is\n%s", out)
		}
		quiet(t, target)
		s.ip(t, "link add br-ex address 02:42:ac:12:00:03 type veth peer name wire")
		told(t, target, "the second link")
		s.ip(t, "link add eth0.10 type veth peer name other", "link set wire up", "link set pods up")
		s.reach(t, target)
		s.ip(t, "link del br-ex", "link del ovn-k8s-mp0", "link del eth0.10")
	}
}

// TestTrafficIsNotTold checks that frequent changes by other programs cause no signal.
func TestTrafficIsNotTold(t *testing.T) {
	s := newSystem(t)
	target := s.target(t)
	s.wants(example(t))
	s.reach(t, target)
	quiet(t, target)
	s.hand("ip neigh replace 10.244.1.77 lladdr 02:00:00:00:00:07 dev ovn-k8s-mp0 nud reachable",
		"ip neigh del 10.244.1.77 dev ovn-k8s-mp0",
		"ip route add 203.0.113.0/24 via 169.254.169.6", "ip route del 203.0.113.0/24",
		"ip rule add priority 100 table 5", "ip rule del priority 100",
		"ip link add pod1 type veth peer name pod1p", "ip link set pod1 up", "ip link set pod1p up",
		"ip link del pod1")(t)
	select {
	case <-target.Changed():
		t.Error("what others do is told")
	case <-time.After(300 * time.Millisecond):
	}
	s.ip(t, "neigh del 169.254.169.4 dev br-ex")
	told(t, target, "a deleted neighbour")
}

// TestNotOurs checks that Apply rejects an address that Read could not find again.
func TestNotOurs(t *testing.T) {
	s := newSystem(t)
	target := s.target(t)
	var want host.State
	k := host.AddressKey{Link: "br-ex", Prefix: netip.MustParsePrefix("192.0.2.1/24")}
	want.Addresses = map[host.AddressKey]host.Address{k: {AddressKey: k}}
	want.Sysctls = map[string]host.Sysctl{"../escape": {Path: "../escape", Value: "1"},
		"net/ipv4/nothing": {Path: "net/ipv4/nothing", Value: "1"}}
	s.wants(want)
	err := target.Apply(t.Context(), s.left(t, target))
	for _, words := range []string{"ip addr replace 192.0.2.1/24 dev br-ex: neither the link nor the range is ours",
		"not a path below /proc/sys", "net.ipv4.nothing"} {
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("Apply gives error %v, want one with %q", err, words)
		}
	}
}

// TestRoutesBesideRules checks that the kernel accepts routes via a router despite rules that
// select, for all packets, a table with a route via that router.
func TestRoutesBesideRules(t *testing.T) {
	s := newSystem(t)
	target := s.target(t)
	want := host.State{Links: map[string]host.Link{hosttest.Own: {Name: hosttest.Own}},
		Addresses: map[host.AddressKey]host.Address{},
		Routes:    map[host.RouteKey]host.Route{}, Rules: map[host.Rule]cluster.Owner{}}
	for family, networks := range map[cluster.Family][2]string{cluster.IPv4: {"10.244.1.2/24", "10.244.0.0/16"},
		cluster.IPv6: {"fd00:10:244:1::2/64", "fd00:10:244::/48"}} {
		own, pods := netip.MustParsePrefix(networks[0]), netip.MustParsePrefix(networks[1])
		a := host.AddressKey{Link: hosttest.Own, Prefix: own}
		want.Addresses[a] = host.Address{AddressKey: a}
		for _, table := range []int{1000, 100000} {
			r := host.RouteKey{Table: table, Prefix: pods}
			want.Routes[r] = host.Route{RouteKey: r, Link: hosttest.Own, Via: own.Addr().Next()}
		}
		want.Rules[host.Rule{Family: family, Priority: 5993, Table: 1000}] = cluster.Owner{}
	}
	s.wants(want)
	s.reach(t, target)
	for _, gone := range []string{"route flush table 100000", "-6 route flush table 100000"} {
		s.ip(t, gone)
	}
	s.reach(t, target)
	s.reach(t, s.target(t))
}

// TestBorrowed checks that the machine's own configuration of the gateway bridge is kept, and not
// restored when another program removes it.
func TestBorrowed(t *testing.T) {
	s := newSystem(t)
	target := s.target(t)
	s.ip(t, "link set br-ex up", "addr add 172.18.0.3/16 dev br-ex",
		"route add default via 172.18.0.254 dev br-ex metric 100 proto dhcp")
	show := func() string {
		return s.run(t, "ip", "route", "show", "default") +
			s.run(t, "ip", "addr", "show", "dev", "br-ex", "to", "172.18.0.0/16")
	}
	same := func(when, before string) {
		t.Helper()
		if now := show(); now != before {
			t.Errorf("%s: the machine had\n%sand has\n%s", when, before, now)
		}
	}
	before := show()
	s.wants(example(t))
	s.reach(t, target)
	if err := target.Apply(t.Context(), host.Diff(s.wanted(), host.State{})); err != nil { // as without a Read
		t.Fatal(err)
	}
	same("applied", before)
	s.ip(t, "route del default", "addr del 172.18.0.3/16 dev br-ex")
	before = show()
	s.reach(t, target)
	same("removed by hand", before)
	s.ip(t, "addr add 172.18.0.9/16 dev br-ex", "route add default via 172.18.0.253 dev br-ex metric 50")
	before = show()
	s.wants(host.State{})
	s.reach(t, target)
	same("everything of ours went", before)
}

// TestBusyTables checks that interrupted listings are repeated.
func TestBusyTables(t *testing.T) {
	s := newSystem(t)
	target := s.target(t)
	s.wants(example(t))
	s.reach(t, target)
	file := filepath.Join(t.TempDir(), "batch")
	var batch strings.Builder
	for i := range 20000 {
		fmt.Fprintf(&batch, "route add 100.%d.%d.0/24 dev br-ex table 7\n", i>>8, i&255)
	}
	add := batch.String()
	if err := os.WriteFile(file, []byte(add+strings.ReplaceAll(add, "add", "del")), 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan string, 1)
	go func() {
		var out string
		_ = inside.Do(s.ns, func() error { out = s.batch(file); return nil })
		done <- out
	}()
	reads := 0
	for {
		if d := s.left(t, target); !d.Empty() {
			t.Fatalf("after %d reads, something is missing:\n%s", reads, d)
		}
		reads++
		select {
		case out := <-done:
			if out != "" {
				t.Fatal(out)
			}
			t.Logf("%d reads", reads)
			return
		default:
		}
	}
}

// TestCallersNamespace checks that without a path, the namespace is the caller's.
func TestCallersNamespace(t *testing.T) {
	s := newSystem(t)
	s.wants(example(t))
	err := inside.Do(s.ns, func() error {
		target, err := kernel.New(kernel.Config{Links: []string{hosttest.Own}, Prefixes: hosttest.Masquerade(),
			Wanted: s.wanted})
		if err != nil {
			return err
		}
		defer target.Close()
		have, err := target.Read(t.Context())
		if err != nil {
			return err
		}
		if err := target.Apply(t.Context(), host.Diff(s.wanted(), have)); err != nil {
			return err
		}
		if have, err = target.Read(t.Context()); err != nil {
			return err
		}
		if d := host.Diff(s.wanted(), have); !d.Empty() {
			return fmt.Errorf("left over:\n%s", d)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if d := s.left(t, s.target(t)); !d.Empty() {
		t.Errorf("in the namespace is missing:\n%s", d)
	}
}

func BenchmarkNode(b *testing.B) {
	s := newSystem(b)
	target := s.target(b)
	s.wants(example(b))
	s.reach(b, target)
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			if d := s.left(b, target); !d.Empty() {
				b.Fatal(d)
			}
		}
	})
	b.Run("links made anew, read and apply", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			s.ip(b, "link del ovn-k8s-mp0", "link del br-ex",
				"link add br-ex address 02:42:ac:12:00:03 type veth peer name wire",
				"link add ovn-k8s-mp0 type veth peer name pods", "link set pods up", "link set wire up")
			b.StartTimer()
			if err := target.Apply(b.Context(), s.left(b, target)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("deleted route until told", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			s.reach(b, target)
			quiet(b, target)
			s.ip(b, "route del 10.96.0.0/16")
			b.StartTimer()
			<-target.Changed()
			if err := target.Apply(b.Context(), s.left(b, target)); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("read beside 100000 foreign routes", func(b *testing.B) {
		var batch strings.Builder
		for i := range 100000 {
			fmt.Fprintf(&batch, "route add %d.%d.%d.0/24 dev ovn-k8s-mp0\n", 100+i>>16, i>>8&255, i&255)
		}
		file := filepath.Join(b.TempDir(), "batch")
		if err := os.WriteFile(file, []byte(batch.String()), 0o600); err != nil {
			b.Fatal(err)
		}
		s.run(b, "ip", "-batch", file)
		for b.Loop() {
			s.left(b, target)
		}
	})
}
