// Package explain answers a question about a packet, such as "host/node-a to svc/default/web". It
// resolves the names to addresses and follows the packet and its reply. It renders the walk as
// text, Markdown, JSON or SVG, in the form of the design documents.
package explain

import (
	"net/netip"
	"slices"
	"strings"

	"hairpin/cluster"
	"hairpin/walk"
)

// Question is the question to answer, in the form of the command line.
type Question struct {
	From string // one of FromForms
	To   string // one of ToForms
	// DefaultNamespace is that of names without one; empty: default.
	DefaultNamespace string

	Protocol cluster.Protocol // 0: TCP, if the Service has such a port
	Family   cluster.Family   // 0: that of the addresses in the question, else IPv4 if the Service has it
	FromPort uint16           // 0: 32768
	Endpoint string           // which endpoint to follow: ADDRESS, ADDRESS:PORT, pod/… or host/…; empty: the first
	NodePort bool             // send to the Service's NodePort
	// Via is a node. It selects the node of a NodePort, the node for an external packet to another
	// address, or the egress node of a pod's packet if several are possible.
	Via string
}

// Explanation is the answer.
type Explanation struct {
	Question Question
	Way      string // the address used: "ClusterIP 10.96.0.10:80", "NodePort 172.18.0.3:30001 of node-a"
	Service  string // "default/web:http", empty if the packet is for no Service
	// Endpoints are all endpoints of the Service, in the order of the Snapshot.
	Endpoints []Endpoint
	Trace     walk.Trace
	why       Why    // without a Proof
	fault     *Fault // if AddFault has set it
	// Policies are the decisions of policies, in the order of the walk; none if no policy
	// selects a pod at an end of it.
	Policies []Decision
	// Failure describes what the packet met that walk does not know; the Trace ends there. It is
	// nil if the walk is complete.
	Failure error
	// HostConnections are the connections that hosts' kernels see. If one host sees two, they are
	// parts of one connection that the gateway bridge keeps apart.
	HostConnections []HostConnection
	// Proof is set if a packet was really sent.
	Proof *Proof
}

// Endpoint is an endpoint of the Service.
type Endpoint struct {
	Addr  netip.AddrPort
	Owner string // pod/NAMESPACE/NAME or host/NODE, empty if no pod or host of the cluster has the address
	Node  string
	State string // ready, terminating, not ready
	// Chosen reports that the walk followed it, Possible that the load balancer could choose it.
	Chosen, Possible bool
}

// HostConnection is a connection in a kernel's own conntrack zone.
type HostConnection struct {
	Node string
	From netip.AddrPort
	To   netip.AddrPort
}

// Good reports whether the packet and its reply arrived. If a packet was really sent, it must agree
// with the walk as well.
func (e *Explanation) Good() bool {
	return e.Failure == nil && (e.Proof == nil || len(e.Proof.Different) == 0) && e.Trace.Verdict.Delivered &&
		e.Trace.Verdict.Answered
}

// Ask answers a question. An error means that the question makes no sense in this cluster.
func Ask(w *walk.Walker, s *cluster.Snapshot, q Question) (*Explanation, error) {
	a, err := resolve(s, q)
	if err != nil {
		return nil, err
	}
	t, failure := w.WalkOn(a.from, a.packet, a.prefer...)
	return a.explain(s, q, t, failure), nil
}

// Of explains an existing walk.
func Of(s *cluster.Snapshot, q Question, t walk.Trace) (*Explanation, error) {
	a, err := resolve(s, q)
	if err != nil {
		return nil, err
	}
	return a.explain(s, q, t, nil), nil
}

func (a *request) explain(s *cluster.Snapshot, q Question, t walk.Trace, failure error) *Explanation {
	e := &Explanation{Question: q, Way: a.way, Trace: t, Failure: failure, HostConnections: hostConnections(&t),
		Policies: decisions(s, &t)}
	if f := a.frontend; f != nil {
		e.Service = strings.TrimSuffix(f.Owner.Namespace+"/"+f.Owner.Name+":"+f.PortName, ":")
		e.Endpoints = endpoints(s, f, &e.Trace)
	}
	e.why = newReasoner(s, e, a.frontend).why()
	return e
}

