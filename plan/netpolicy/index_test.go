package netpolicy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"hairpin/cluster"
	"hairpin/cluster/clustertest"
	"hairpin/plan/stablehash"
)

var join = []netip.Addr{netip.MustParseAddr("100.64.0.2"), netip.MustParseAddr("fd98::2")}

// ownPods returns the pods of node-a.
func ownPods(s *cluster.Snapshot) []*cluster.Pod {
	return slices.DeleteFunc(slices.Clone(s.Pods), func(p *cluster.Pod) bool { return p.Node != "node-a" })
}

// mirror holds what all Deltas together have added, as text.
type mirror map[string]bool

func (m mirror) apply(t *rapid.T, d Delta) {
	change(t, m, d.Pods, func(p *Pod) string {
		return fmt.Sprintf("pod %s %v %d %d %d", p.Owner, p.IPs, p.Egress, p.Ingress, p.Joined)
	})
	change(t, m, d.Profiles, func(p *Profile) string { return fmt.Sprintf("profile %d %v", p.ID, p.Rules) })
	change(t, m, d.Members, func(x Member) string { return fmt.Sprint("member ", x) })
}

func change[T any](t *rapid.T, m mirror, c Change[T], text func(T) string) {
	for _, x := range c.Removed {
		if !m[text(x)] {
			t.Fatalf("removed, but never added: %s", text(x))
		}
		delete(m, text(x))
	}
	for _, x := range c.Added {
		if m[text(x)] {
			t.Fatalf("added twice: %s", text(x))
		}
		m[text(x)] = true
	}
}

func (m mirror) String() string {
	var lines []string
	for x := range m {
		lines = append(lines, x)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// The Deltas of an Index that has seen other Snapshots add up to what a new Index compiles.
func TestDeltasAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := clustertest.Snapshot(clustertest.Node("node-a", 1, 3), clustertest.Node("node-b", 2, 4))
		s.Namespaces = clustertest.DrawNamespaces(t)
		x, has := NewIndex(), mirror{}
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			s = clustertest.ChurnPolicies(t, s)
			has.apply(t, x.Update(s, ownPods(s), join))
			want := mirror{}
			want.apply(t, NewIndex().Update(s, ownPods(s), join))
			if has.String() != want.String() {
				t.Fatalf("after updates:\n%s\nfrom nothing:\n%s", has, want)
			}
		}
		s = clustertest.Snapshot()
		has.apply(t, x.Update(s, nil, join))
		if len(has) > 0 || len(x.sets[0])+len(x.sets[1])+len(x.profiles)+len(x.named)+len(x.setIDs.taken)+
			len(x.profileIDs.taken)+len(x.members[0])+len(x.members[1]) > 0 {
			t.Fatalf("without objects, something stays: %s %+v", has, x)
		}
	})
}

// Two texts with one hash get two IDs, and each Profile and set keeps its own.
func TestHashCollisions(t *testing.T) {
	hash = func(string) uint32 { return Open }
	defer func() { hash = stablehash.String32 }()
	rapid.Check(t, func(t *rapid.T) {
		s := clustertest.Snapshot(clustertest.Node("node-a", 1, 3), clustertest.Node("node-b", 2, 4))
		s.Namespaces = clustertest.DrawNamespaces(t)
		x := NewIndex()
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			s = clustertest.ChurnPolicies(t, s)
			x.Update(s, ownPods(s), join)
			ids := map[uint32]bool{0: true, Open: true}
			for _, p := range x.profiles {
				if ids[p.ID] {
					t.Fatalf("two profiles have ID %d, or it is reserved", p.ID)
				}
				ids[p.ID] = true
			}
			ids = map[uint32]bool{0: true, Open: true}
			for _, sets := range x.sets {
				for _, s := range sets {
					if ids[s.id] {
						t.Fatalf("two sets have ID %d, or it is reserved", s.id)
					}
					ids[s.id] = true
				}
			}
		}
	})
}

// The masks of a range have its ports, each once.
func TestMasks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := rapid.Uint16().Draw(t, "first")
		r := PortRange{cluster.TCP, first, rapid.Uint16Min(first).Draw(t, "last")}
		list := r.Masks()
		if len(list) > 30 {
			t.Fatalf("%v has %d masks", r, len(list))
		}
		for port := range 1 << 16 {
			n := 0
			for _, m := range list {
				if uint16(port)&m.Mask == m.Value {
					n++
				}
			}
			if in := r.First <= uint16(port) && uint16(port) <= r.Last; n > 1 || (n == 1) != in {
				t.Fatalf("port %d of %v matches %d masks", port, r, n)
			}
		}
	})
}
