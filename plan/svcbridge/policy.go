package svcbridge

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/flow"
	"hairpin/pipeline"
	"hairpin/plan/netpolicy"
	"hairpin/plan/node"
)

// Policies plans the enforcement of Policies for the pods of a node: egress where the client is,
// ingress where the server is, both after a Service has chosen its endpoint and before the
// connection is committed. Every packet of a connection's original direction is judged, so a change
// also reaches open connections. Replies pass, except those of a connection marked as denied.
//
// A pod that no Policy selects has no flow here.
type Policies struct {
	index *netpolicy.Index
	// problems are by their cause: an address range, a Profile or, with the other engine, a Policy.
	problems map[any]cluster.Problem
	policies []*cluster.Policy // of the last update, with the other engine
}

func NewPolicies() *Policies {
	return &Policies{index: netpolicy.NewIndex(), problems: map[any]cluster.Problem{}}
}

// Problems returns what is not enforced: with the Service engine ovn, all Policies of own pods;
// rules beyond a limit, which accept nothing.
func (p *Policies) Problems() []cluster.Problem {
	return slices.Collect(maps.Values(p.problems))
}

// Isolated returns the number of own pods that a Policy isolates; none with the other engine.
func (p *Policies) Isolated() int { return p.index.Isolated() }

// Priorities in the tables of policies.
const (
	prioDenied = 240 // replies of denied connections
	prioReply  = 230
	prioExempt = 220 // own node, and pods without rules in the direction
	prioAny    = 210 // rules for every address
	prioRule   = 200 // conjunctions
	prioDeny   = 100 // of a pod, to count
)

// Update plans the changes. What the Env says of the node itself never changes here.
func (p *Policies) Update(s *cluster.Snapshot, env *node.Env, c node.Changes, _ bool) (gone, come datapath.State) {
	if !env.Node.Gateway.OpenFlow {
		p.refuse(s, env, len(c.Pods.Gone)+len(c.Pods.Come) > 0)
		return gone, come
	}
	before, after := newServiceBridge(env), newServiceBridge(env)
	before.feature, after.feature = claims.FeaturePolicies, claims.FeaturePolicies
	var join []netip.Addr
	for i := range env.Stacks {
		join = append(join, env.Stacks[i].Join.Addr())
	}
	had := p.index.Isolated() > 0
	d := p.index.Update(s, env.Pods, join)
	for _, side := range []struct {
		*serviceBridge
		pods     []*netpolicy.Pod
		profiles []*netpolicy.Profile
		members  []netpolicy.Member
		any      bool
	}{
		{before, d.Pods.Gone, d.Profiles.Gone, d.Members.Gone, had},
		{after, d.Pods.Come, d.Profiles.Come, d.Members.Come, p.index.Isolated() > 0},
	} {
		if side.any {
			side.verdicts()
		}
		for _, x := range side.pods {
			side.isolate(x)
		}
		for _, x := range side.profiles {
			side.profile(x)
		}
		for _, x := range side.members {
			side.member(x)
		}
	}
	p.limits(env, &d)
	return datapath.State{Bridge: before.State}, datapath.State{Bridge: after.State}
}

// refuse notes the Policies that select own pods.
func (p *Policies) refuse(s *cluster.Snapshot, env *node.Env, pods bool) {
	if !pods && cluster.SameList(p.policies, s.Policies) {
		return
	}
	p.policies = s.Policies
	clear(p.problems)
	for _, x := range s.Policies {
		if slices.ContainsFunc(env.Pods, func(pod *cluster.Pod) bool { return netpolicy.Selects(s, x, pod) }) {
			p.problems[x.Owner] = cluster.Problem{Owner: x.Owner, Message: fmt.Sprintf(
				"node %s does not enforce it: [default] service-engine = ovn does not enforce policies", env.Node.Name)}
		}
	}
}

// memberKey is the cause of a problem: a range with too many sets.
type memberKey struct {
	netpolicy.Direction
	netip.Prefix
}

