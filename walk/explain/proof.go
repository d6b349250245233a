package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/pipeline"
	"hairpin/walk/packet"
)

// The possible outcomes of a really sent packet for its sender.
const (
	Answered = "answered" // a completed TCP handshake, or a datagram in return
	Refused  = "refused"
	Silent   = "no answer"
)

// Sent is a packet that was really sent, and its outcome.
type Sent struct {
	Protocol string         `json:"protocol"`
	From     netip.AddrPort `json:"from"`
	To       netip.AddrPort `json:"to"`
	Outcome  string         `json:"outcome"`
	Millis   float64        `json:"milliseconds"`
	Detail   string         `json:"detail,omitempty"` // the kernel's message
}

// Arrival is a packet as a receiver saw it.
type Arrival struct {
	At   string         `json:"at"` // pod/NAMESPACE/NAME or host/NODE
	From netip.AddrPort `json:"from"`
	To   netip.AddrPort `json:"to"`
}

// Observation is what an agent observed on its node, before and after the packet.
type Observation struct {
	Before, After map[flow.Key]uint64 // packet counters of Hairpin's flows
	Entries       []string            // of the kernel's conntrack, in walk's format
	Userspace     bool                // the kernel's conntrack has only the kernel's own zone
}

// Evidence shows whether a packet met the rule of a step. A rule that has neither a packet counter
// nor a conntrack entry gives none.
type Evidence struct {
	Known bool   `json:"known"`
	Seen  bool   `json:"seen"`
	Words string `json:"words,omitempty"`
}

// Proof compares a walk with a packet that was really sent.
type Proof struct {
	Sent      Sent       `json:"sent"`
	Arrivals  []Arrival  `json:"arrivals,omitempty"`
	Watched   bool       `json:"watched"` // the receiving side could be watched
	Forward   []Evidence `json:"-"`
	Reply     []Evidence `json:"-"`
	Different []string   `json:"different,omitempty"` // differences between reality and the walk; empty if they agree
}

// forward returns the Evidence for the steps of the packet; nil without a Proof.
func (p *Proof) forward() []Evidence {
	if p == nil {
		return nil
	}
	return p.Forward
}

// reply returns the Evidence for the steps of the reply; nil without a Proof.
func (p *Proof) reply() []Evidence {
	if p == nil {
		return nil
	}
	return p.Reply
}

// missing reports whether a packet that was really sent did not meet the rule of a step.
func missing(seen []Evidence, step int) bool {
	return step < len(seen) && seen[step].Known && !seen[step].Seen
}

// Prove compares the result of a sent packet with the walk, step by step. observed is by node;
// arrivals are complete if watched.
func (e *Explanation) Prove(s Sent, observed map[string]*Observation, arrivals []Arrival, watched bool) *Proof {
	t := &e.Trace
	if s.From.Addr().IsUnspecified() && t.Sent.Src.IsValid() { // the socket never connected
		s.From = netip.AddrPortFrom(t.Sent.Src, s.From.Port())
	}
	p := &Proof{Sent: s, Arrivals: arrivals, Watched: watched}
	// The node chooses a translated source port from a range: it may differ from the walk's.
	moved := func(x packet.Packet) bool { return x.SrcPort != t.Sent.SrcPort }
	for i := range t.Forward {
		x := &t.Forward[i]
		ev := evidence(x, observed[x.Node], moved(x.After) || i > 0 && moved(t.Forward[i-1].After))
		if s.Outcome == Refused && !ev.Seen && PlaceOf(x.Stage).Kind == Host {
			ev = Evidence{} // a reset ends the connection, and removes its entry
		}
		p.Forward = append(p.Forward, ev)
	}
	for i := range t.Reply {
		x := &t.Reply[i]
		ev := Evidence{}
		// Only if there was a reply can its steps be missing.
		if s.Outcome == Answered || s.Outcome == "" && len(arrivals) > 0 || t.Verdict.Rejected && s.Outcome == Refused {
			ev = evidence(x, observed[x.Node], true)
		}
		p.Reply = append(p.Reply, ev)
	}
	p.compareEnd(e)
	for i, ev := range p.Forward {
		if ev.Known && !ev.Seen {
			p.differ("%s: %s", t.Forward[i].At(), ev.Words)
			break // later differences result from it
		}
	}
	for i, ev := range p.Reply {
		if len(p.Different) == 0 && ev.Known && !ev.Seen {
			p.differ("reply, %s: %s", t.Reply[i].At(), ev.Words)
		}
	}
	return p
}

func (p *Proof) differ(format string, args ...any) {
	p.Different = append(p.Different, fmt.Sprintf(format, args...))
}

