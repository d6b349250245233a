package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/walk"
)

// The ways in which a packet that was really sent may end for its sender.
const (
	Answered = "answered" // a TCP handshake was made, or a datagram came back
	Refused  = "refused"
	Silent   = "no answer"
)

// Sent is what became of a packet that was really sent.
type Sent struct {
	Protocol string         `json:"protocol"`
	From     netip.AddrPort `json:"from"`
	To       netip.AddrPort `json:"to"`
	Outcome  string         `json:"outcome"`
	Millis   float64        `json:"milliseconds"`
	Detail   string         `json:"detail,omitempty"` // in the words of the kernel
}

// Arrival is a packet as a receiver saw it.
type Arrival struct {
	At   string         `json:"at"` // pod/NAMESPACE/NAME or host/NODE
	From netip.AddrPort `json:"from"`
	To   netip.AddrPort `json:"to"`
}

// Witness is what a node's agent says of its node before and after.
type Witness struct {
	Before, After map[flow.Key]uint64 // packets that each flow of the gateway bridge has counted
	Entries       []string            // of the kernel's conntrack, as walk writes them
	Userspace     bool                // the kernel's conntrack has only the kernel's own zone
}

// Evidence is what shows that a packet met a rule. What neither counts nor remembers shows nothing.
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
	Different []string   `json:"different,omitempty"` // where reality and the walk differ; none: they agree
}

// Prove compares what was sent with the walk, hop by hop.
func (e *Explanation) Prove(s Sent, witnesses map[string]*Witness, arrivals []Arrival, watched bool) *Proof {
	t := &e.Trace
	if s.From.Addr().IsUnspecified() && t.Sent.Src.IsValid() { // a socket that never connected
		s.From = netip.AddrPortFrom(t.Sent.Src, s.From.Port())
	}
	p := &Proof{Sent: s, Arrivals: arrivals, Watched: watched}
	moved := func(x walk.Packet) bool { return x.SrcPort != t.Sent.SrcPort } // a port out of a range may be any of it
	for i := range t.Forward {
		x := &t.Forward[i]
		ev := evidence(x, witnesses[x.Node], moved(x.After) || i > 0 && moved(t.Forward[i-1].After))
		if s.Outcome == Refused && !ev.Seen && PlaceOf(x.Stage).Kind == Host {
			ev = Evidence{} // a reset ends the connection, and its entry
		}
		p.Forward = append(p.Forward, ev)
	}
	for i := range t.Reply {
		x := &t.Reply[i]
		ev := Evidence{}
		if s.Outcome == Answered || s.Outcome == "" && len(arrivals) > 0 || t.Verdict.Rejected && s.Outcome == Refused {
			ev = evidence(x, witnesses[x.Node], true)
		}
		p.Reply = append(p.Reply, ev)
	}
	p.compareEnd(e)
	for i, ev := range p.Forward {
		if ev.Known && !ev.Seen {
			p.differ("%s: %s", at(&t.Forward[i]), ev.Words)
			break // what comes after it follows from it
		}
	}
	for i, ev := range p.Reply {
		if len(p.Different) == 0 && ev.Known && !ev.Seen {
			p.differ("reply, %s: %s", at(&t.Reply[i]), ev.Words)
		}
	}
	return p
}

func (p *Proof) differ(format string, args ...any) {
	p.Different = append(p.Different, fmt.Sprintf(format, args...))
}

// compareEnd compares how it ended for the sender, and what the receiver saw.
func (p *Proof) compareEnd(e *Explanation) {
	v := e.Trace.Verdict
	want := Silent
	switch {
	case v.Delivered && v.Answered:
		want = Answered
	case v.Rejected:
		want = Refused
	}
	// A datagram need not be answered.
	quiet := p.Sent.Protocol == cluster.UDP.String() && p.Sent.Outcome == Silent && want != Silent
	if p.Sent.Outcome != want && !quiet && p.Sent.Outcome != "" {
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

// evidence is what a node says about one step. anyPort tells that the connection's source port is
// not known.
func evidence(s *walk.Step, w *Witness, anyPort bool) Evidence {
	place := PlaceOf(s.Stage)
	switch {
	case w == nil:
		return Evidence{}
	case place.Kind == Bridge:
		f, _, err := flow.ParseFlow(s.Rule)
		if err != nil {
			return Evidence{} // no flow was met
		}
		if place.Name == claims.ServiceBridge { // a key without a bridge is the gateway bridge's
			f.Key.Bridge = place.Name
		}
		after, there := w.After[f.Key]
		switch n := after - w.Before[f.Key]; {
		case !there:
			return Evidence{true, false, "there is no such flow"}
		case n == 0:
			return Evidence{true, false, "the flow counted no packet"}
		case s.Entry != "" && !w.Userspace && !holds(w.Entries, s.Entry, anyPort):
			return Evidence{true, false, "conntrack has no such entry"}
		case n == 1:
			return Evidence{true, true, "1 packet"}
		default:
			return Evidence{true, true, fmt.Sprintf("%d packets", n)}
		}
	case place.Kind == Host && s.Entry != "":
		if holds(w.Entries, s.Entry, anyPort) {
			return Evidence{true, true, "conntrack has the entry"}
		}
		return Evidence{true, false, "conntrack has no such entry"}
	}
	return Evidence{}
}

// holds reports whether an entry is among others; without ports if they are not known.
func holds(entries []string, entry string, anyPort bool) bool {
	return slices.ContainsFunc(entries, func(x string) bool {
		a, b := strings.Fields(x), strings.Fields(entry)
		return slices.EqualFunc(a, b, func(a, b string) bool {
			return a == b || anyPort && (strings.HasPrefix(a, "sport=") && strings.HasPrefix(b, "sport=") ||
				strings.HasPrefix(a, "dport=") && strings.HasPrefix(b, "dport="))
		})
	})
}

// String tells the proof in some lines.
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
