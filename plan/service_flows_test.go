package plan_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/datapath/nb"
	"hairpin/datapath/ovs"
	"hairpin/pipeline"
	"hairpin/plan"
)

// served is an address and port of a Service.
type served struct {
	addr     netip.AddrPort
	protocol cluster.Protocol
}

// byBalancers returns the endpoints that pods get from OVN's load balancers at each address.
func byBalancers(rows nb.State) map[served]string {
	all := map[served]string{}
	for _, r := range rows {
		lb, ok := r.(*nb.LoadBalancer)
		if !ok || strings.HasPrefix(lb.Groups[0], "clusterRouter") || strings.Contains(lb.Name, ":own") ||
			strings.Contains(lb.Name, ":all") {
			continue // not for pods, or for the host
		}
		for _, v := range lb.VIPs {
			k, to := served{v.Addr, lb.Protocol}, ends(v.Backends)
			if lb.Affinity && len(v.Backends) > 0 {
				to = "the same of " + to
			}
			if len(v.Backends) == 0 {
				to = map[string]string{"true": "refused", "false": "dropped"}[lb.Options["reject"]]
			}
			all[k] = to
		}
	}
	return all
}

func ends(list []netip.AddrPort) string {
	list = slices.Clone(list)
	slices.SortFunc(list, netip.AddrPort.Compare)
	return fmt.Sprint(slices.Compact(list))
}

// byFlows returns the same for flows and groups, at addresses without source ranges.
func byFlows(t *rapid.T, s ovs.State) map[served]string {
	all, used := map[served]string{}, map[flow.GroupKey]bool{}
	for _, f := range s.Flows.All() {
		if err := f.Check(); err != nil {
			t.Error(err)
		}
		if f.Match.Fragment != "" {
			whole := f.Key
			whole.Match.Protocol = map[flow.Protocol]flow.Protocol{flow.IP: flow.UDP,
				flow.IPv6: flow.UDP6}[f.Match.Protocol]
			whole.Match.DstPort, whole.Match.CTDstPort, whole.Match.CTProtocol = f.Match.CTDstPort, 0, 0
			whole.Match.Fragment, whole.Match.CTState = "", flow.CTState{}
			if w := s.Flows.At(whole.ID()); f.Table == pipeline.SvcServiceLB &&
				(w == nil || !slices.Equal(w.Actions, f.Actions)) {
				t.Errorf("%s: whole packets have %v", f, w)
			}
			continue
		}
		p := map[flow.Protocol]cluster.Protocol{flow.TCP: cluster.TCP, flow.TCP6: cluster.TCP, flow.UDP: cluster.UDP,
			flow.UDP6: cluster.UDP, flow.SCTP: cluster.SCTP, flow.SCTP6: cluster.SCTP}[f.Match.Protocol]
		to := "dropped"
		if mark, ok := f.Actions[0].(flow.SetPktMark); ok && mark.Mark == claims.MarkRejected {
			to = "refused"
		}
		if id, sticky := groupOf(f); id != 0 {
			k := flow.GroupKey{Bridge: f.Bridge, ID: id}
			g := s.Groups.At(k)
			if g == nil {
				t.Fatalf("%s leads to no group", f)
			}
			var list []netip.AddrPort
			for _, b := range g.Buckets {
				list = append(list, bucketTo(t, s, g, b))
			}
			if to = ends(list); sticky {
				to = "the same of " + to
			} else {
				used[k] = true // with affinity, this is the flow in pipeline.SvcEndpointDNAT
			}
		}
		if standsIn := netip.MustParsePrefix("169.254.169.0/29"); f.Bridge == claims.ServiceBridge &&
			f.Table == pipeline.SvcServiceLB && f.Priority == 200 && !standsIn.Contains(f.Match.Dst.Addr()) &&
			!netip.MustParsePrefix("fd69::/125").Contains(f.Match.Dst.Addr()) {
			all[served{netip.AddrPortFrom(f.Match.Dst.Addr(), f.Match.DstPort), p}] = to
		}
	}
	for k, g := range s.Groups.All() {
		if err := g.Check(); err != nil {
			t.Error(err)
		}
		if !used[k] {
			t.Errorf("no flow leads to %s", g)
		}
	}
	return all
}