// compareEnd compares the verdict of the walk with the outcome for the sender and with the packet
// at the receiver.
func (p *Proof) compareEnd(e *Explanation) {
	v := e.Trace.Verdict
	want := Silent
	switch {
	case v.Delivered && v.Answered:
		want = Answered
	case v.Rejected:
		want = Refused
	}
	// A datagram may have no reply.
	noReply := p.Sent.Protocol == cluster.UDP.String() && p.Sent.Outcome == Silent && want != Silent
	if p.Sent.Outcome != want && !noReply && p.Sent.Outcome != "" {
		p.differ("the client got %s (%s); the walk says %s", p.Sent.Outcome, p.Sent.Detail, want)
	}
	if from := e.Trace.Sent.Src; p.Sent.From.IsValid() && from.IsValid() && p.Sent.From.Addr() != from {
		p.differ("it was sent from %s; the walk says %s", p.Sent.From.Addr(), from)
	}
	if !p.Watched {
		return
	}
	fits := func(a Arrival) bool {
		return v.Delivered && a.At == v.At.String() && a.From.Addr() == v.Seen.Src &&
			a.To == netip.AddrPortFrom(v.Seen.Dst, v.Seen.DstPort)
	}
	switch i := slices.IndexFunc(p.Arrivals, fits); {
	case v.Delivered && i < 0 && len(p.Arrivals) == 0:
		p.differ("%s saw nothing of it", v.At)
	case v.Delivered && i < 0:
		p.differ("%s saw %s; the walk says %s", p.Arrivals[0].At, p.Arrivals[0].From, v.Seen.Src)
	case !v.Delivered && len(p.Arrivals) > 0:
		p.differ("%s saw %s", p.Arrivals[0].At, p.Arrivals[0].From)
	}
}

// evidence returns a node's evidence for one step. anyPort: the connection's source port is not
// known.
func evidence(s *packet.Step, o *Observation, anyPort bool) Evidence {
	place := PlaceOf(s.Stage)
	switch {
	case o == nil:
		return Evidence{}
	case place.Kind == Bridge && pipeline.Named(place.Part): // another table has no flows of Hairpin
		f, err := flow.ParseFlow(s.Rule)
		if err != nil {
			return Evidence{} // the rule is no flow
		}
		// Flows of the gateway bridge have no bridge in their keys.
		if len(pipeline.Tables(pipeline.Bridge(place.Name))) > 0 {
			f.Key.Bridge = place.Name
		}
		after, found := o.After[f.Key]
		switch n := after - o.Before[f.Key]; {
		case !found:
			return Evidence{true, false, "there is no such flow"}
		case n == 0:
			return Evidence{true, false, "the flow counted no packet"}
		case s.Entry != "" && !o.Userspace && !holds(o.Entries, s.Entry, anyPort):
			return Evidence{true, false, "conntrack has no such entry"}
		case n == 1:
			return Evidence{true, true, "1 packet"}
		default:
			return Evidence{true, true, fmt.Sprintf("%d packets", n)}
		}
	case place.Kind == Host && s.Entry != "":
		if holds(o.Entries, s.Entry, anyPort) {
			return Evidence{true, true, "conntrack has the entry"}
		}
		return Evidence{true, false, "conntrack has no such entry"}
	}
	return Evidence{}
}

// holds reports whether entries contains an entry; anyPort ignores the ports.
func holds(entries []string, entry string, anyPort bool) bool {
	return slices.ContainsFunc(entries, func(x string) bool {
		a, b := strings.Fields(x), strings.Fields(entry)
		return slices.EqualFunc(a, b, func(a, b string) bool {
			return a == b || anyPort && (strings.HasPrefix(a, "sport=") && strings.HasPrefix(b, "sport=") ||
				strings.HasPrefix(a, "dport=") && strings.HasPrefix(b, "dport="))
		})
	})
}

// String returns the proof as several lines.
func (p *Proof) String() string {
	var b strings.Builder
	s := p.Sent
	if s.Outcome == "" {
		fmt.Fprintf(&b, "WATCHED %s from outside to %s", s.Protocol, s.To)
	} else {
		fmt.Fprintf(&b, "SENT %s %s > %s: %s after %.1f ms", s.Protocol, s.From, s.To, s.Outcome, s.Millis)
	}
	if s.Detail != "" {
		fmt.Fprintf(&b, " (%s)", s.Detail)
	}
	b.WriteByte('\n')
	for _, a := range p.Arrivals {
		fmt.Fprintf(&b, "  %s saw %s > %s\n", a.At, a.From, a.To)
	}
	if !p.Watched {
		b.WriteString("  the receiving side could not be watched\n")
	}
	known, seen := 0, 0
	for _, ev := range slices.Concat(p.Forward, p.Reply) {
		if ev.Known {
			known++
		}
		if ev.Seen {
			seen++
		}
	}
	fmt.Fprintf(&b, "  %d of %d steps leave a trace; seen: %d\n", known, len(p.Forward)+len(p.Reply), seen)
	if len(p.Different) == 0 {
		b.WriteString("The packet did what the walk says.\n")
	}
	for _, d := range p.Different {
		fmt.Fprintf(&b, "DIFFERENT: %s\n", d)
	}
	return b.String()
}

func (ev Evidence) line() string {
	switch {
	case !ev.Known:
		return ""
	case ev.Seen:
		return "seen: " + ev.Words
	}
	return "not seen: " + ev.Words
}