// limits notes what exceeds the number of conjunctions that a flow may have.
func (p *Policies) limits(env *node.Env, d *netpolicy.Delta) {
	for _, m := range d.Members.Gone {
		delete(p.problems, memberKey{m.Direction, m.Prefix})
	}
	for _, m := range d.Members.Come {
		if n := len(m.Sets); n > flow.MaxConjunctions {
			p.problems[memberKey{m.Direction, m.Prefix}] = cluster.Problem{Owner: node.OwnerOf(env.Node.Name),
				Message: fmt.Sprintf("%s is a peer in %d different selectors of NetworkPolicies; %d of them do not "+
					"accept it: Open vSwitch has no room for more than %d in a flow", m.Prefix, n,
					n-flow.MaxConjunctions, flow.MaxConjunctions)}
		}
	}
	for _, x := range d.Profiles.Gone {
		delete(p.problems, x.ID)
	}
	for _, x := range d.Profiles.Come {
		if n := len(x.Rules); n > flow.MaxConjunctions {
			p.problems[x.ID] = cluster.Problem{Owner: x.Rules[0].Policy, Message: fmt.Sprintf(
				"the NetworkPolicies of one pod of %s name %d different selectors: rules beyond %d may accept nothing",
				env.Node.Name, n, flow.MaxConjunctions)}
		}
	}
}

// direction has the tables for one direction, and where a permitted packet continues.
type direction struct {
	classifier, conntrack, rules, permitted uint8
	peer                                    func(*flow.Match) *netip.Prefix
}

// policyTables has the tables by netpolicy.Direction. It is read-only.
var policyTables = [...]direction{
	netpolicy.Egress: {pipeline.SvcEgressClassifier, pipeline.SvcEgressConntrack, pipeline.SvcEgressRule,
		pipeline.SvcIngressClassifier, func(m *flow.Match) *netip.Prefix { return &m.Dst }},
	netpolicy.Ingress: {pipeline.SvcIngressClassifier, pipeline.SvcIngressConntrack, pipeline.SvcIngressRule,
		pipeline.SvcConntrackCommit, func(m *flow.Match) *netip.Prefix { return &m.Src }},
}

func resubmit(table uint8) flow.Action { return flow.Resubmit{Table: table} }

// verdicts adds the flows that all isolated pods share.
func (w *serviceBridge) verdicts() {
	drop := resubmit(pipeline.SvcPolicyDrop)
	for _, t := range policyTables {
		w.add(t.conntrack, prioExempt, flow.Match{Profile: netpolicy.Open}, resubmit(t.permitted))
		w.add(t.conntrack, prioOthers, flow.Match{}, resubmit(t.rules))
		w.add(t.rules, prioOthers, flow.Match{}, drop)
	}
	for i := range w.Stacks {
		s := &w.Stacks[i]
		ip := node.Vocab(s.Family).IP
		denied := func(set, clear flow.CTBits) flow.Match { return denied(ip, set, clear) }
		for _, t := range policyTables {
			for _, bit := range []flow.CTBits{flow.CTRpl, flow.CTRel} {
				w.add(t.conntrack, prioDenied, denied(bit, 0), flow.Drop{})
				w.add(t.conntrack, prioReply, tracked(ip, bit, 0), resubmit(t.permitted))
			}
		}
		w.ownNode(s)
		w.add(pipeline.SvcExternalReply, prioTagged, denied(0, 0), flow.Drop{})
		// A group has committed what it translated. Without the mark, the endpoint could answer.
		mark := flow.CT{Commit: true, Zone: claims.ZoneServices, Mark: claims.CTMarkDenied,
			MarkMask: claims.CTMarkDenied}
		w.add(pipeline.SvcPolicyDrop, prioGuard, denied(0, 0), flow.Drop{})
		for _, bit := range []flow.CTBits{flow.CTDnat, flow.CTEst} {
			w.add(pipeline.SvcPolicyDrop, prioTo, tracked(ip, bit, 0), mark)
		}
	}
	w.add(pipeline.SvcPolicyDrop, prioOthers, flow.Match{}, flow.Drop{})
}

// denied matches packets of denied connections.
func denied(ip flow.Protocol, set, clear flow.CTBits) flow.Match {
	m := tracked(ip, set, clear)
	m.CTMark, m.CTMarkMask = claims.CTMarkDenied, claims.CTMarkDenied
	return m
}

