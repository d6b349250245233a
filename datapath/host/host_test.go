package host_test

import (
	"net/netip"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"hairpin/cluster"
	"hairpin/datapath/datapathtest"
	"hairpin/datapath/host"
	"hairpin/datapath/host/hosttest"
)

func TestExample(t *testing.T) {
	s, text := example(t)
	_, commands, _ := strings.Cut(text, "\n") // after the heading
	if got := host.Print(s); got != commands {
		t.Errorf("printed\n%swant\n%s", got, commands)
	}
	a := host.AddressKey{Link: "br-ex", Prefix: netip.MustParsePrefix("172.18.0.3/16")}
	if !s.Addresses[a].Borrowed || s.Addresses[a].Owner.Name != "node-a" {
		t.Errorf("the node's own address is read as %+v", s.Addresses[a])
	}
	if got := s.Sysctls["net/ipv4/conf/eth0.10/rp_filter"].Value; got != "2" {
		t.Errorf("the sysctl of a link with a dot is %q", got)
	}
}

func TestDiffTurnsHaveIntoWant(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want, have := hosttest.States().Draw(t, "want"), hosttest.States().Draw(t, "have")
		d := host.Diff(want, have)
		got := d.Shrink().ApplyTo(d.Grow().ApplyTo(have))
		if left := host.Diff(want, got); !left.Empty() {
			t.Fatalf("left over:\n%safter\n%s", left, d)
		}
		if d.Grow().Count()+d.Shrink().Count() != d.Count() || d.Empty() != (d.String() == "") {
			t.Fatalf("%d differences, of %d and %d:\n%s", d.Count(), d.Grow().Count(), d.Shrink().Count(), d)
		}
		if !host.Diff(want, want).Empty() {
			t.Fatal("a state differs from itself")
		}
		if !reflect.DeepEqual(want, have) && host.Print(want) == host.Print(have) {
			t.Fatalf("two states have one text:\n%s", host.Print(want))
		}
	})
}

// TestBorrowed checks that values of the machine are neither added, changed nor removed.
func TestBorrowed(t *testing.T) {
	want, _ := example(t)
	have, _ := example(t)
	route := host.RouteKey{Table: 254, Prefix: netip.MustParsePrefix("0.0.0.0/0")}
	address := host.AddressKey{Link: "br-ex", Prefix: netip.MustParsePrefix("172.18.0.3/16")}
	r := have.Routes[route]
	r.Via = netip.MustParseAddr("172.18.0.254")
	have.Routes[route] = r
	if d := host.Diff(want, have); !d.Empty() {
		t.Errorf("another default gateway of the machine is changed:\n%s", d)
	}
	delete(have.Addresses, address)
	delete(have.Routes, route)
	if d := host.Diff(want, have); !d.Empty() {
		t.Errorf("what the machine has not is made:\n%s", d)
	}
	if d := host.Diff(have, want); !d.Empty() {
		t.Errorf("what is not wanted any more is removed:\n%s", d)
	}
}

func TestDiffInWords(t *testing.T) {
	want, _ := example(t)
	have, _ := example(t)
	k := host.RouteKey{Table: 254, Prefix: netip.MustParsePrefix("10.96.0.0/16")}
	r := have.Routes[k]
	r.MTU, r.Owner = 1500, cluster.Owner{}
	have.Routes[k] = r
	have.Rules[host.Rule{Family: cluster.IPv4, Priority: 6001, Table: host.OtherRule}] = cluster.Owner{}
	n := host.NeighborKey{Link: "br-ex", IP: netip.MustParseAddr("fd69::5")}
	have.Neighbors[n] = host.Neighbor{NeighborKey: n, MAC: cluster.MAC{1}}
	a := host.AddressKey{Link: "br-ex", Prefix: netip.MustParsePrefix("169.254.169.3/29")}
	have.Addresses[a] = host.Address{AddressKey: a}
	got := host.Diff(want, have).String()
	if w := `ip route replace 10.96.0.0/16 via 169.254.169.4 dev br-ex mtu 1400 src 172.18.0.3 proto 85 # Node/node-a
ip rule del priority 6001 from all table -1
ip -6 neigh del fd69::5 lladdr 01:00:00:00:00:00 dev br-ex nud permanent
ip addr del 169.254.169.3/29 dev br-ex
`; got != w {
		t.Errorf("difference is\n%swant\n%s", got, w)
	}
}

// The kernel accepts nearly every name for a link, and kubelets can write some into their Node: a
// shell must not run them.
func TestLinkNamesAreQuoted(t *testing.T) {
	for _, name := range []string{"a;reboot", "$(reboot)", "`reboot`", "it's", "a#b", "#", "a&b|c", "\x1b[2J", "*"} {
		p := netip.MustParsePrefix("192.0.2.0/24")
		s := host.State{
			Links: map[string]host.Link{name: {Name: name}},
			Addresses: map[host.AddressKey]host.Address{{Link: name,
				Prefix: p}: {AddressKey: host.AddressKey{Link: name, Prefix: p}}},
			Routes: map[host.RouteKey]host.Route{{Table: 254,
				Prefix: p}: {RouteKey: host.RouteKey{Table: 254, Prefix: p}, Link: name}},
			Rules: map[host.Rule]cluster.Owner{},
			Neighbors: map[host.NeighborKey]host.Neighbor{{Link: name,
				IP: p.Addr()}: {NeighborKey: host.NeighborKey{Link: name, IP: p.Addr()}}},
			Sysctls: map[string]host.Sysctl{"net/ipv4/conf/" + name +
				"/rp_filter": {Path: "net/ipv4/conf/" + name + "/rp_filter", Value: "2"}},
		}
		text := host.Print(s)
		out, err := exec.Command("bash", "-c", "ip() { printf '%s\n' \"$@\"; }; sysctl() { ip \"$@\"; }\n"+
			text).CombinedOutput()
		if got := strings.Count(string(out), name); err != nil || got != 5 {
			t.Errorf("%q: a shell reads it %d times as it is, %v:\n%s", name, got, err, out)
		}
	}
}

// example returns the State of testdata/node-a.json, and the commands of node-a.sh that create it.
func example(t *testing.T) (host.State, string) {
	t.Helper()
	text, err := os.ReadFile("testdata/node-a.sh")
	if err != nil {
		t.Fatal(err)
	}
	return datapathtest.Read[host.State](t, "testdata/node-a.json"), string(text)
}
