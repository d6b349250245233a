package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"hairpin/cluster"
	"hairpin/walk"
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

// Why returns the reason for the verdict. If a packet was really sent, and the verdict is not what
// happened to it, that is the reason.
func (e *Explanation) Why() Why {
	if p := e.Proof; p != nil && len(p.Different) > 0 && e.why.Reason != ReasonDrift {
		return Why{Reason: ReasonDifferent, Text: "the packet that was sent did something else: " + p.Different[0]}
	}
	return e.why
}

// AddFault adds a Fault. It becomes the reason if wanted, the walk through the desired state, has
// another verdict.
func (e *Explanation) AddFault(f *Fault, wanted *Explanation) {
	e.fault = f
	if wanted.Sentence() == e.Sentence() {
		return
	}
	e.why = Why{ReasonDrift, fmt.Sprintf("%s differs from its desired state in %s; without that: %s", f.Node, f.Stage,
		wanted.why.Text), cluster.ParseOwner(f.Object)}
}

// reasoner derives the Why of a walk from the cluster and from where the packet ended.
type reasoner struct {
	s *cluster.Snapshot
	e *Explanation
	t *walk.Trace
	f *cluster.Frontend // nil when the packet is for no Service
	// node is where the packet ended, or where it is sent if it met no rule. Nil: outside.
	node *cluster.Node
	last *packet.Step  // nil if there is none
	now  packet.Packet // as it ended
}

func newReasoner(s *cluster.Snapshot, e *Explanation, f *cluster.Frontend) *reasoner {
	r := &reasoner{s: s, e: e, t: &e.Trace, f: f, node: s.Node(e.Trace.From.Node), now: e.Trace.Sent}
	if n := len(r.t.Forward); n > 0 {
		r.last = &r.t.Forward[n-1]
		r.node, r.now = s.Node(r.last.Node), r.last.After
	}
	return r
}

func (r *reasoner) why() Why {
	switch v := &r.t.Verdict; {
	case r.e.Failure != nil:
		return Why{Reason: ReasonUnknown, Text: "the packet met something that Hairpin does not know: " +
			r.e.Failure.Error()}
	case v.Delivered && v.Answered:
		return r.arrived()
	case v.Delivered:
		if w, ok := r.source(); ok {
			return w
		}
		return Why{Reason: ReasonNoReply, Text: "the packet arrives, but " + v.AnswerReason}
	}
	return r.lost()
}

// lost explains a packet that is dropped or rejected.
func (r *reasoner) lost() Why {
	v := &r.t.Verdict
	for _, explains := range []func() (Why, bool){
		r.dhcp, r.denied, r.spoofed, r.service, r.egress, r.port, r.address, r.route,
	} {
		if w, ok := explains(); ok {
			return w
		}
	}
	switch {
	case v.Cause == packet.InPod:
		return Why{Reason: ReasonLoopback, Text: r.now.Dst.String() + " is the loopback of " +
			object(r.t.From.Pod) + " itself"}
	case v.Cause == packet.Learning:
		return Why{Reason: ReasonRetry, Text: "OVN drops the first packet of a client of a Service with session " +
			"affinity; the next one arrives"}
	case v.Cause == packet.ByRule && r.last != nil:
		return r.rule()
	}
	return Why{Reason: ReasonRule, Text: v.Reason}
}

// arrived explains where the packet went, and with which source.
func (r *reasoner) arrived() Why {
	v := &r.t.Verdict
	name := "host " + v.At.Node
	switch {
	case v.At == walk.Point{}:
		name = endpointText(v.Seen.Dst, v.Seen.DstPort) + " outside of the cluster"
	case v.At.Pod != cluster.Owner{}:
		name = object(v.At.Pod) + " on " + v.At.Node
	}
	if r.f != nil {
		w := Why{ReasonEndpoint, object(r.f.Owner), r.f.Owner}
		if r.f.PortName != "" {
			w.Text += " port " + r.f.PortName
		}
		w.Text += " selects " + name + r.among()
		w.Text += "; " + r.seen() + r.announced()
		return w
	}
	to := r.t.Sent.Dst
	switch {
	case v.At == walk.Point{}:
		return Why{ReasonOutside, fmt.Sprintf("%s is outside of the cluster; %s%s", to, r.seen(), r.unserved()),
			r.egressOwner()}
	case v.At.Pod != (cluster.Owner{}):
		return Why{ReasonPod, fmt.Sprintf("%s is the address of %s; %s", to, name, r.seen()), v.At.Pod}
	}
	text := fmt.Sprintf("%s is an address of %s", to, name)
	if p := r.t.Sent.DstPort; firstNodePort <= p && p <= lastNodePort {
		text += fmt.Sprintf(", and no Service has NodePort %d/%s there", p, r.t.Sent.Protocol)
	}
	return Why{ReasonHost, text + r.notRecorded() + "; " + r.seen(), cluster.Owner{Kind: "Node", Name: v.At.Node}}
}