// ownNode permits packets between a pod and its node, such as probes of the kubelet: the
// documentation of NetworkPolicy promises it. A pod cannot have these sources.
func (w *serviceBridge) ownNode(s *node.Stack) {
	ip := node.Vocab(s.Family).IP
	for _, a := range w.OwnAddresses(s) {
		w.add(pipeline.SvcEgressConntrack, prioExempt, flow.Match{Protocol: ip, Dst: node.HostPrefix(a)},
			resubmit(pipeline.SvcIngressClassifier))
		w.add(pipeline.SvcIngressConntrack, prioExempt,
			flow.Match{InPort: claims.ServiceHost, Protocol: ip, Src: node.HostPrefix(a)},
			resubmit(pipeline.SvcConntrackCommit))
	}
	w.add(pipeline.SvcIngressConntrack, prioExempt,
		flow.Match{InPort: claims.ServicePatch, Protocol: ip, Src: node.HostPrefix(s.Management.Addr())},
		resubmit(pipeline.SvcConntrackCommit))
}

// isolate sends packets of a pod, and to it, to its Profiles. A pod that is isolated in one
// direction has Profile Open in the other, because a reply may belong to a denied connection.
func (w *serviceBridge) isolate(p *netpolicy.Pod) {
	w.owner = p.Owner
	port := portOf(p.Pod)
	gate := func(d netpolicy.Direction, priority uint16, m flow.Match, profile uint32) {
		t := policyTables[d]
		w.add(t.classifier, priority, m, flow.SetProfile{ID: profile}, resubmit(t.conntrack))
	}
	drop := resubmit(pipeline.SvcPolicyDrop)
	w.add(pipeline.SvcEgressRule, prioDeny, flow.Match{InPort: port}, drop)
	for i := range w.Stacks {
		s := &w.Stacks[i]
		gate(netpolicy.Egress, prioTo, flow.Match{InPort: port, Protocol: node.Vocab(s.Family).IP}, p.Egress)
	}
	for _, a := range w.policyAddresses(p.Pod) {
		s := w.Stack(cluster.FamilyOf(a))
		own := node.HostPrefix(a)
		to := flow.Match{Protocol: node.Vocab(s.Family).IP, Dst: own}
		if slices.Contains(p.Extra, a) { // several pods may have it
			to.EthDst = p.MAC
		}
		self := to
		self.InPort, self.Src = port, own
		w.add(pipeline.SvcEgressClassifier, prioSelf, self, resubmit(pipeline.SvcConntrackCommit))
		w.add(pipeline.SvcIngressRule, prioDeny, to, drop)
		gate(netpolicy.Ingress, prioTo, to, p.Ingress)
		w.untracked(s, p.Pod, to)
		if p.Joined == p.Ingress {
			continue
		}
		// Another node would see the join address as the source of what this node gives that
		// address. So does this node, where the address follows after the policies.
		joined := to
		for _, in := range w.externalPorts() {
			joined.InPort, joined.CTMark = in, 0
			gate(netpolicy.Ingress, prioVIP, joined, p.Joined)
			for _, mark := range []uint32{claims.CTMarkOutside, claims.CTMarkOutside | claims.CTMarkDenied} {
				joined.CTMark = mark // it keeps its own source
				gate(netpolicy.Ingress, prioFrom, joined, p.Ingress)
			}
		}
	}
}

// policyAddresses returns the addresses of a pod in the node's families, with the extra ones and
// the link-local one.
func (w *serviceBridge) policyAddresses(p *cluster.Pod) (list []netip.Addr) {
	for i, a := range slices.Concat(p.IPs, p.Extra) {
		if s := w.Stack(cluster.FamilyOf(a)); s != nil && (i >= len(p.IPs) || s.Subnet.Contains(a)) {
			list = append(list, a)
		}
	}
	if w.Stack(cluster.IPv6) != nil {
		list = append(list, linkLocal(p.MAC))
	}
	return list
}

