package controller

import (
	"time"

	"hairpin/cluster"
	"hairpin/plan"
)

// planPause is the pause between two plans. It limits the work in a cluster with many changes,
// where these problems are not urgent.
const planPause = time.Second

// plans finds the problems of objects other than Nodes: what nodes cannot configure for them. These
// depend on a node's gateway mode, engine and datapath, so plans plans one node of each kind. The
// problems of Nodes are reported by their agents.
type plans struct {
	kinds    map[nodeKind]*kindPlan
	problems []cluster.Problem // of the last plans
	planned  time.Time
}

// nodeKind is the configuration of a node on which the problems of objects depend.
type nodeKind struct {
	mode                                     string
	openFlow, userspace, nodeLocal, redirect bool
}

// kindPlan is the planned node of a kind. It stays the same while that node exists, so that Events
// do not change.
type kindPlan struct {
	node    string
	planner *plan.Planner
}

func newPlans() plans { return plans{kinds: map[nodeKind]*kindPlan{}} }

func kindOf(c *cluster.Config, n *cluster.Node) nodeKind {
	g := &n.Gateway
	return nodeKind{c.ModeOf(n).Name, g.OpenFlow, g.Userspace, g.NodeLocal, g.Redirect}
}

// update plans again, unless it did so less than planPause ago: then it returns the time until it
// must be called again. Until Pods are read, it keeps the previous problems.
func (p *plans) update(s *cluster.Snapshot, took func(time.Duration)) time.Duration {
	if s.PodsUnread {
		return 0
	}
	now := time.Now()
	if wait := planPause - now.Sub(p.planned); wait > 0 {
		return wait
	}
	p.planned, p.problems = now, nil
	seen := map[cluster.Problem]bool{}
	for _, k := range p.representatives(s) {
		begin := time.Now()
		_, found := k.planner.Node(s, k.node)
		took(time.Since(begin))
		for _, x := range found {
			if x.Owner.Kind != "Node" && !seen[x] {
				seen[x] = true
				p.problems = append(p.problems, x)
			}
		}
	}
	return 0
}

// representatives returns a node of each kind, in the order of nodes. It forgets kinds without
// nodes.
func (p *plans) representatives(s *cluster.Snapshot) (list []*kindPlan) {
	first, stays := map[nodeKind]string{}, map[nodeKind]bool{}
	var order []nodeKind
	for _, n := range s.Nodes {
		if n.ID == 0 {
			continue
		}
		kind := kindOf(&s.Config, n)
		if first[kind] == "" {
			first[kind] = n.Name
			order = append(order, kind)
		}
		if k := p.kinds[kind]; k != nil && k.node == n.Name {
			stays[kind] = true
		}
	}
	for kind := range p.kinds {
		if first[kind] == "" {
			delete(p.kinds, kind)
		}
	}
	for _, kind := range order {
		if p.kinds[kind] == nil {
			p.kinds[kind] = &kindPlan{planner: plan.NewPlanner()}
		}
		if k := p.kinds[kind]; !stays[kind] {
			k.node = first[kind]
		}
		list = append(list, p.kinds[kind])
	}
	return list
}