// endpoints lists a Frontend's endpoints, and which of them were possible and chosen.
func endpoints(s *cluster.Snapshot, f *cluster.Frontend, t *walk.Trace) []Endpoint {
	possible := map[netip.AddrPort]bool{}
	seen := t.Verdict.Seen
	chosen := netip.AddrPortFrom(seen.Dst, seen.DstPort)
	for _, step := range t.Forward {
		for _, c := range step.Choices {
			possible[unmasquerade(s, step.Node, c)] = true
		}
		if balances(step.Stage) && !t.Verdict.Delivered {
			chosen = unmasquerade(s, step.Node, netip.AddrPortFrom(step.After.Dst, step.After.DstPort))
		}
	}
	var list []Endpoint
	for _, b := range f.Backends {
		x := Endpoint{Addr: netip.AddrPortFrom(b.Addr, b.Port), Node: b.Node, State: state(b), Owner: holder(s, b.Addr)}
		if x.Node == "" {
			x.Node = nodeOf(s, b.Addr)
		}
		x.Chosen = x.Addr == chosen
		x.Possible = x.Chosen || possible[x.Addr]
		list = append(list, x)
	}
	return list
}

func state(b cluster.Backend) string {
	switch {
	case b.Ready:
		return "ready"
	case b.Serving && b.Terminating:
		return "terminating"
	}
	return "not ready"
}

// balances reports whether a stage is one of OVN's load balancers.
func balances(stage string) bool {
	return strings.HasSuffix(stage, " lr_in_dnat") || strings.HasSuffix(stage, " ls_in_lb")
}

// unmasquerade returns a node's own address instead of the masquerade address that its gateway
// router uses for it.
func unmasquerade(s *cluster.Snapshot, node string, a netip.AddrPort) netip.AddrPort {
	n := s.Node(node)
	if n == nil || !slices.ContainsFunc(s.Config.Gateway.MasqueradeSubnets,
		func(p netip.Prefix) bool { return p.Contains(a.Addr()) }) {
		return a
	}
	return netip.AddrPortFrom(n.Address(cluster.FamilyOf(a.Addr())), a.Port())
}

// hostConnections collects the conntrack entries of hosts' kernels. The first packet creates all of
// them.
func hostConnections(t *walk.Trace) []HostConnection {
	var list []HostConnection
	for _, s := range t.Forward {
		if s.Entry == "" || PlaceOf(s.Stage).Kind != Host {
			continue
		}
		var b HostConnection
		b.Node = s.Node
		b.From, b.To = original(s.Entry)
		list = append(list, b)
	}
	return list
}

// original parses the first tuple of an entry as walk prints it.
func original(entry string) (from, to netip.AddrPort) {
	var src, dst, sport, dport string
	for _, w := range strings.Fields(entry) {
		k, v, _ := strings.Cut(w, "=")
		switch {
		case k == "src" && src == "":
			src = v
		case k == "dst" && dst == "":
			dst = v
		case k == "sport" && sport == "":
			sport = v
		case k == "dport" && dport == "":
			dport = v
		}
	}
	return addrPort(src, sport), addrPort(dst, dport)
}

func addrPort(addr, port string) netip.AddrPort {
	if strings.Contains(addr, ":") {
		addr = "[" + addr + "]"
	}
	p, err := netip.ParseAddrPort(addr + ":" + port)
	if err != nil {
		return netip.AddrPort{}
	}
	return p
}

// holder returns the pod or host that has an address.
func holder(s *cluster.Snapshot, a netip.Addr) string {
	for _, p := range s.Pods {
		if slices.Contains(p.IPs, a) {
			return "pod/" + p.Owner.Namespace + "/" + p.Owner.Name
		}
	}
	for _, n := range s.Nodes {
		if n.HasAddress(a) || slices.Contains(n.Addresses, a) {
			return "host/" + n.Name
		}
	}
	return ""
}

func nodeOf(s *cluster.Snapshot, a netip.Addr) string {
	for _, p := range s.Pods {
		if slices.Contains(p.IPs, a) {
			return p.Node
		}
	}
	for _, n := range s.Nodes {
		if n.HasAddress(a) || slices.Contains(n.Addresses, a) {
			return n.Name
		}
	}
	return ""
}