// untracked sends packets of an isolated pod to policies that take a shorter path for other pods:
// those that other nodes' gateway routers send, and those from and to extra addresses.
func (w *serviceBridge) untracked(s *node.Stack, p *cluster.Pod, to flow.Match) {
	to.InPort = claims.ServicePatch
	a := to.Dst.Addr()
	if slices.Contains(p.IPs, a) {
		to.Src = s.Join.Masked()
		w.add(pipeline.SvcClassifier, prioJoin+1, to, resubmit(pipeline.SvcIngressClassifier))
		return
	}
	if !slices.Contains(p.Extra, a) {
		return
	}
	w.add(pipeline.SvcClassifier, prioWorld, to, track(claims.ZoneServices, pipeline.SvcIngressClassifier))
	w.add(pipeline.SvcFromPod, prioWorld, flow.Match{InPort: portOf(p), Protocol: to.Protocol, Src: to.Dst},
		track(claims.ZoneServices, pipeline.SvcExternalConntrack))
}

// profile adds the flows of a Profile. Of a rule for a set of peers, the peer is the first clause
// of a conjunction, and Profile with port is the second.
func (w *serviceBridge) profile(p *netpolicy.Profile) {
	t := policyTables[p.Direction]
	permit := resubmit(t.permitted)
	clauses := map[flow.Match][]uint32{}
	for i := range p.Rules {
		r := &p.Rules[i]
		w.owner = r.Policy
		for j := range w.Stacks {
			f := w.Stacks[j].Family
			if r.Family != 0 && r.Family != f {
				continue
			}
			for _, m := range w.portMatches(f, r.Ports) {
				m.Profile = p.ID
				if r.Set == 0 {
					w.add(t.rules, prioAny, m, permit)
				} else {
					clauses[m] = append(clauses[m], r.Set)
				}
			}
		}
		if r.Set != 0 {
			w.add(t.rules, prioRule, flow.Match{Profile: p.ID, ConjID: r.Set}, permit)
		}
	}
	if len(p.Rules) > 0 {
		w.owner = p.Rules[0].Policy
	}
	for m, sets := range clauses {
		w.add(t.rules, prioRule, m, conjunctions(sets, 2)...)
	}
}

// portMatches returns the matches of packets to the ports, nil: to all, of every protocol. On the
// userspace datapath a later fragment has no port. It passes with the peer alone: without its first
// fragment it is no datagram.
func (w *serviceBridge) portMatches(f cluster.Family, ports []netpolicy.PortRange) (list []flow.Match) {
	v := node.Vocab(f)
	if ports == nil {
		return []flow.Match{{Protocol: v.IP}}
	}
	for _, r := range ports {
		l4 := v.L4[r.Protocol]
		if r.All() {
			list = append(list, flow.Match{Protocol: l4})
			continue
		}
		for _, x := range r.Masks() {
			m := flow.Match{Protocol: l4, DstPort: x.Value, DstMask: x.Mask}
			if x.Mask == 1<<16-1 {
				m.DstMask = 0
			}
			list = append(list, m)
		}
	}
	if w.Node.Gateway.Userspace {
		list = append(list, flow.Match{Protocol: v.IP, Fragment: "later"})
	}
	return list
}

// member adds the flow of an address in its sets.
func (w *serviceBridge) member(m netpolicy.Member) {
	s := w.Stack(cluster.FamilyOf(m.Prefix.Addr()))
	if s == nil {
		return
	}
	w.owner = node.OwnerOf(w.Node.Name)
	t := policyTables[m.Direction]
	x := flow.Match{Protocol: node.Vocab(s.Family).IP}
	if m.Prefix.Bits() > 0 {
		*t.peer(&x) = m.Prefix
	}
	w.add(t.rules, prioRule, x, conjunctions(m.Sets, 1)...)
}

// conjunctions makes a flow an alternative in a clause of each set's conjunction.
func conjunctions(sets []uint32, clause uint8) (list []flow.Action) {
	sets = slices.Sorted(slices.Values(sets))
	for _, id := range sets[:min(len(sets), flow.MaxConjunctions)] {
		list = append(list, flow.Conjunction{ID: id, Clause: clause, Of: 2})
	}
	return list
}
