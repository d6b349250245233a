// Package why says why a packet arrives, or why it does not, in terms of Kubernetes.
//
// Input: a Trace with the cluster it passes. Output: Decisions, what each policy decides about the
// packet, and one Why: a stable Reason, a clause of text, and the object that decides.
//
// Invariants: every Trace has a Why. A Why states only what the facts about the cluster or the
// Trace say. Where they do not explain the end, it names the last rule (ReasonRule). What policies
// decide comes from package policy, not from the flows that the packet met.
//
// why.go has the reasons of packets that arrive, and asks lost.go and service.go for those that do
// not. policies.go computes the Decisions, announced.go describes who announces an address.
package why

import (
	"fmt"
	"net/netip"
	"slices"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/walk"
	"hairpin/walk/explain/names"
	"hairpin/walk/packet"
)

// Reason is the kind of a Why, a stable word for programs.
type Reason string

// The reasons. Those up to ReasonOutside belong to a packet that arrives and is answered.
const (
	ReasonEndpoint Reason = "Endpoint" // an endpoint of the Service gets it
	ReasonPod      Reason = "Pod"      // the Pod with the address gets it
	ReasonHost     Reason = "Host"     // the host with the address gets it
	ReasonOutside  Reason = "Outside"  // it leaves the cluster

	ReasonNoReply         Reason = "NoReply"         // it arrives, its reply does not
	ReasonNoEndpoint      Reason = "NoEndpoint"      // the Service has no endpoint that is ready
	ReasonNoLocalEndpoint Reason = "NoLocalEndpoint" // a traffic policy is Local, and the node has no endpoint
	ReasonSourceRanges    Reason = "SourceRanges"    // loadBalancerSourceRanges do not have the source
	ReasonPolicies        Reason = "Policies"        // a NetworkPolicy or ClusterNetworkPolicy denies it
	ReasonNoService       Reason = "NoService"       // no Service has the address
	ReasonNoPort          Reason = "NoPort"          // the Service does not have the port
	ReasonNoPod           Reason = "NoPod"           // no Pod has the address
	ReasonNotAnnounced    Reason = "NotAnnounced"    // no node has the Service's external address
	ReasonClusterOnly     Reason = "ClusterOnly"     // the address is reachable only within the cluster
	ReasonNoAddress       Reason = "NoAddress"       // nothing has the address
	ReasonReserved        Reason = "Reserved"        // the address is one of Hairpin's own
	ReasonNoRoute         Reason = "NoRoute"         // a node has no route to the address
	ReasonEgress          Reason = "Egress"          // an EgressIP or EgressService has no node for the Pod
	ReasonSpoofed         Reason = "Spoofed"         // the sender may not use its source address
	ReasonLoopback        Reason = "Loopback"        // it is for the loopback of its own Pod
	ReasonDHCP            Reason = "DHCP"            // Pods may not answer DHCP clients
	ReasonRetry           Reason = "Retry"           // OVN drops a client's first packet
	ReasonRule            Reason = "Rule"            // a rule that the other reasons do not explain
	ReasonDrift           Reason = "Drift"           // a node differs from its desired state
	ReasonDifferent       Reason = "Different"       // a packet that was really sent did something else
	ReasonUnknown         Reason = "Unknown"         // the packet met something that Hairpin does not know
)

// Why is the reason for a verdict in terms of Kubernetes.
type Why struct {
	Reason Reason
	Text   string        // a clause without a period
	Object cluster.Owner // the object that decides, zero if none does
}

// because returns a Why. object is the one that decides.
func because(reason Reason, object cluster.Owner, format string, args ...any) Why {
	return Why{reason, fmt.Sprintf(format, args...), object}
}

// noObject is the object of a Why that no object decides.
var noObject cluster.Owner

// explains reports whether w is a reason. The zero Why is none.
func (w *Why) explains() bool { return w.Reason != "" }

// Input is a Trace, the cluster that it passes, and what the caller knows of the Service.
type Input struct {
	Cluster  *cluster.Snapshot
	Trace    *walk.Trace
	Failure  error             // what the packet met that walk does not know; nil if the walk is complete
	Service  *cluster.Frontend // nil when the packet is for no Service
	Possible int               // endpoints of the Service that the load balancer could choose
	Policies []Decision        // as Decisions returns them
}

// reasoner derives the Why of a walk from the cluster and from where the packet ended.
type reasoner struct {
	Input
	// node is where the packet ended, or where it is sent if it met no rule. Nil: outside.
	node *cluster.Node
	last *packet.Step  // nil if there is none
	now  packet.Packet // as it ended
}

