package ofctl_test

import (
	"fmt"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"hairpin/apply/ofctl"
	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/datapath/ovs"
	"hairpin/delta"
	"hairpin/lab"
)

// BenchmarkServices measures a node's Services: new ones, and a changed endpoint. CPU is this
// process's, with its children's, and that of ovs-vswitchd.
func BenchmarkServices(b *testing.B) {
	n := serviceNode(b)
	empty := withGroups(b, n)
	empty.Flows, empty.Groups = delta.Map[flow.ID, *flow.Flow]{}, delta.Map[flow.GroupKey, *flow.Group]{}
	for _, size := range []int{100, 1000, 10000} {
		target := open(b, n)
		all := empty
		all.Flows, all.Groups = manyServices(size)
		b.Run(fmt.Sprintf("Create%d", size), func(b *testing.B) {
			spent := startSpent(b, n)
			for b.Loop() {
				b.StopTimer()
				spent.pause(func() { reach(b, target, empty) })
				d := ovs.Diff(all, read(b, target))
				b.StartTimer()
				if err := target.Apply(ctx(b), d); err != nil {
					b.Fatal(err)
				}
			}
			spent.report(b)
		})
		reach(b, target, all)
		b.Run(fmt.Sprintf("Endpoint%d", size), func(b *testing.B) {
			spent := startSpent(b, n)
			for i := 0; b.Loop(); i++ {
				changeGroup(b, target, group(uint32(1+i%size), cluster.IPv4, 3, uint32(4+i/size)))
			}
			spent.report(b)
		})
		reach(b, target, empty)
		target.Close()
	}
}

// changeGroup changes one group without another read of the switch.
func changeGroup(b *testing.B, target *ofctl.Target, g *flow.Group) {
	d := ovs.Delta{Bridge: lab.GatewayBridge}
	d.Groups.Change = map[flow.GroupKey]*flow.Group{g.GroupKey: g}
	if err := target.Apply(ctx(b), d); err != nil {
		b.Fatal(err)
	}
}

// manyServices returns so many addresses, each with a group of two endpoints.
func manyServices(count int) (flows delta.Map[flow.ID, *flow.Flow], groups delta.Map[flow.GroupKey, *flow.Group]) {
	for i := range count {
		id := uint32(1 + i)
		m := flow.Match{Protocol: flow.TCP,
			Dst: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 96, byte(id >> 8), byte(id)}), 32), DstPort: 80}
		f := &flow.Flow{Key: flow.Key{Bridge: "br-svc", Table: 20, Priority: 200, Match: m},
			Actions: []flow.Action{flow.ToGroup{ID: id}}}
		g := group(id, cluster.IPv4, 1, 2)
		flows.Put(f.ID(), f)
		groups.Put(g.GroupKey, g)
	}
	return flows, groups
}

// spent measures CPU time of a benchmark.
type spent struct {
	b            testing.TB
	node         *lab.Node
	ours, theirs time.Duration
}

func startSpent(b testing.TB, n *lab.Node) *spent {
	s := &spent{b: b, node: n}
	s.ours, s.theirs = s.now()
	return s
}

func (s *spent) now() (ours, theirs time.Duration) {
	for _, who := range []int{syscall.RUSAGE_SELF, syscall.RUSAGE_CHILDREN} {
		var r syscall.Rusage
		if err := syscall.Getrusage(who, &r); err != nil {
			s.b.Fatal(err)
		}
		ours += time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	u, err := s.node.Used(lab.VSwitchd)
	if err != nil {
		s.b.Fatal(err)
	}
	return ours, u.CPU
}

// pause runs a function that is not measured.
func (s *spent) pause(f func()) {
	ours, theirs := s.now()
	f()
	o, t := s.now()
	s.ours, s.theirs = s.ours+o-ours, s.theirs+t-theirs
}

func (s *spent) report(b *testing.B) {
	ours, theirs := s.now()
	b.ReportMetric(float64(ours-s.ours)/float64(time.Millisecond)/float64(b.N), "cpu-ms")
	b.ReportMetric(float64(theirs-s.theirs)/float64(time.Millisecond)/float64(b.N), "vswitchd-cpu-ms")
}
