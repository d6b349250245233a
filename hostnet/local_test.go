package hostnet_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"hairpin/cluster"
	"hairpin/hostnet"
)

func localPod(node, name, ip string) *cluster.Pod {
	return &cluster.Pod{Owner: cluster.Owner{Kind: "Pod", Namespace: "default", Name: name}, Node: node,
		IPs: []netip.Addr{netip.MustParseAddr(ip)}}
}

func textOf(p *cluster.Pod) string {
	return fmt.Sprint(p.Owner.Name, p.UID, p.Node, p.Labels, p.Ports, p.Unread)
}

func byOwner(a, b *cluster.Pod) int { return a.Owner.Compare(b.Owner) }

// TestLocalPods: after any change, the Pods are the API's of other nodes and the actual own ones,
// in order. An own one has the API's labels and ports, also after its object was deleted; it is
// Unread if there never was one. The list stays the same one while nothing changes.
func TestLocalPods(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := hostnet.NewLocal("a", true)
		s := &cluster.Snapshot{Nodes: []*cluster.Node{{Name: "a"}}}
		var own []*cluster.Pod
		read := map[*cluster.Pod]*cluster.Pod{} // newest objects of own
		draw := func() *cluster.Pod {
			p := localPod(rapid.SampledFrom([]string{"a", "b"}).Draw(t, "node"),
				rapid.StringMatching(`[a-d][ab]`).Draw(t, "name"), "10.244.1.3")
			if rapid.Bool().Draw(t, "labelled") {
				p.Labels = map[string]string{"app": rapid.SampledFrom([]string{"x", "y"}).Draw(t, "app")}
			}
			if rapid.Bool().Draw(t, "named") {
				p.Ports = []cluster.PodPort{{Name: "http", Protocol: cluster.TCP,
					Port: rapid.SampledFrom([]uint16{80, 81}).Draw(t, "port")}}
			}
			p.UID = rapid.SampledFrom([]string{"1", "2"}).Draw(t, "UID")
			return p
		}
		edit := func(list []*cluster.Pod, p *cluster.Pod) []*cluster.Pod {
			out := slices.DeleteFunc(slices.Clone(list), func(q *cluster.Pod) bool { return q.Owner == p.Owner })
			if rapid.Bool().Draw(t, "stays") {
				out = append(out, p)
			}
			slices.SortFunc(out, byOwner)
			return out
		}
		for range 10 {
			next := *s
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				next.Pods = edit(s.Pods, draw())
			case 1:
				next.Starting = edit(s.Starting, draw())
			case 2:
				p := draw()
				p.Node, p.Labels, p.Ports = "a", nil, nil
				own = edit(own, p)
				slices.Reverse(own) // in any order
			}
			s = &next
			got := l.Apply(s, hostnet.Found{}, own).Pods
			var want []string
			for _, p := range s.Pods {
				if p.Node != "a" {
					want = append(want, textOf(p))
				}
			}
			last := read
			read = map[*cluster.Pod]*cluster.Pod{}
			for _, p := range own {
				with := *p
				for before, k := range last {
					if before.Owner == p.Owner && before.UID == p.UID {
						read[p] = k
					}
				}
				for _, k := range slices.Concat(s.Pods, s.Starting) { // Starting has precedence
					if k.Node == "a" && k.Owner == p.Owner && k.UID == p.UID {
						read[p] = k
					}
				}
				if k := read[p]; k != nil {
					with.Labels, with.Ports = k.Labels, k.Ports
				} else {
					with.Unread = true
				}
				want = append(want, textOf(&with))
			}
			slices.Sort(want)
			var is []string
			for _, p := range got {
				is = append(is, textOf(p))
			}
			if !slices.IsSortedFunc(got, byOwner) {
				t.Fatalf("not in order: %v", is)
			}
			if slices.Sort(is); !slices.Equal(is, want) {
				t.Fatalf("%v, not %v", is, want)
			}
			same := *s
			if again := l.Apply(&same, hostnet.Found{}, slices.Clone(own)).Pods; !cluster.SameList(got, again) {
				t.Fatal("nothing changed, and the list is another one")
			}
		}
	})
}

// TestLocalPodsWithoutObjects: where pods need no objects, as with a folder of manifests, none is
// Unread. Extra addresses end with the object that requests them.
func TestLocalPodsWithoutObjects(t *testing.T) {
	for _, objects := range []bool{false, true} {
		l := hostnet.NewLocal("a", objects)
		s := &cluster.Snapshot{Nodes: []*cluster.Node{{Name: "a"}}}
		own := []*cluster.Pod{localPod("a", "p", "10.244.1.3")}
		if p := l.Apply(s, hostnet.Found{}, own).Pods[0]; p.Unread != objects || !objects && p != own[0] {
			t.Errorf("%v: %+v", objects, p)
		}
		object := localPod("a", "p", "10.244.1.3")
		object.Labels, object.Extra = map[string]string{"app": "x"}, object.IPs
		with := *s
		with.Pods = []*cluster.Pod{object}
		if p := l.Apply(&with, hostnet.Found{}, own).Pods[0]; p.Unread || len(p.Extra) != 1 || p.Labels["app"] != "x" {
			t.Errorf("%v: with its object %+v", objects, p)
		}
		gone := *s
		if p := l.Apply(&gone, hostnet.Found{}, own).Pods[0]; p.Unread || len(p.Extra) != 0 || p.Labels["app"] != "x" {
			t.Errorf("%v: when it is deleted %+v", objects, p)
		}
	}
}

// BenchmarkLocal: 100 own Pods and 100 000 of other nodes; something else changes, and one of the
// others.
func BenchmarkLocal(b *testing.B) {
	const others, here = 100_000, 100
	s := &cluster.Snapshot{Nodes: []*cluster.Node{{Name: "node-0001"}}}
	var own []*cluster.Pod
	for i := range others + here {
		p := localPod(fmt.Sprintf("node-%04d", i%1001), fmt.Sprintf("pod-%06d", i*7919%(others+here)), "10.244.1.3")
		p.Labels = map[string]string{"app": "web"}
		if s.Pods = append(s.Pods, p); p.Node == "node-0001" {
			own = append(own, localPod(p.Node, p.Owner.Name, "10.244.1.3"))
		}
	}
	slices.SortFunc(s.Pods, byOwner)
	for name, next := range map[string]func(i int) []*cluster.Pod{
		"nothing": func(int) []*cluster.Pod { return s.Pods },
		"one": func(i int) []*cluster.Pod {
			list := slices.Clone(s.Pods)
			list[i%len(list)] = new(*list[i%len(list)])
			return list
		},
	} {
		b.Run(name, func(b *testing.B) {
			l := hostnet.NewLocal("node-0001", true)
			l.Apply(s, hostnet.Found{}, own)
			i := 0
			for b.Loop() {
				i++
				with := *s
				with.Pods = next(i)
				if got := l.Apply(&with, hostnet.Found{}, own); len(got.Pods) != len(s.Pods) {
					b.Fatal(len(got.Pods))
				}
			}
		})
	}
}