// Of returns the reason for the verdict of a walk.
func Of(w Input) Why {
	r := &reasoner{Input: w, node: w.Cluster.Node(w.Trace.From.Node), now: w.Trace.Sent}
	if n := len(w.Trace.Forward); n > 0 {
		r.last = &w.Trace.Forward[n-1]
		r.node, r.now = w.Cluster.Node(r.last.Node), r.last.After
	}
	return r.why()
}

func (r *reasoner) why() Why {
	switch v := &r.Trace.Verdict; {
	case r.Failure != nil:
		return because(ReasonUnknown, noObject, "the packet met something that Hairpin does not know: %v", r.Failure)
	case v.Delivered && v.Answered:
		return r.arrived()
	case v.Delivered:
		if w := r.source(); w.explains() {
			return w
		}
		return because(ReasonNoReply, noObject, "the packet arrives, but %s", v.AnswerReason)
	}
	return r.lost()
}

// lost explains a packet that is dropped or rejected. Each method that it calls explains one cause,
// and returns the zero Why for another one. The first that explains counts.
func (r *reasoner) lost() Why {
	v := &r.Trace.Verdict
	for _, cause := range []func() Why{
		r.dhcp, r.denied, r.spoofed, r.service, r.egress, r.port, r.address, r.route,
	} {
		if w := cause(); w.explains() {
			return w
		}
	}
	switch {
	case v.Cause == packet.InPod:
		return because(ReasonLoopback, noObject, "%s is the loopback of %s itself", r.now.Dst,
			names.Object(r.Trace.From.Pod))
	case v.Cause == packet.Learning:
		return because(ReasonRetry, noObject, "OVN drops the first packet of a client of a Service with session "+
			"affinity; the next one arrives")
	case v.Cause == packet.ByRule && r.last != nil:
		return r.rule()
	}
	return because(ReasonRule, noObject, "%s", v.Reason)
}

// arrived explains where the packet went, and with which source.
func (r *reasoner) arrived() Why {
	v := &r.Trace.Verdict
	name := "host " + v.At.Node
	switch {
	case v.At == walk.Point{}:
		name = v.Seen.Destination().String() + " outside of the cluster"
	case v.At.Pod != cluster.Owner{}:
		name = names.Object(v.At.Pod) + " on " + v.At.Node
	}
	if r.Service != nil {
		w := because(ReasonEndpoint, r.Service.Owner, "%s", names.Object(r.Service.Owner))
		if r.Service.PortName != "" {
			w.Text += " port " + r.Service.PortName
		}
		w.Text += " selects " + name + r.among()
		w.Text += "; " + r.seen() + r.announced()
		return w
	}
	to := r.Trace.Sent.Dst
	switch {
	case v.At == walk.Point{}:
		return because(ReasonOutside, r.egressOwner(), "%s is outside of the cluster; %s%s", to, r.seen(), r.unserved())
	case v.At.Pod != (cluster.Owner{}):
		return because(ReasonPod, v.At.Pod, "%s is the address of %s; %s", to, name, r.seen())
	}
	text := fmt.Sprintf("%s is an address of %s", to, name)
	if p := r.Trace.Sent.DstPort; firstNodePort <= p && p <= lastNodePort {
		text += fmt.Sprintf(", and no Service has NodePort %d/%s there", p, r.Trace.Sent.Protocol)
	}
	return because(ReasonHost, cluster.NodeOwner(v.At.Node), "%s%s; %s", text, r.notRecorded(), r.seen())
}

// Kubernetes' default range of NodePorts (--service-node-port-range).
const (
	firstNodePort = 30000
	lastNodePort  = 32767
)

// among describes how many endpoints the load balancer could choose from.
func (r *reasoner) among() string {
	possible, ready := r.Possible, len(usable(r.Service.Backends))
	if ready == 1 {
		return ", its only endpoint"
	}
	text := fmt.Sprintf(", one of %d endpoints", possible)
	if possible < ready {
		text = fmt.Sprintf(", one of %d of the %d endpoints", possible, ready)
		if possible == 1 {
			text = fmt.Sprintf(", the only possible one of %d endpoints", ready)
		}
		hinted := func(b cluster.Backend) bool { return len(b.ForNodes) > 0 || len(b.ForZones) > 0 }
		if field, local := r.trafficPolicy(); local {
			text += " (" + field + " is Local)"
		} else if slices.ContainsFunc(r.Service.Backends, hinted) {
			text += " (topology hints)"
		}
	}
	return text
}

