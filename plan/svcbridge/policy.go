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
// connection is committed. Every packet of a connection's original direction is checked, so a
// change also affects open connections. Replies pass, except those of a connection marked as
// denied.
//
// A pod that no Policy selects has no flow here.
type Policies struct {
	index *netpolicy.Index
	// problems are by their cause: an address range, a Profile or, with the other engine, a Policy.
	problems map[any]cluster.Problem
	policies []*cluster.Policy // of the last update, with the other engine
}

// NewPolicies returns Policies without any.
func NewPolicies() *Policies {
	return &Policies{index: netpolicy.NewIndex(), problems: map[any]cluster.Problem{}}
}

// Problems returns what is not enforced: with the Service engine ovn, all Policies of own pods;
// rules beyond a limit, which accept nothing.
func (p *Policies) Problems() []cluster.Problem {
	return slices.Collect(maps.Values(p.problems))
}

// SelectedPods returns the number of own pods to which a Policy applies; none with the other
// engine.
func (p *Policies) SelectedPods() int { return p.index.Selected() }

// Priorities in the tables of policies.
const (
	prioDenied = 240 // replies of denied connections
	prioReply  = 230
	prioExempt = 220 // own node, and pods without rules in the direction
	prioAny    = 210 // rules for every address
	prioRule   = 200 // conjunctions
	prioDeny   = 100 // one per pod, which drops as a miss does, to count the pod's packets
)

// Priorities in the tables of the tiers Admin and Baseline: those of rules are below prioLevel.
const (
	prioLevel = 60000
	prioNext  = 100 // packets that no rule matches
)

// This does not compile if priorities of rules reach prioNext.
const _ uint16 = prioLevel - netpolicy.Levels - prioNext