// groupOf returns the group of a flow, and whether the flow first looks up a remembered client.
func groupOf(f *flow.Flow) (id uint32, sticky bool) {
	switch a := f.Actions[0].(type) {
	case flow.ToGroup:
		return a.ID, false
	case flow.SetGroup:
		return a.ID, true
	}
	return 0, false
}

// bucketTo returns the endpoint of a bucket.
func bucketTo(t *rapid.T, s ovs.State, g *flow.Group, b flow.Bucket) netip.AddrPort {
	ct := b.CT
	if b.Next != 0 {
		m := flow.Match{Protocol: flow.IP, Group: g.ID, Bucket: b.ID}
		if g.Hashed.Family() == cluster.IPv6 {
			m.Protocol = flow.IPv6
		}
		f := s.Flows.At(flow.Key{Bridge: g.Bridge, Table: b.Next, Priority: 100, Match: m}.ID())
		if f == nil || len(f.Actions) != 2 {
			t.Fatalf("bucket %d of %s leads to %v", b.ID, g, f)
		}
		ct = f.Actions[1].(flow.CT)
	}
	return netip.AddrPortFrom(ct.NAT.Addr, ct.NAT.PortMin)
}

// byEngine returns the cluster with one of the two engines on a node.
func byEngine(s *cluster.Snapshot, name string, flows bool) *cluster.Snapshot {
	out := *s
	out.Nodes = slices.Clone(s.Nodes)
	i := slices.IndexFunc(s.Nodes, func(n *cluster.Node) bool { return n.Name == name })
	out.Nodes[i] = new(*s.Nodes[i])
	g := &out.Nodes[i].Gateway
	g.OpenFlow, g.NodeLocal = flows, g.NodeLocal && !flows
	return &out
}

// drawChurned draws a cluster after some changes.
func drawChurned(t *rapid.T) *cluster.Snapshot {
	s := drawNodes(t)
	for range rapid.IntRange(1, 12).Draw(t, "steps") {
		s = churn(t, s)
	}
	return s
}

// beyondServiceRanges reports whether a row is the policy for a cluster IP outside of
// service-cidrs, which equals that of a range.
func beyondServiceRanges(r nb.Row) bool {
	p, ok := r.(*nb.Policy)
	return ok && (strings.Contains(p.Match, "10.97.0.") || strings.Contains(p.Match, "fd00:10:97::"))
}

// With flows, OVN has the same rows with and without Services, and the same members of sets. Only
// cluster IPs outside of service-cidrs have a policy each.
func TestFlowsLeaveOVNAlone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawChurned(t)
		for _, n := range s.Nodes {
			with := byEngine(s, n.Name, true)
			without := new(*with)
			without.Frontends = nil
			a, _ := plan.Node(with, n.Name)
			b, _ := plan.Node(without, n.Name)
			more := 0
			for k, r := range a.NB {
				switch was := b.NB[k]; {
				case was == nil && beyondServiceRanges(r):
					more++
				case was == nil || !nb.Equal(r, was):
					t.Errorf("%s: Services change %s of OVN", n.Name, k)
				}
			}
			if len(a.NB) != len(b.NB)+more {
				t.Errorf("%s: OVN has %d rows, without Services %d", n.Name, len(a.NB), len(b.NB))
			}
		}
	})
}