// Kubernetes' default range of NodePorts (--service-node-port-range).
const (
	firstNodePort = 30000
	lastNodePort  = 32767
)

// among describes how many endpoints the load balancer could choose from.
func (r *reasoner) among() string {
	possible, ready := 0, len(usable(r.f.Backends))
	for i := range r.e.Endpoints {
		if r.e.Endpoints[i].Possible {
			possible++
		}
	}
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
		} else if slices.ContainsFunc(r.f.Backends, hinted) {
			text += " (topology hints)"
		}
	}
	return text
}

// seen describes the source address that the receiver sees.
func (r *reasoner) seen() string {
	src := r.t.Verdict.Seen.Src
	if src == r.t.Sent.Src {
		return "it sees the sender's own address " + src.String()
	}
	f, what := cluster.FamilyOf(src), ""
	if e := r.egressIP(src); e != nil {
		what = "an address of " + object(e.Owner)
	}
	for _, n := range r.s.Nodes {
		switch {
		case what != "":
		case src == joinAddress(r.s, n, f):
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

// unserved names the EgressIP that selects the sender and has an address, but not for this
// destination.
func (r *reasoner) unserved() string {
	to, i := r.t.Sent.Dst, slices.IndexFunc(r.s.Pods, func(p *cluster.Pod) bool { return p.Owner == r.t.From.Pod })
	if i < 0 || r.egressIP(r.t.Verdict.Seen.Src) != nil {
		return ""
	}
	var labels map[string]string
	for _, n := range r.s.Namespaces {
		if n.Name == r.t.From.Pod.Namespace {
			labels = n.Labels
		}
	}
	for _, e := range r.s.EgressIPs {
		has := func(a cluster.Assignment) bool { return a.Address.Is4() == to.Is4() }
		if e.Service == nil && !e.Serves(to) && slices.ContainsFunc(e.Assigned, has) && e.Selects(r.s.Pods[i], labels) {
			return fmt.Sprintf("; %s selects %s, but not this destination (spec.destinationCIDRs, spec.excludedCIDRs)",
				object(e.Owner), object(r.t.From.Pod))
		}
	}
	return ""
}

// egressOwner returns the EgressIP or EgressService with the address that the receiver sees.
func (r *reasoner) egressOwner() cluster.Owner {
	if e := r.egressIP(r.t.Verdict.Seen.Src); e != nil {
		return e.Owner
	}
	return cluster.Owner{}
}

// egressIP returns the EgressIP that has an address, or nil.
func (r *reasoner) egressIP(a netip.Addr) *cluster.EgressIP {
	for _, e := range r.s.EgressIPs {
		if slices.Contains(e.Addresses, a) ||
			slices.ContainsFunc(e.Assigned, func(x cluster.Assignment) bool { return x.Address == a }) {
			return e
		}
	}
	return nil
}

// reserved describes an address that Hairpin uses itself; empty if it does not.
func (r *reasoner) reserved(a netip.Addr) string {
	c := &r.s.Config
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
	for _, n := range r.s.Nodes {
		if gateway, _ := cluster.Nth(n.PodCIDR(cluster.FamilyOf(a)), 1); gateway == a {
			return "the address of a router on " + n.Name
		}
	}
	return ""
}

// podRange returns the node with an address in its Pod range, empty if there is none.
func (r *reasoner) podRange(a netip.Addr) string {
	for _, n := range r.s.Nodes {
		if contains(n.PodCIDRs, a) {
			return n.Name
		}
	}
	return ""
}

// holder returns the Pod or node with an address, as text; empty if there is none.
func (r *reasoner) holder(a netip.Addr) string {
	for _, p := range r.s.Pods {
		if slices.Contains(p.IPs, a) || slices.Contains(p.Extra, a) {
			return object(p.Owner)
		}
	}
	if n := nodeOf(r.s, a); n != "" {
		return "Node " + n
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

func nodeOwner(n *cluster.Node) cluster.Owner { return cluster.Owner{Kind: "Node", Name: n.Name} }

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
	return enumerate(words)
}

// object returns "Service default/web".
func object(o cluster.Owner) string { return strings.Replace(o.String(), "/", " ", 1) }

// enumerate returns "a, b and c". Of a long list, it returns the first ones.
func enumerate(words []string) string {
	const most = 5
	if n := len(words); n > most {
		words = append(slices.Clone(words[:most-1]), fmt.Sprintf("%d more", n-most+1))
	}
	if n := len(words); n > 1 {
		return strings.Join(words[:n-1], ", ") + " and " + words[n-1]
	}
	return strings.Join(words, "")
}