// seen describes the source address that the receiver sees.
func (r *reasoner) seen() string {
	src := r.Trace.Verdict.Seen.Src
	if src == r.Trace.Sent.Src {
		return "it sees the sender's own address " + src.String()
	}
	f, what := cluster.FamilyOf(src), ""
	if e := r.egressIP(src); e != nil {
		what = "an address of " + names.Object(e.Owner)
	}
	for _, n := range r.Cluster.Nodes {
		switch {
		case what != "":
		case src == joinAddress(r.Cluster, n, f):
			what = "that of " + n.Name + " on the join switch"
		case src == management(n, f):
			what = "that of " + n.Name + " in its Pod range"
		case n.HasAddress(src) || slices.Contains(n.Addresses, src):
			what = "that of " + n.Name
		}
	}
	if what == "" {
		what = r.reserved(src)
	}
	if what == "" {
		return "it sees source " + src.String()
	}
	return fmt.Sprintf("it sees source %s, %s", src, what)
}

// unserved names an EgressIP that selects the sender and has an assigned address of the family, but
// does not apply to this destination.
func (r *reasoner) unserved() string {
	to, from := r.Trace.Sent.Dst, r.Trace.From.Pod
	i := slices.IndexFunc(r.Cluster.Pods, func(p *cluster.Pod) bool { return p.Owner == from })
	if i < 0 || r.egressIP(r.Trace.Verdict.Seen.Src) != nil {
		return ""
	}
	var labels map[string]string
	for _, n := range r.Cluster.Namespaces {
		if n.Name == from.Namespace {
			labels = n.Labels
		}
	}
	for _, e := range r.Cluster.EgressIPs {
		has := func(a cluster.Assignment) bool { return a.Address.Is4() == to.Is4() }
		if e.Service == nil && !e.Serves(to) && slices.ContainsFunc(e.Assigned, has) &&
			e.Selects(r.Cluster.Pods[i], labels) {
			return fmt.Sprintf("; %s selects %s, but not this destination (spec.destinationCIDRs, spec.excludedCIDRs)",
				names.Object(e.Owner), names.Object(from))
		}
	}
	return ""
}

// egressOwner returns the EgressIP or EgressService with the address that the receiver sees.
func (r *reasoner) egressOwner() cluster.Owner {
	if e := r.egressIP(r.Trace.Verdict.Seen.Src); e != nil {
		return e.Owner
	}
	return cluster.Owner{}
}

// egressIP returns the EgressIP that has an address, or nil.
func (r *reasoner) egressIP(a netip.Addr) *cluster.EgressIP {
	for _, e := range r.Cluster.EgressIPs {
		if slices.Contains(e.Addresses, a) ||
			slices.ContainsFunc(e.Assigned, func(x cluster.Assignment) bool { return x.Address == a }) {
			return e
		}
	}
	return nil
}

// reserved describes an address that Hairpin uses itself; empty if it does not.
func (r *reasoner) reserved(a netip.Addr) string {
	c := &r.Cluster.Config
	for _, x := range []struct {
		ranges []netip.Prefix
		what   string
	}{
		{c.JoinSubnets, "the join subnets"}, {c.TransitSubnets, "the transit subnets"},
		{c.Gateway.MasqueradeSubnets, "the masquerade subnets"}, {c.Gateway.NodeLocalSubnets, "the node-local subnets"},
	} {
		if contains(x.ranges, a) {
			return "an address of " + x.what
		}
	}
	for _, n := range r.Cluster.Nodes {
		if gateway, _ := cluster.Nth(n.PodCIDR(cluster.FamilyOf(a)), claims.PodRouter); gateway == a {
			return "the address of a router on " + n.Name
		}
	}
	return ""
}

// podRange returns the node with an address in its Pod range, empty if there is none.
func (r *reasoner) podRange(a netip.Addr) string {
	for _, n := range r.Cluster.Nodes {
		if contains(n.PodCIDRs, a) {
			return n.Name
		}
	}
	return ""
}

// holder returns the Pod or node with an address, as text; empty if there is none.
func (r *reasoner) holder(a netip.Addr) string {
	for _, p := range r.Cluster.Pods {
		if slices.Contains(p.IPs, a) || slices.Contains(p.Extra, a) {
			return names.Object(p.Owner)
		}
	}
	if _, node := names.Holder(r.Cluster, a); node != "" {
		return "Node " + node
	}
	return ""
}

// nodeName returns the name of the node where the packet ended.
func (r *reasoner) nodeName() string {
	if r.node == nil {
		return "the sender"
	}
	return r.node.Name
}

func clusterRanges(s *cluster.Snapshot) (list []netip.Prefix) {
	for _, c := range s.Config.ClusterSubnets {
		list = append(list, c.CIDR)
	}
	return list
}

func contains(ranges []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}

// listed returns the ranges of a family as text.
func listed(ranges []netip.Prefix, f cluster.Family) string {
	var words []string
	for _, p := range ranges {
		if cluster.FamilyOf(p.Addr()) == f {
			words = append(words, p.String())
		}
	}
	if len(words) == 0 {
		return "none is of " + f.String()
	}
	return names.List(words)
}
