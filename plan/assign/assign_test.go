package assign_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"hairpin/cluster"
	"hairpin/cluster/clustertest"
	"hairpin/plan/assign"
)

var (
	addr   = netip.MustParseAddr
	prefix = netip.MustParsePrefix

	node       = clustertest.Node
	egressNode = clustertest.EgressNode
	egressIP   = clustertest.EgressIP
	snapshot   = clustertest.Snapshot
)

// decided returns a Snapshot with decisions as assignments in the statuses.
func decided(s *cluster.Snapshot, list []assign.Decision) *cluster.Snapshot {
	n := *s
	n.EgressIPs = nil
	for _, x := range list {
		e := *x.EgressIP
		e.Assigned = x.Items
		n.EgressIPs = append(n.EgressIPs, &e)
	}
	return &n
}

// tellAssigned returns decisions as text: "e: 172.18.0.33 node-a; 172.18.0.44: NoMatchingNodeFound
// …".
func tellAssigned(list []assign.Decision) string {
	var lines []string
	for _, x := range list {
		var parts []string
		for _, i := range x.Items {
			parts = append(parts, i.Address.String()+" "+i.Node)
		}
		for _, r := range x.Refused {
			parts = append(parts, r.Reason+": "+r.Message)
		}
		lines = append(lines, x.EgressIP.Owner.Name+": "+strings.Join(parts, "; "))
	}
	return strings.Join(lines, "\n")
}

