package ui

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/flow"
	"hairpin/report"
	"hairpin/walk"
	"hairpin/walk/explain"
	"hairpin/walk/explain/question"
	"hairpin/walk/packet"
)

// prover sends a packet and compares its walk with what the nodes observed.
type prover struct {
	ask  asker
	errw io.Writer
	o    ExplainOptions
	s    *cluster.Snapshot
	// walk walks the packet of a question through the real state of the nodes.
	walk    func(question.Question) (*explain.Explanation, error)
	facts   map[string]*nodeFacts
	watched []receiver
}

// receiver is a place where the packet may arrive.
type receiver struct {
	at   walk.Point
	port uint16
	id   int
}

// prove sends the packet of an explanation and returns the walk of that packet, with the proof.
func (p *prover) prove(ctx context.Context, e *explain.Explanation) (*explain.Explanation, error) {
	from := e.Trace.From
	if from.Node != "" && p.facts[from.Node] == nil {
		return nil, fmt.Errorf("--send: the agent of %s, where the packet starts, cannot be asked", from.Node)
	}
	receivers, complete := p.receivers(e)
	defer p.unwatch(context.WithoutCancel(ctx))
	for _, w := range receivers {
		r := &report.Send{Protocol: e.Trace.Sent.Protocol, Pod: w.at.Pod, Port: w.port}
		if err := p.json(ctx, w.at.Node, "/watch", r, &w.id); err != nil {
			return nil, err
		}
		p.watched = append(p.watched, w)
	}
	before := p.counters(ctx)
	sent, arrivals, err := p.send(ctx, e)
	if err != nil {
		return nil, err
	}
	after := p.counters(ctx)
	q := e.Question
	if q.FromPort = sent.From.Port(); q.FromPort == 0 && len(arrivals) > 0 {
		q.FromPort = arrivals[0].From.Port() // of an external client
	}
	// The arrival shows which of several endpoints was chosen.
	for _, x := range e.Endpoints {
		if len(arrivals) > 0 && x.Owner == arrivals[0].At && x.Possible && x.Addr.Port() == arrivals[0].To.Port() {
			q.Endpoint = x.Addr.String()
		}
	}
	if e, err = p.walk(q); err != nil {
		return nil, err
	}
	if !complete && len(arrivals) == 0 && choices(e) > 1 {
		// The packet went to one of the endpoints on nodes that cannot be reached: which one is
		// unknown.
		e.Proof = e.Prove(sent, nil, nil, false)
		return e, nil
	}
	observed, err := p.observe(ctx, e, q.FromPort)
	if err != nil {
		return nil, err
	}
	for node, o := range observed {
		o.Before, o.After = before[node], after[node]
	}
	e.Proof = e.Prove(sent, observed, arrivals, complete && len(p.watched) > 0 || len(arrivals) > 0)
	return e, nil
}

// observe returns what each node has of the packet, except its counters. fromPort is the source
// port that was sent.
func (p *prover) observe(ctx context.Context, e *explain.Explanation,
	fromPort uint16) (map[string]*explain.Observation, error) {
	// If the source port is replaced on the path, connections are found by the destination ports
	// instead: the one that was sent, and that of the endpoint.
	ports := []uint16{fromPort}
	if sourceMoves(e) && e.Trace.Sent.DstPort != fromPort {
		ports = []uint16{e.Trace.Sent.DstPort, e.Trace.Verdict.Seen.DstPort}
	}
	observed := map[string]*explain.Observation{}
	for node, f := range p.facts {
		n := f.snapshot.Node(node)
		o := &explain.Observation{Userspace: n == nil || n.Gateway.Userspace}
		for _, port := range ports {
			var entries []string
			r := &report.Send{Protocol: e.Trace.Sent.Protocol, Family: cluster.FamilyOf(e.Trace.Sent.Dst), Port: port}
			if err := p.json(ctx, node, "/connections", r, &entries); err != nil {
				return nil, err
			}
			o.Entries = append(o.Entries, entries...)
		}
		observed[node] = o
	}
	return observed, nil
}

// choices returns the number of endpoints that the packet could go to.
func choices(e *explain.Explanation) (n int) {
	for _, x := range e.Endpoints {
		if x.Possible {
			n++
		}
	}
	return n
}

// sourceMoves reports whether the packet's source port is replaced on its path.
func sourceMoves(e *explain.Explanation) bool {
	return slices.ContainsFunc(e.Trace.Forward,
		func(s packet.Step) bool { return s.After.SrcPort != e.Trace.Sent.SrcPort })
}