// With any Services, pods get the same endpoints from flows and groups as from OVN's load
// balancers.
func TestFlowsServeAsLoadBalancers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawChurned(t)
		for _, n := range s.Nodes {
			state, problems := plan.Node(byEngine(s, n.Name, false), n.Name)
			flows, more := plan.Node(byEngine(s, n.Name, true), n.Name)
			// Only OVN's load balancers support the node-local mode dgp, and only flows enforce
			// policies.
			problems = slices.DeleteFunc(problems, func(p plan.Problem) bool {
				return strings.HasSuffix(p.Message, "hosts with node-local = dgp do not reach it") ||
					strings.HasSuffix(p.Owner.Kind, "NetworkPolicy")
			})
			if !slices.Equal(problems, more) {
				t.Errorf("problems %v, with flows %v", problems, more)
			}
			ovn, ours := byBalancers(state.NB), byFlows(t, flows.Bridge)
			for v, to := range ovn {
				if got, ok := ours[v]; got != to && (ok || to != "refused") {
					t.Errorf("%s: %v leads to %q, with flows to %q", n.Name, v, to, got)
				}
			}
			for v, to := range ours {
				if _, ok := ovn[v]; !ok {
					t.Errorf("%s: %v leads to %q, with OVN to nobody", n.Name, v, to)
				}
			}
		}
	})
}

// Of many endpoints of a Service, those that fit in a group are served, and a Problem is reported
// on the Service.
func TestFlowsOfManyEndpoints(t *testing.T) {
	var ends []string
	for i := range flow.MaxBuckets + 1 {
		ends = append(ends, fmt.Sprintf("10.244.%d.%d:80", 3+i/250, 1+i%250))
	}
	s := snapshot(node("node-a", 1, 3))
	s.Frontends = []*cluster.Frontend{frontend("many", "10.96.0.1:80", 0, ends...),
		frontend("other", "10.96.0.2:80", 0, ends[0])}
	state, problems := plan.Node(byEngine(s, "node-a", true), "node-a")
	if len(problems) != 1 || !strings.Contains(problems[0].Message, "640 of 641 endpoints") ||
		problems[0].Owner.Name != "many" {
		t.Errorf("problems %v", problems)
	}
	led := 0
	for _, f := range state.Bridge.Flows.All() {
		if _, to := f.Actions[0].(flow.ToGroup); to && f.Table == pipeline.SvcServiceLB {
			led++
		}
	}
	if state.Bridge.Groups.Len() != 2 || led != 2 {
		t.Errorf("%d groups, %d flows lead to one", state.Bridge.Groups.Len(), led)
	}
	for _, g := range state.Bridge.Groups.All() {
		if err := g.Check(); err != nil {
			t.Error(err)
		}
	}
}

// Every group has its own ID, even if names have the same hash, and keeps it while others are added
// and removed.
func TestGroupIDsAreStable(t *testing.T) {
	const count = 4000
	s := byEngine(large(1, count, cluster.IPv4), "node-000", true)
	for i, f := range s.Frontends { // the youngest come first by name
		f.Created = f.Created.Add(time.Duration(count-i) * time.Second)
	}
	fresh, _ := plan.Node(s, "node-000")
	p := plan.NewPlanner()
	had := map[cluster.Owner]uint32{}
	for step := range 4 {
		next := *s
		next.Frontends = nil
		for i, f := range s.Frontends {
			if step%2 == 0 || i%3 != 0 {
				next.Frontends = append(next.Frontends, f)
			}
		}
		state, problems := p.Node(&next, "node-000")
		if len(problems) > 0 || state.Bridge.Groups.Len() != len(next.Frontends) {
			t.Fatalf("%d groups of %d Services, problems %v", state.Bridge.Groups.Len(), len(next.Frontends), problems)
		}
		others, has := 0, map[cluster.Owner]uint32{}
		for k, g := range state.Bridge.Groups.All() {
			has[g.Owner] = k.ID
			if id := had[g.Owner]; id != 0 && id != k.ID {
				t.Errorf("step %d: the group of %s was %d, and is %d", step, g.Owner, id, k.ID)
			}
			if k.ID&0xfc != 0 {
				others++
			}
			if step == 0 && fresh.Bridge.Groups.At(k) == nil {
				t.Errorf("a new plan has not %s", g)
			}
		}
		if others == 0 {
			t.Fatal("no two names have the same hash: the test needs more Services")
		}
		t.Logf("of %d Services %d have another number than their first choice", len(next.Frontends), others)
		had = has
	}
}