func TestAddresses(t *testing.T) {
	const none = ""
	for _, c := range []struct {
		name string
		edit func(*cluster.Snapshot, *assign.Observed)
		want string
	}{
		{"least loaded, oldest first", func(*cluster.Snapshot, *assign.Observed) {}, `
a: 172.18.0.33 node-b
b: fc00:f853:ccd::33 node-c
old: 172.18.0.44 node-a`},
		{"two addresses, two nodes", func(s *cluster.Snapshot, _ *assign.Observed) {
			s.EgressIPs = []*cluster.EgressIP{egressIP("a", 0, "172.18.0.33", "172.18.0.44", "fc00:f853:ccd::33",
				"172.18.0.55", "172.18.0.66")}
		}, `
a: 172.18.0.33 node-a; 172.18.0.44 node-b; 172.18.0.55 node-c; fc00:f853:ccd::33 node-c; UnassignedRequest: every node that 172.18.0.66 fits has another address of EgressIP/a`},
		{"both families on one node, where there is no other", func(s *cluster.Snapshot, r *assign.Observed) {
			s.EgressIPs = []*cluster.EgressIP{egressIP("a", 0, "172.18.0.33", "172.18.0.44", "fc00:f853:ccd::33")}
			r.Unreachable = map[string]bool{"node-b": true, "node-c": true}
		}, `
a: 172.18.0.33 node-a; fc00:f853:ccd::33 node-a; UnassignedRequest: every node that 172.18.0.44 fits has another address of EgressIP/a`},
		{"stays where it is", func(s *cluster.Snapshot, _ *assign.Observed) {
			for _, e := range s.EgressIPs {
				e.Assigned = []cluster.Assignment{{Address: e.Addresses[0], Node: "node-c"}}
			}
		}, `
a: 172.18.0.33 node-c
b: fc00:f853:ccd::33 node-c
old: 172.18.0.44 node-c`},
		{"not what it should not have", func(s *cluster.Snapshot, _ *assign.Observed) {
			s.EgressIPs = []*cluster.EgressIP{egressIP("a", 0, "172.18.0.3"), egressIP("b", 0, "172.18.0.1"),
				egressIP("c", 0, "172.18.255.255"), egressIP("d", 0, "10.9.9.9"), egressIP("e", 0, "172.18.0.33"),
				egressIP("f", 1, "172.18.0.33")}
		}, `
a: UnsupportedRequest: 172.18.0.3 is an address of node node-a itself
b: UnsupportedRequest: 172.18.0.1 is the default gateway of node node-a
c: UnsupportedRequest: 172.18.255.255 is the network's or the broadcast address of 172.18.0.0/16 on node node-a
d: NoMatchingNodeFound: 10.9.9.9 fits no network of a node with the label k8s.ovn.org/egress-assignable
e: 172.18.0.33 node-a
f: UnsupportedRequest: 172.18.0.33 is already assigned to EgressIP/e`},
		{"an address of an older Service", func(s *cluster.Snapshot, _ *assign.Observed) {
			e := egressIP("a", 0, "172.18.0.33", "172.18.0.44")
			e.Claimed = []cluster.Claim{{Address: addr("172.18.0.33"),
				By: cluster.Owner{Kind: "Service", Namespace: "default", Name: "s"}}}
			s.EgressIPs = []*cluster.EgressIP{e}
		}, `
a: 172.18.0.44 node-a; UnsupportedRequest: 172.18.0.33 is an address of Service/default/s, which is older`},
		{"a node that says that it has them", func(s *cluster.Snapshot, _ *assign.Observed) {
			e := egressIP("a", 0, "172.18.0.33", "172.18.0.44", "172.18.0.55")
			e.Assigned = []cluster.Assignment{{Address: addr("172.18.0.55"), Node: "node-c"}}
			s.EgressIPs = []*cluster.EgressIP{e}
			s.Nodes[0].HostAddresses = append(s.Nodes[0].HostAddresses, prefix("172.18.0.33/16"))
			s.Nodes[0].Gateway.NextHops = append(s.Nodes[0].Gateway.NextHops, addr("172.18.0.44"))
			s.Nodes[0].Addresses[0] = addr("172.18.0.55")
		}, `
a: 172.18.0.33 node-b; 172.18.0.55 node-c; UnsupportedRequest: 172.18.0.44 is the default gateway of node node-a`},
		{"the holder keeps an address", func(s *cluster.Snapshot, _ *assign.Observed) {
			young := egressIP("y", 5, "172.18.0.33")
			young.Assigned = []cluster.Assignment{{Address: young.Addresses[0], Node: "node-b"}}
			s.EgressIPs = []*cluster.EgressIP{egressIP("a", 0, "172.18.0.33"), young}
		}, `
a: UnsupportedRequest: 172.18.0.33 is already assigned to EgressIP/y
y: 172.18.0.33 node-b`},
		{"no node", func(s *cluster.Snapshot, _ *assign.Observed) {
			for _, n := range s.Nodes {
				n.Egress.Assignable = false
			}
			s.EgressIPs = s.EgressIPs[:1]
		}, `
a: NoMatchingNodeFound: no node has the label k8s.ovn.org/egress-assignable`},
		{"nodes selected without the label", func(s *cluster.Snapshot, _ *assign.Observed) {
			edge := &cluster.Selector{Requirements: []cluster.Requirement{{Key: "edge", Operator: "Exists"}}}
			s.Nodes[3].Egress.Ready, s.Nodes[3].Egress.Labels = true, map[string]string{"edge": ""}
			s.EgressIPs = []*cluster.EgressIP{egressIP("a", 0, "172.18.0.33", "172.18.0.44", "10.9.9.9"),
				egressIP("all", 1, "172.18.0.55", "172.18.0.66", "172.18.0.77", "172.18.0.88"),
				egressIP("label", 2, "172.18.0.99"), egressIP("none", 3, "172.18.0.111")}
			s.EgressIPs[0].Nodes, s.EgressIPs[1].Nodes = edge, &cluster.Selector{}
			s.EgressIPs[2].Assigned = []cluster.Assignment{{Address: addr("172.18.0.99"), Node: "node-d"}}
			s.EgressIPs[3].Nodes = &cluster.Selector{
				Requirements: []cluster.Requirement{{Key: "absent", Operator: "Exists"}}}
		}, `
a: 172.18.0.33 node-d; UnassignedRequest: every node that 172.18.0.44 fits has another address of EgressIP/a; NoMatchingNodeFound: 10.9.9.9 fits no network of a node that spec.egressNodeSelector selects
all: 172.18.0.55 node-a; 172.18.0.66 node-b; 172.18.0.77 node-c; 172.18.0.88 node-d
label: 172.18.0.99 node-a
none: NoMatchingNodeFound: spec.egressNodeSelector selects no node`},
		{"the label does not count beside a selector", func(s *cluster.Snapshot, _ *assign.Observed) {
			s.EgressIPs = s.EgressIPs[:1]
			s.EgressIPs[0].Assigned = []cluster.Assignment{{Address: addr("172.18.0.33"), Node: "node-a"}}
			s.EgressIPs[0].Nodes = &cluster.Selector{
				Requirements: []cluster.Requirement{{Key: "edge", Operator: "Exists"}}}
			s.Nodes[1].Egress.Labels = map[string]string{"edge": ""}
		}, `
a: 172.18.0.33 node-b`},
		{"none ready", func(s *cluster.Snapshot, r *assign.Observed) {
			s.EgressIPs = s.EgressIPs[:1]
			s.Nodes[0].Egress.Ready = false
			r.Unreachable = map[string]bool{"node-b": true}
			s.Nodes[2].ID = 0
		}, `
a: NoMatchingNodeFound: 172.18.0.33 fits node node-a, which is not ready`},
		{"leaving nodes are left", func(s *cluster.Snapshot, _ *assign.Observed) {
			s.EgressIPs = s.EgressIPs[:1]
			s.EgressIPs[0].Assigned = []cluster.Assignment{{Address: s.EgressIPs[0].Addresses[0], Node: "node-a"}}
			s.Nodes[0].Egress.Leaving = true
		}, `
a: 172.18.0.33 node-b`},
		{"but not without another", func(s *cluster.Snapshot, _ *assign.Observed) {
			s.EgressIPs = s.EgressIPs[:1]
			s.EgressIPs[0].Assigned = []cluster.Assignment{{Address: s.EgressIPs[0].Addresses[0], Node: "node-b"}}
			for _, n := range s.Nodes {
				n.Egress.Leaving = true
			}
		}, `
a: 172.18.0.33 node-b`},
		{"one that seems to be dead keeps what has no other", func(s *cluster.Snapshot, r *assign.Observed) {
			s.EgressIPs = []*cluster.EgressIP{egressIP("a", 0, "172.18.0.33", "fc00:f853:ccd::33"),
				egressIP("b", 1, "172.18.0.44", "172.18.0.55")}
			s.EgressIPs[0].Assigned = []cluster.Assignment{{Address: s.EgressIPs[0].Addresses[0], Node: "node-a"},
				{Address: s.EgressIPs[0].Addresses[1], Node: "node-a"}}
			s.EgressIPs[1].Assigned = []cluster.Assignment{{Address: s.EgressIPs[1].Addresses[0], Node: "node-a"},
				{Address: s.EgressIPs[1].Addresses[1], Node: "node-b"}}
			s.Nodes[1].Egress.Ready, s.Nodes[2].Egress.Assignable = false, false
			r.Unreachable = map[string]bool{"node-a": true, "node-b": true}
		}, `
a: 172.18.0.33 node-a; fc00:f853:ccd::33 node-a; NoMatchingNodeFound: 172.18.0.33 is on node node-a, which is not reachable: no other node is eligible; NoMatchingNodeFound: fc00:f853:ccd::33 is on node node-a, which is not reachable: no other node is eligible
b: 172.18.0.44 node-a; NoMatchingNodeFound: 172.18.0.55 fits node node-a, which is not reachable; NoMatchingNodeFound: 172.18.0.44 is on node node-a, which is not reachable: no other node is eligible`},
		{"unless the EgressIP releases it", func(s *cluster.Snapshot, r *assign.Observed) {
			s.EgressIPs = s.EgressIPs[:1]
			s.EgressIPs[0].Assigned = []cluster.Assignment{{Address: s.EgressIPs[0].Addresses[0], Node: "node-a"}}
			s.EgressIPs[0].Releases = true
			s.Nodes[1].Egress.Ready, s.Nodes[2].Egress.Assignable = false, false
			r.Unreachable = map[string]bool{"node-a": true}
		}, `
a: NoMatchingNodeFound: 172.18.0.33 fits node node-a, which is not reachable`},
		{"and gets what must leave its node", func(s *cluster.Snapshot, r *assign.Observed) {
			s.EgressIPs = []*cluster.EgressIP{egressIP("a", 0, "172.18.0.33"), egressIP("new", 1, "172.18.0.44")}
			s.EgressIPs[0].Assigned = []cluster.Assignment{{Address: s.EgressIPs[0].Addresses[0], Node: "node-a"}}
			s.Nodes[0].Egress.Assignable, s.Nodes[2].Egress.Ready = false, false
			r.Unreachable = map[string]bool{"node-b": true}
		}, `
a: 172.18.0.33 node-b; NoMatchingNodeFound: 172.18.0.33 is on node node-b, which is not reachable: no other node is eligible
new: NoMatchingNodeFound: 172.18.0.44 fits node node-b, which is not reachable`},
		{"but nothing else", func(s *cluster.Snapshot, r *assign.Observed) {
			s.EgressIPs = []*cluster.EgressIP{egressIP("a", 0, "172.18.0.33", "172.18.0.44")}
			s.EgressIPs[0].Assigned = []cluster.Assignment{{Address: s.EgressIPs[0].Addresses[0], Node: "node-a"},
				{Address: s.EgressIPs[0].Addresses[1], Node: "node-b"}}
			s.Nodes[2].Egress.Assignable = false
			r.Unreachable = map[string]bool{"node-a": true}
		}, `
a: 172.18.0.44 node-b; UnassignedRequest: every node that 172.18.0.33 fits has another address of EgressIP/a`},
		{"another network", func(s *cluster.Snapshot, _ *assign.Observed) {
			s.Nodes[0].HostAddresses = append(s.Nodes[0].HostAddresses, prefix("172.18.9.1/24"),
				prefix("10.10.10.1/24"))
			s.EgressIPs = []*cluster.EgressIP{egressIP("a", 0, "172.18.9.9"),
				egressIP("b", 0, "172.18.0.33", "10.10.10.9")}
		}, `
a: 172.18.9.9 node-a
b: 10.10.10.9 node-a; 172.18.0.33 node-b`},
		{"detached", func(s *cluster.Snapshot, _ *assign.Observed) {
			s.EgressIPs = s.EgressIPs[:1]
			for _, n := range s.Nodes {
				n.Gateway.Mode, n.Gateway.Addresses = cluster.ModeDetached, []netip.Prefix{prefix("10.44.0.0/32")}
			}
		}, `
a: 172.18.0.33 node-a`},
	} {
		s := snapshot(egressNode("node-a", 1, 3), egressNode("node-b", 2, 4), egressNode("node-c", 3, 5),
			node("node-d", 4, 6))
		s.EgressIPs = []*cluster.EgressIP{egressIP("a", 1, "172.18.0.33"), egressIP("b", 2, "fc00:f853:ccd::33"),
			egressIP("old", 0, "172.18.0.44")}
		var observed assign.Observed
		c.edit(s, &observed)
		if got := "\n" + tellAssigned(assign.Addresses(s, observed)); got != c.want && c.want != none {
			t.Errorf("%s:%s\nwanted:%s", c.name, got, c.want)
		}
	}
}