// receivers returns the places where the packet may arrive, of nodes with an agent that can be
// reached. complete reports whether there are no others.
func (p *prover) receivers(e *explain.Explanation) (list []receiver, complete bool) {
	complete = true
	add := func(at walk.Point, port uint16) {
		w := receiver{at: at, port: port}
		if at.Node == "" || p.facts[at.Node] == nil {
			complete = false
		} else if !slices.Contains(list, w) {
			list = append(list, w)
		}
	}
	if v := e.Trace.Verdict; v.Delivered {
		add(v.At, v.Seen.DstPort)
	}
	for _, x := range e.Endpoints {
		if name, ok := strings.CutPrefix(x.Owner, "host/"); ok {
			add(walk.Point{Node: name}, x.Addr.Port())
		}
		for _, pod := range p.s.Pods {
			if slices.Contains(pod.IPs, x.Addr.Addr()) {
				add(walk.Point{Node: pod.Node, Pod: pod.Owner}, x.Addr.Port())
			}
		}
	}
	return list, complete
}

// send sends the packet, or waits for it if its source is an external client.
func (p *prover) send(ctx context.Context,
	e *explain.Explanation) (sent explain.Sent, arrivals []explain.Arrival, err error) {
	t := &e.Trace
	to := netip.AddrPortFrom(t.Sent.Dst, t.Sent.DstPort)
	if t.From.Node == "" {
		fmt.Fprintf(p.errw, "send it from outside now, %s to %s: I watch for %s\n", t.Sent.Protocol, to, p.o.Timeout)
		sent = explain.Sent{Protocol: t.Sent.Protocol.String(), To: to}
		arrivals, err = p.await(ctx, p.o.Timeout, 300*time.Millisecond, nil)
		return sent, arrivals, err
	}
	r := &report.Send{Protocol: t.Sent.Protocol, Pod: t.From.Pod, To: to, Timeout: min(p.o.Timeout, 3*time.Second)}
	if err := p.json(ctx, t.From.Node, "/send", r, &sent); err != nil {
		return sent, nil, err
	}
	// Other clients may use the same destination port. If the source port is kept, only packets
	// from this one's port count.
	foreign := func(a explain.Arrival) bool { return a.From.Port() != sent.From.Port() }
	if sourceMoves(e) {
		foreign = nil
	}
	// The packet, and even a reply, may arrive before the receiving agent has read it from its
	// socket.
	limit := 100 * time.Millisecond
	if t.Verdict.Delivered {
		limit = time.Second
	}
	arrivals, err = p.await(ctx, limit, 20*time.Millisecond, foreign)
	return sent, arrivals, err
}

// await waits until a receiver has seen a packet that is not foreign, at most for the duration
// limit.
func (p *prover) await(ctx context.Context, limit, every time.Duration,
	foreign func(explain.Arrival) bool) ([]explain.Arrival, error) {
	for end := time.Now().Add(limit); ; {
		arrivals, err := p.arrived(ctx)
		if foreign != nil {
			arrivals = slices.DeleteFunc(arrivals, foreign)
		}
		if err != nil || len(arrivals) > 0 || len(p.watched) == 0 || time.Now().After(end) {
			return arrivals, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(every):
		}
	}
}

// arrived collects what the receivers have seen.
func (p *prover) arrived(ctx context.Context) (all []explain.Arrival, err error) {
	for _, w := range p.watched {
		var list []explain.Arrival
		if err := p.json(ctx, w.at.Node, "/watched", &report.Send{Id: w.id}, &list); err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	return all, nil
}

func (p *prover) unwatch(ctx context.Context) {
	for _, w := range p.watched {
		var list []explain.Arrival
		if err := p.json(ctx, w.at.Node, "/watch-end", &report.Send{Id: w.id}, &list); err != nil {
			fmt.Fprintf(p.errw, "%s: %v\n", w.at.Node, err) // the agent removes the watch itself later
		}
	}
}

// counters reads the packet counters of Hairpin's flows on the nodes.
func (p *prover) counters(ctx context.Context) map[string]map[flow.Key]uint64 {
	all := map[string]map[flow.Key]uint64{}
	for node := range p.facts {
		counts := map[flow.Key]uint64{}
		text, err := p.ask(ctx, node, "/counts"+report.AsJSON)
		if err == nil {
			err = datapath.Decode(text, &counts)
		}
		if err != nil {
			fmt.Fprintf(p.errw, "%s: /counts: %v\n", node, err)
			continue
		}
		all[node] = counts
	}
	return all
}

func (p *prover) json(ctx context.Context, node, path string, r *report.Send, into any) error {
	body, err := p.ask(ctx, node, path+r.Query())
	if err == nil {
		err = json.Unmarshal(body, into)
	}
	if err != nil {
		return fmt.Errorf("--send: %s of %s: %w", strings.TrimPrefix(path, "/"), node, err)
	}
	return nil
}
