package why

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/pipeline"
	"hairpin/policy"
	"hairpin/walk"
	"hairpin/walk/explain/names"
	"hairpin/walk/packet"
)

// Decision is what policies decide about the packet, in one direction.
type Decision struct {
	policy.Verdict
	Node string
	Pod  cluster.Owner // to which the policies apply
	// Packet is the packet that is compared with their rules, after the translation of a Service.
	Packet packet.Packet
	// Note is about the source of Packet, empty if it is that of the sender.
	Note string
}

// String returns "pod/shop/db: ingress accepted by NetworkPolicy/shop/db rule 1".
func (d *Decision) String() string { return names.Pod(d.Pod) + ": " + d.Verdict.String() }

// Details lists the packet that was compared with the rules, if there are any, and the nearest
// rules that do not accept it.
func (d *Decision) Details() []string {
	if d.Reason != policy.ByRule && d.Reason != policy.Isolated {
		return nil
	}
	p := &d.Packet
	packet := fmt.Sprintf("compared with the rules: %s %s > %s", p.Protocol, p.Src, p.Destination())
	if d.Note != "" {
		packet += "; " + d.Note
	}
	list := []string{packet}
	for _, m := range d.Misses {
		list = append(list, m.String())
	}
	return list
}

// Decisions returns the Decisions that the packet met: where it passes the tables of policies.
func Decisions(s *cluster.Snapshot, t *walk.Trace) (list []Decision) {
	for i := range t.ForwardVisits {
		v := &t.ForwardVisits[i]
		n := s.Node(v.Node)
		if v.Bridge != claims.ServiceBridge || n == nil {
			continue
		}
		x := decider{s, n, t, v}
		for k := 1; k < len(v.Steps); k++ {
			before, after := table(&v.Steps[k-1]), table(&v.Steps[k])
			switch {
			case after == tableName(pipeline.SvcEgressConntrack):
				list = append(list, x.egress(k)...)
			case after == tableName(pipeline.SvcIngressConntrack):
				list = append(list, x.ingress(k)...)
			case before == tableName(pipeline.SvcEgressClassifier) && after == tableName(pipeline.SvcConntrackCommit):
				list = append(append(list, x.egress(k)...), x.ingress(k)...) // a pod to itself
			}
		}
	}
	return list
}

func tableName(id uint8) string { return pipeline.Name(pipeline.Service, id) }

// table returns the table of a step on the service bridge.
func table(s *packet.Step) string { return strings.TrimPrefix(s.Stage, claims.ServiceBridge+" ") }

// decider evaluates policies for packets on the service bridge of one node.
type decider struct {
	s *cluster.Snapshot
	n *cluster.Node // with the bridge
	t *walk.Trace
	v *walk.Visit // of the bridge
}

// egress returns the Decision of the sender's policies at a step.
func (x *decider) egress(step int) []Decision {
	from := x.pod(func(p *cluster.Pod) bool { return p.Owner == x.t.From.Pod })
	if from == nil {
		return nil
	}
	d := Decision{Node: x.n.Name, Pod: from.Owner, Packet: x.v.Steps[step].After}
	q := x.packet(&d)
	q.From.Pod, q.ToOwnNode = from, x.own(d.Packet.Dst)
	d.Verdict, _ = policy.Evaluate(x.s, q)
	return []Decision{d}
}

// ingress returns the Decision of the receiver's policies at a step.
func (x *decider) ingress(step int) []Decision {
	d := Decision{Node: x.n.Name, Packet: x.v.Steps[step].After}
	to := x.podAt(d.Packet.Dst)
	if to == nil {
		return nil
	}
	d.Pod = to.Owner
	f := cluster.FamilyOf(d.Packet.Src)
	external := x.v.Port == claims.ServiceHost || x.v.Port == claims.ExternalPatch
	ownNode := x.v.Port == claims.ServiceHost && x.own(d.Packet.Src) ||
		x.v.Port == claims.ServicePatch && d.Packet.Src == management(x.n, f)
	if join := joinAddress(x.s, x.n, f); external && !ownNode && !x.keepsSource() && join.IsValid() {
		// The bridge translates the source after the tables of policies, but the rules apply to
		// the source that the pod sees.
		d.Packet.Src = join
	}
	for _, n := range x.s.Nodes {
		switch d.Packet.Src {
		case joinAddress(x.s, n, f):
			d.Note = "the pod sees the address of " + n.Name + " on the join switch, not that of the client"
		case x.t.Sent.Src: // the client's own address needs no note
		case management(n, f):
			d.Note = "the pod sees the management address of " + n.Name + ", not that of the client"
		}
	}
	q := x.packet(&d)
	if x.t.From.Pod == to.Owner && !external && x.v.Port != claims.ServicePatch {
		q.From.Pod = to // a pod that connects to itself by its Service
	}
	q.FromOwnNode = ownNode
	_, d.Verdict = policy.Evaluate(x.s, q)
	return []Decision{d}
}

// packet returns the packet of a Decision in the form of package policy.
func (x *decider) packet(d *Decision) policy.Packet {
	p := &d.Packet
	return policy.Packet{From: policy.Endpoint{Addr: p.Src, Pod: x.podAt(p.Src)},
		To: policy.Endpoint{Addr: p.Dst, Pod: x.podAt(p.Dst)}, Protocol: p.Protocol, Port: p.DstPort}
}

// keepsSource reports whether a connection from outside keeps the address of its client, as under
// policy Local.
func (x *decider) keepsSource() bool {
	n := len(x.v.Passes)
	return n > 0 && x.v.Passes[n-1].Mark&^claims.CTMarkDenied == claims.CTMarkOutside
}

// podAt returns the pod with an address. Of two, it prefers the one of this node.
func (x *decider) podAt(a netip.Addr) *cluster.Pod {
	return x.pod(func(p *cluster.Pod) bool { return slices.Contains(p.IPs, a) || slices.Contains(p.Extra, a) })
}

func (x *decider) pod(is func(*cluster.Pod) bool) (found *cluster.Pod) {
	for _, p := range x.s.Pods {
		if is(p) && (found == nil || p.Node == x.n.Name) {
			found = p
		}
	}
	return found
}

// own reports whether an address is the node's.
func (x *decider) own(a netip.Addr) bool {
	return x.n.HasAddress(a) || slices.Contains(x.n.Addresses, a) || a == management(x.n, cluster.FamilyOf(a)) ||
		slices.ContainsFunc(x.n.Gateway.Addresses, func(p netip.Prefix) bool { return p.Addr() == a })
}

// management returns a node's address in its Pod range, the zero Addr if it has none.
func management(n *cluster.Node, f cluster.Family) netip.Addr {
	a, _ := cluster.Nth(n.PodCIDR(f), claims.PodManagement)
	return a
}

// joinAddress returns a node's address on the join switch, the zero Addr if it has none.
func joinAddress(s *cluster.Snapshot, n *cluster.Node, f cluster.Family) netip.Addr {
	a, _ := cluster.Nth(cluster.PrefixOf(s.Config.JoinSubnets, f), n.ID+claims.NodeOffset)
	return a
}
