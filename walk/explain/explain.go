// Package explain answers a question about a packet, such as "host/node-a to svc/default/web".
//
// Input: a Question, a Snapshot, and the States of the nodes as a Walker. Output: an Explanation,
// which has the Trace of the packet and its reply, the endpoints of the Service and the reason for
// the verdict; as text, Markdown or JSON. Two Explanations can be compared: before and after a
// change (Difference), or the desired with the real state (FindFault). Prove compares one with a
// packet that was really sent.
//
// Package question resolves the words of the question, why finds the reason for the verdict, names
// has the names of objects, and picture draws an Explanation.
//
// Invariants: an Explanation shows each step that the Walker reports, unchanged. Equal input gives
// equal text. What the walk does not know is shown as unknown.
package explain

import (
	"net/netip"
	"slices"
	"strings"

	"hairpin/cluster"
	"hairpin/walk"
	"hairpin/walk/explain/names"
	"hairpin/walk/explain/question"
	"hairpin/walk/explain/why"
)

// Explanation is the answer.
type Explanation struct {
	Question question.Question
	// Destination is the address that the packet is sent to, with its kind: "ClusterIP
	// 10.96.0.10:80", "NodePort of node-a 172.18.0.3:30001".
	Destination string
	Service     string // "default/web:http", empty if the packet is for no Service
	// Endpoints are all endpoints of the Service, in the order of the Snapshot.
	Endpoints []Endpoint
	Trace     walk.Trace
	why       why.Why // the reason for the verdict of the walk; Why may return another one
	fault     *Fault  // set by AddFault; nil: none
	// Policies are the decisions of policies, in the order of the walk. It is empty if no policy
	// selects the sender or the receiver.
	Policies []why.Decision
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

// Why returns the reason for the verdict. If a packet was really sent, and the verdict is not what
// happened to it, that is the reason.
func (e *Explanation) Why() why.Why {
	if p := e.Proof; p != nil && len(p.Different) > 0 && e.why.Reason != why.ReasonDrift {
		return why.Why{Reason: why.ReasonDifferent,
			Text: "the packet that was sent did something else: " + p.Different[0]}
	}
	return e.why
}

// Ask answers a question. An error means that the question makes no sense in this cluster.
func Ask(w *walk.Walker, s *cluster.Snapshot, q question.Question) (*Explanation, error) {
	r, err := question.Resolve(s, q)
	if err != nil {
		return nil, err
	}
	t, failure := w.WalkWithLater(r.From, r.Packet, r.Prefer...)
	return explain(s, q, r, t, failure), nil
}

// Of explains an existing walk.
func Of(s *cluster.Snapshot, q question.Question, t walk.Trace) (*Explanation, error) {
	r, err := question.Resolve(s, q)
	if err != nil {
		return nil, err
	}
	return explain(s, q, r, t, nil), nil
}

func explain(s *cluster.Snapshot, q question.Question, r *question.Request, t walk.Trace,
	failure error) *Explanation {
	e := &Explanation{Question: q, Destination: r.Destination, Trace: t, Failure: failure,
		HostConnections: hostConnections(&t), Policies: why.Decisions(s, &t)}
	if f := r.Frontend; f != nil {
		e.Service = strings.TrimSuffix(f.Owner.Namespace+"/"+f.Owner.Name+":"+f.PortName, ":")
		e.Endpoints = endpoints(s, f, &e.Trace)
	}
	possible := 0
	for i := range e.Endpoints {
		if e.Endpoints[i].Possible {
			possible++
		}
	}
	e.why = why.Of(why.Input{Cluster: s, Trace: &e.Trace, Failure: failure, Service: r.Frontend, Possible: possible,
		Policies: e.Policies})
	return e
}

// endpoints lists a Frontend's endpoints, and which of them were possible and chosen.
func endpoints(s *cluster.Snapshot, f *cluster.Frontend, t *walk.Trace) []Endpoint {
	possible := map[netip.AddrPort]bool{}
	chosen := t.Verdict.Seen.Destination()
	for _, step := range t.Forward {
		for _, c := range step.Choices {
			possible[unmasquerade(s, step.Node, c)] = true
		}
		if balances(step.Stage) && !t.Verdict.Delivered {
			chosen = unmasquerade(s, step.Node, step.After.Destination())
		}
	}
	var list []Endpoint
	for i := range f.Backends {
		b := &f.Backends[i]
		x := Endpoint{Addr: netip.AddrPortFrom(b.Addr, b.Port), Node: names.EndpointNode(s, b),
			State: names.EndpointState(b)}
		x.Owner, _ = names.Holder(s, b.Addr)
		x.Chosen = x.Addr == chosen
		x.Possible = x.Chosen || possible[x.Addr]
		list = append(list, x)
	}
	return list
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
		from, to := original(s.Entry)
		list = append(list, HostConnection{s.Node, from, to})
	}
	return list
}

// original parses the original tuple, the first, of a conntrack entry as walk prints it.
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