func drawCarrier(t *rapid.T, i int) *cluster.Node {
	n := egressNode(fmt.Sprintf("node-%c", 'a'+i), i+1, i+3)
	n.Egress.Assignable = rapid.IntRange(0, 4).Draw(t, "label") > 0
	n.Egress.Ready = rapid.IntRange(0, 4).Draw(t, "ready") > 0
	if rapid.Bool().Draw(t, "edge") {
		n.Egress.Labels = map[string]string{"edge": ""}
	}
	n.Egress.Leaving = rapid.IntRange(0, 4).Draw(t, "leaving") == 0
	if rapid.Bool().Draw(t, "second network") {
		n.HostAddresses = append(n.HostAddresses, prefix(fmt.Sprintf("10.10.10.%d/24", i+3)))
	}
	if rapid.IntRange(0, 4).Draw(t, "detached") == 0 {
		n.Gateway.Mode, n.Gateway.Addresses = cluster.ModeDetached, []netip.Prefix{prefix("10.44.0.0/32")}
	}
	return n
}

// TestAddressesProperties: whatever changes on nodes and EgressIPs, the decisions obey the rules,
// are stable, and move no address that could stay.
func TestAddressesProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := snapshot()
		observed := assign.Observed{Unreachable: map[string]bool{}}
		for i := range rapid.IntRange(1, 4).Draw(t, "nodes") {
			s.Nodes = append(s.Nodes, drawCarrier(t, i))
		}
		for range rapid.IntRange(1, 6).Draw(t, "steps") {
			before := *s
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				i := rapid.IntRange(0, len(s.Nodes)-1).Draw(t, "which")
				s.Nodes = slices.Clone(s.Nodes)
				s.Nodes[i] = drawCarrier(t, i)
			case 1:
				name := s.Nodes[rapid.IntRange(0, len(s.Nodes)-1).Draw(t, "which")].Name
				observed.Unreachable[name] = !observed.Unreachable[name]
			default:
				s.EgressIPs = clustertest.Edit(t, s.EgressIPs, clustertest.DrawEgressIP,
					(*cluster.EgressIP).Compare)
			}
			list := assign.Addresses(s, observed)
			keepsRules(t, s, observed, list)
			movesNothing(t, &before, s, observed, list)
			shuffled := *s
			shuffled.EgressIPs = rapid.Permutation(s.EgressIPs).Draw(t, "order")
			again := assign.Addresses(&shuffled, observed)
			slices.SortFunc(again, func(a, b assign.Decision) int { return a.EgressIP.Owner.Compare(b.EgressIP.Owner) })
			if tellAssigned(again) != tellAssigned(list) {
				t.Fatalf("another order gives\n%s\ninstead of\n%s", tellAssigned(again), tellAssigned(list))
			}
			s = decided(s, list)
			if again := assign.Addresses(s, observed); tellAssigned(again) != tellAssigned(list) {
				t.Fatalf("decided was\n%s\nand without a change then\n%s", tellAssigned(list), tellAssigned(again))
			}
		}
	})
}