// Update plans the changes. What the Env says of the node itself never changes here.
func (p *Policies) Update(s *cluster.Snapshot, env *node.Env, c node.Changes, _ bool) (gone, come datapath.State) {
	if !env.Engine.Policies {
		p.reportUnenforced(s, env, len(c.Pods.Removed)+len(c.Pods.Added) > 0)
		return gone, come
	}
	before, after := newServiceBridge(env), newServiceBridge(env)
	before.feature, after.feature = claims.FeaturePolicies, claims.FeaturePolicies
	var join []netip.Addr
	for i := range env.Stacks {
		join = append(join, env.Stacks[i].Join.Addr())
	}
	had := p.index.Selected() > 0
	d := p.index.Update(s, env.Pods, join)
	for _, side := range []struct {
		*serviceBridge
		pods     []*netpolicy.Pod
		profiles []*netpolicy.Profile
		members  []netpolicy.Member
		any      bool
	}{
		{before, d.Pods.Removed, d.Profiles.Removed, d.Members.Removed, had},
		{after, d.Pods.Added, d.Profiles.Added, d.Members.Added, p.index.Selected() > 0},
	} {
		if side.any {
			side.sharedPolicyFlows()
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
	p.reportLimits(env, &d)
	return datapath.State{Bridge: before.State}, datapath.State{Bridge: after.State}
}

// reportUnenforced notes the Policies that select own pods.
func (p *Policies) reportUnenforced(s *cluster.Snapshot, env *node.Env, pods bool) {
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
	netpolicy.Place
	netip.Prefix
}

// reportLimits notes what exceeds the number of conjunctions that a flow may have.
func (p *Policies) reportLimits(env *node.Env, d *netpolicy.Delta) {
	for _, m := range d.Members.Removed {
		delete(p.problems, memberKey{m.Direction, m.Place, m.Prefix})
	}
	for _, m := range d.Members.Added {
		if n := len(m.Sets); n > flow.MaxConjunctions {
			effect := fmt.Sprintf("%d of them do not accept it", n-flow.MaxConjunctions)
			if m.Tier != cluster.TierNetworkPolicy {
				effect = "pods with ClusterNetworkPolicies of this tier and direction cannot reach it, " +
					"or be reached by it"
			}
			p.problems[memberKey{m.Direction, m.Place, m.Prefix}] = cluster.Problem{
				Owner: cluster.NodeOwner(env.Node.Name),
				Message: fmt.Sprintf("%s is a peer in %d different selectors of policies; %s: a flow of Open vSwitch "+
					"can be in %d conjunctions at most", m.Prefix, n, effect, flow.MaxConjunctions),
			}
		}
	}
	for _, x := range d.Profiles.Removed {
		delete(p.problems, x.ID)
	}
	for _, x := range d.Profiles.Added {
		for rules := x.Rules; len(rules) > 0; {
			n := slices.IndexFunc(rules, func(r netpolicy.Rule) bool { return r.Place != rules[0].Place })
			if n < 0 {
				n = len(rules)
			}
			if n > flow.MaxConjunctions {
				effect := fmt.Sprintf("rules beyond %d may accept nothing", flow.MaxConjunctions)
				if rules[0].Tier != cluster.TierNetworkPolicy {
					effect = fmt.Sprintf("with more than %d, rules of one place drop everything", flow.MaxConjunctions)
				}
				p.problems[x.ID] = cluster.Problem{Owner: rules[0].Policy, Message: fmt.Sprintf(
					"the policies of one pod of %s name %d different selectors: %s", env.Node.Name, n, effect)}
			}
			rules = rules[n:]
		}
	}
}

// direction has the tables for one direction, and where a permitted packet continues.
type direction struct {
	classifier, conntrack, admin, rules, baseline, permitted uint8
	peer                                                     func(*flow.Match) *netip.Prefix
}

// tier returns the table of a tier.
func (t *direction) tier(x cluster.PolicyTier) uint8 {
	switch x {
	case cluster.TierAdmin:
		return t.admin
	case cluster.TierBaseline:
		return t.baseline
	}
	return t.rules
}

// nextTable returns the table for packets of a Profile that no rule of this tier or an earlier one
// decides.
func (t *direction) nextTable(tier cluster.PolicyTier, p *netpolicy.Profile) uint8 {
	for tier++; tier <= cluster.TierBaseline; tier++ {
		if tier == cluster.TierNetworkPolicy && p.Isolated || tier != cluster.TierNetworkPolicy && len(p.In(tier)) > 0 {
			return t.tier(tier)
		}
	}
	return t.permitted
}

// priority returns the priority of the flows of a rule, or of a set of peers.
func priority(p netpolicy.Place) uint16 {
	if p.Tier == cluster.TierNetworkPolicy {
		return prioRule
	}
	return prioLevel - p.Level
}

// policyTables has the tables by netpolicy.Direction. It is read-only.
var policyTables = [...]direction{
	netpolicy.Egress: {
		classifier: pipeline.SvcEgressClassifier, conntrack: pipeline.SvcEgressConntrack,
		admin: pipeline.SvcEgressAdmin, rules: pipeline.SvcEgressRule, baseline: pipeline.SvcEgressBaseline,
		permitted: pipeline.SvcIngressClassifier, peer: func(m *flow.Match) *netip.Prefix { return &m.Dst },
	},
	netpolicy.Ingress: {
		classifier: pipeline.SvcIngressClassifier, conntrack: pipeline.SvcIngressConntrack,
		admin: pipeline.SvcIngressAdmin, rules: pipeline.SvcIngressRule, baseline: pipeline.SvcIngressBaseline,
		permitted: pipeline.SvcConntrackCommit, peer: func(m *flow.Match) *netip.Prefix { return &m.Src },
	},
}

func resubmit(table uint8) flow.Action { return flow.Resubmit{Table: table} }

// sharedPolicyFlows adds the flows that all isolated pods share.
func (w *serviceBridge) sharedPolicyFlows() {
	drop := resubmit(pipeline.SvcPolicyDrop)
	for _, t := range policyTables {
		w.add(t.conntrack, prioExempt, flow.Match{Profile: netpolicy.Open}, resubmit(t.permitted))
		w.add(t.conntrack, prioOthers, flow.Match{}, resubmit(t.rules))
		for _, table := range []uint8{t.admin, t.rules, t.baseline} {
			w.add(table, prioOthers, flow.Match{}, drop)
		}
	}
	for i := range w.Stacks {
		s := &w.Stacks[i]
		ip := node.Vocab(s.Family).IP
		for _, t := range policyTables {
			for _, bit := range []flow.CTBits{flow.CTRpl, flow.CTRel} {
				w.add(t.conntrack, prioDenied, denied(ip, bit, 0), flow.Drop{})
				w.add(t.conntrack, prioReply, tracked(ip, bit, 0), resubmit(t.permitted))
			}
		}
		w.permitOwnNode(s)
		w.add(pipeline.SvcExternalReply, prioTagged, denied(ip, 0, 0), flow.Drop{})
		// A group has committed what it translated. Without the mark, the endpoint could answer.
		mark := flow.CT{Commit: true, Zone: claims.ZoneServices, Mark: claims.CTMarkDenied,
			MarkMask: claims.CTMarkDenied}
		w.add(pipeline.SvcPolicyDrop, prioGuard, denied(ip, 0, 0), flow.Drop{})
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

// permitOwnNode permits packets between a pod and its node, such as probes of the kubelet: the
// documentation of NetworkPolicy promises it. Packets to the node are permitted in the tier of
// NetworkPolicies only: a ClusterNetworkPolicy may protect all nodes, and its peers nodes include
// that of the pod. A pod cannot have these sources.
func (w *serviceBridge) permitOwnNode(s *node.Stack) {
	ip := node.Vocab(s.Family).IP
	fromHost := func(a netip.Addr) {
		w.add(pipeline.SvcIngressConntrack, prioExempt,
			flow.Match{InPort: claims.ServiceHost, Protocol: ip, Src: node.HostPrefix(a)},
			resubmit(pipeline.SvcConntrackCommit))
	}
	for _, a := range w.OwnAddresses(s) {
		w.add(pipeline.SvcEgressRule, prioExempt, flow.Match{Protocol: ip, Dst: node.HostPrefix(a)},
			resubmit(pipeline.SvcIngressClassifier))
		fromHost(a)
	}
	if s.Family == cluster.IPv4 { // with IPv6, the host has no such address and would forward others' packets
		fromHost(s.MasqServiceHost)
	}
	w.add(pipeline.SvcIngressConntrack, prioExempt,
		flow.Match{InPort: claims.ServicePatch, Protocol: ip, Src: node.HostPrefix(s.Management.Addr())},
		resubmit(pipeline.SvcConntrackCommit))
}

// noEgressPolicy passes on packets of a port, unless a policy selects its pod. A miss drops: the
// datapath caches what was decided before conntrack, so packets of a pod get here for a moment
// after its flows were removed, and a policy may isolate the pod.
func (w *serviceBridge) noEgressPolicy(port string) {
	w.add(pipeline.SvcEgressClassifier, prioOthers, flow.Match{InPort: port},
		flow.Resubmit{Table: pipeline.SvcIngressClassifier})
}

// isolate sends packets of a pod, and to it, to its Profiles. A pod that is isolated in one
// direction has Profile Open in the other, because a reply may belong to a denied connection.
func (w *serviceBridge) isolate(p *netpolicy.Pod) {
	w.owner = p.Owner
	port := portOf(p.Pod)
	toProfile := func(d netpolicy.Direction, priority uint16, m flow.Match, profile uint32) {
		t := policyTables[d]
		w.add(t.classifier, priority, m, flow.SetProfile{ID: profile}, resubmit(t.conntrack))
	}
	drop := resubmit(pipeline.SvcPolicyDrop)
	w.add(pipeline.SvcEgressRule, prioDeny, flow.Match{InPort: port}, drop)
	for i := range w.Stacks {
		s := &w.Stacks[i]
		toProfile(netpolicy.Egress, prioTo, flow.Match{InPort: port, Protocol: node.Vocab(s.Family).IP}, p.Egress)
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
		toProfile(netpolicy.Ingress, prioTo, to, p.Ingress)
		w.trackForPolicies(s, p.Pod, to)
		if p.Joined == p.Ingress {
			continue
		}
		// Packets of the host and of external clients get the gateway router's join address as
		// their source, but only after the policies. Other nodes' policies see that source, so here
		// their Profile is Joined, which treats it as the source.
		joined := to
		for _, in := range w.externalPorts() {
			joined.InPort, joined.CTMark = in, 0
			toProfile(netpolicy.Ingress, prioVIP, joined, p.Joined)
			for _, mark := range []uint32{claims.CTMarkOutside, claims.CTMarkOutside | claims.CTMarkDenied} {
				joined.CTMark = mark // policy Local: the packet keeps its source
				toProfile(netpolicy.Ingress, prioFrom, joined, p.Ingress)
			}
		}
	}
}

// policyAddresses returns the addresses of a pod in the node's families, with the extra ones and
// the link-local one.
func (w *serviceBridge) policyAddresses(p *cluster.Pod) (list []netip.Addr) {
	for a := range w.addressesOf(p) {
		list = append(list, a)
	}
	if w.Stack(cluster.IPv6) != nil {
		list = append(list, linkLocal(p.MAC))
	}
	return list
}

// trackForPolicies sends packets of an isolated pod to policies that take a shorter path for other
// pods: those that other nodes' gateway routers send, and those from and to extra addresses.
func (w *serviceBridge) trackForPolicies(s *node.Stack, p *cluster.Pod, to flow.Match) {
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
	w.add(pipeline.SvcClassifier, prioExternal, to, track(claims.ZoneServices, pipeline.SvcIngressClassifier))
	w.add(pipeline.SvcFromPod, prioExternal, flow.Match{InPort: portOf(p), Protocol: to.Protocol, Src: to.Dst},
		track(claims.ZoneServices, pipeline.SvcExternalConntrack))
}