// able reports whether a node may have an address of an EgressIP, by a second and simple
// implementation.
func able(e *cluster.EgressIP, n *cluster.Node, a netip.Addr, observed assign.Observed) bool {
	_, edge := n.Egress.Labels["edge"]
	may := n.Egress.Assignable
	if e.Nodes != nil {
		may = edge || len(e.Nodes.Requirements) == 0
	}
	if !may || !n.Egress.Ready || observed.Unreachable[n.Name] {
		return false
	}
	for _, p := range n.Gateway.Addresses {
		if p.Contains(a) && !p.IsSingleIP() {
			return true
		}
	}
	for _, p := range n.HostAddresses {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// holds reports whether an address stays on an unreachable node: it had a node, and no reachable
// node has an address of the family.
func holds(n *cluster.Node, i cluster.Assignment, x assign.Decision, observed assign.Observed) bool {
	had := slices.ContainsFunc(x.EgressIP.Assigned, func(j cluster.Assignment) bool { return j.Address == i.Address })
	return had && !x.EgressIP.Releases && observed.Unreachable[n.Name] &&
		able(x.EgressIP, n, i.Address, assign.Observed{}) &&
		!slices.ContainsFunc(x.Items, func(j cluster.Assignment) bool {
			return !observed.Unreachable[j.Node] && j.Address.Is4() == i.Address.Is4()
		})
}

func keepsRules(t *rapid.T, s *cluster.Snapshot, observed assign.Observed, list []assign.Decision) {
	where := map[netip.Addr]string{}
	here := func(i cluster.Assignment) string { return fmt.Sprint(i.Node, i.Address.Is4()) }
	for _, x := range list {
		on, held := map[string]bool{}, 0
		for _, i := range x.Items {
			n := s.Node(i.Node)
			if holds(n, i, x, observed) {
				held++
			} else if !able(x.EgressIP, n, i.Address, observed) {
				t.Fatalf("%s is not for %s:\n%s", i.Address, i.Node, tellAssigned(list))
			}
			switch {
			case where[i.Address] != "":
				t.Fatalf("%s has two nodes:\n%s", i.Address, tellAssigned(list))
			case on[here(i)]:
				t.Fatalf("%s has two addresses of a family of %s:\n%s", i.Node, x.EgressIP.Owner, tellAssigned(list))
			case !slices.Contains(x.EgressIP.Addresses, i.Address), i.Address == addr("172.18.0.3"):
				t.Fatalf("%s is not for %s:\n%s", i.Address, x.EgressIP.Owner, tellAssigned(list))
			}
			where[i.Address], on[here(i)] = i.Node, true
		}
		if len(x.Items)+len(x.Refused) != len(x.EgressIP.Addresses)+held {
			t.Fatalf("an address is neither given nor refused:\n%s", tellAssigned(list))
		}
	}
	for _, x := range list {
		uses := func(n *cluster.Node) bool {
			return slices.ContainsFunc(x.Items, func(i cluster.Assignment) bool { return i.Node == n.Name })
		}
		on := map[string]bool{}
		for _, i := range x.Items {
			on[here(i)] = true
		}
		for _, n := range s.Nodes {
			for _, r := range x.Refused { // no address is refused that could be assigned
				if able(x.EgressIP, n, r.Address, observed) && where[r.Address] == "" &&
					!on[here(cluster.Assignment{Address: r.Address, Node: n.Name})] &&
					r.Reason != assign.ReasonUnsupported {
					t.Fatalf("%s could be on %s:\n%s", r.Address, n.Name, tellAssigned(list))
				}
			}
			for _, i := range x.Items { // nor is one on a leaving node that could be elsewhere
				if s.Node(i.Node).Egress.Leaving && !n.Egress.Leaving && able(x.EgressIP, n, i.Address, observed) &&
					!uses(n) {
					t.Fatalf("%s could leave %s for %s:\n%s", i.Address, i.Node, n.Name, tellAssigned(list))
				}
			}
		}
	}
}

// movesNothing fails if an address with a valid node has moved.
func movesNothing(t *rapid.T, before, s *cluster.Snapshot, observed assign.Observed, list []assign.Decision) {
	for _, x := range list {
		i := slices.IndexFunc(before.EgressIPs, func(e *cluster.EgressIP) bool { return e == x.EgressIP })
		if i < 0 {
			continue // new, or with other addresses
		}
		for _, had := range x.EgressIP.Assigned {
			n := s.Node(had.Node)
			if able(x.EgressIP, n, had.Address, observed) && !n.Egress.Leaving && !slices.Contains(x.Items, had) {
				t.Fatalf("%s has left %s:\n%s", had.Address, had.Node, tellAssigned(list))
			}
		}
	}
}

func BenchmarkAddresses(b *testing.B) {
	s := clustertest.ManyEgressIPs(100, 1000, 10000)
	b.Run("nothing", func(b *testing.B) {
		for b.Loop() {
			if list := assign.Addresses(s, assign.Observed{}); len(list[999].Items) != 2 {
				b.Fatal(tellAssigned(list[999:]))
			}
		}
	})
	b.Run("node lost", func(b *testing.B) {
		s := decided(s, assign.Addresses(s, assign.Observed{}))
		observed := assign.Observed{Unreachable: map[string]bool{"node-007": true}}
		for b.Loop() {
			if list := assign.Addresses(s, observed); len(list[999].Items) != 2 {
				b.Fatal(tellAssigned(list[999:]))
			}
		}
	})
}

// TestAddressesBalance: without earlier assignments, no node has two addresses more than another.
func TestAddressesBalance(t *testing.T) {
	s := clustertest.ManyEgressIPs(7, 100, 0)
	load := map[string]int{}
	for _, x := range assign.Addresses(s, assign.Observed{}) {
		for _, i := range x.Items {
			load[i.Node]++
		}
	}
	for n, l := range load {
		if l < 28 || l > 29 {
			t.Errorf("%s carries %d of 200", n, l)
		}
	}
	if len(load) != 7 {
		t.Errorf("%v", load)
	}
}

// TestRoutedAddresses: an address in no network of a node needs a node that announces it by BGP. An
// address in a network stays there.
func TestRoutedAddresses(t *testing.T) {
	in := cluster.Selector{Requirements: []cluster.Requirement{{Key: "bgp", Operator: "Exists"}}}
	for _, c := range []struct {
		address string
		routed  []cluster.Selector
		want    string
	}{
		{"10.9.9.9", nil,
			"e: NoMatchingNodeFound: 10.9.9.9 fits no network of a node with the label k8s.ovn.org/egress-assignable"},
		{"10.9.9.9", []cluster.Selector{{}}, "e: 10.9.9.9 node-a"},
		{"10.9.9.9", []cluster.Selector{in}, "e: 10.9.9.9 node-b"},
		{"10.7.0.9", []cluster.Selector{{}}, "e: 10.7.0.9 node-c"},
		{"10.7.0.9", []cluster.Selector{in}, "e: 10.7.0.9 node-c"},
		{"2001:db8::9", []cluster.Selector{in}, "e: 2001:db8::9 node-b"},
	} {
		b, other := egressNode("node-b", 2, 3), egressNode("node-c", 3, 4)
		b.Egress.Labels = map[string]string{"bgp": ""}
		other.Links = []cluster.HostLink{{Name: "eth1", Index: 3, Addresses: []netip.Prefix{prefix("10.7.0.1/24")}}}
		s := snapshot(egressNode("node-a", 1, 2), b, other)
		e := egressIP("e", 1, c.address)
		e.Routed = c.routed
		s.EgressIPs = []*cluster.EgressIP{e}
		list := assign.Addresses(s, assign.Observed{})
		if got := tellAssigned(list); got != c.want {
			t.Errorf("%s: %s, want %s", c.address, got, c.want)
		}
		// It stays, and leaves when the announcement ends.
		s = decided(s, list)
		if got := tellAssigned(assign.Addresses(s, assign.Observed{})); got != c.want {
			t.Errorf("%s again: %s, want %s", c.address, got, c.want)
		}
	}
}
