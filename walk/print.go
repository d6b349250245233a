package walk

import (
	"fmt"
	"strconv"
	"strings"

	"hairpin/cluster"
)

// String returns the walk in the form of the documents. Each step has its place, rule, effect and
// object, the packet if it changed, and the new conntrack entry. The reply's path and the verdict
// follow. Equal Traces give equal text.
func (t Trace) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "from %s: %s\n", t.From, t.Sent)
	printSteps(&b, t.Sent, t.Forward)
	b.WriteString(t.Verdict.forward())
	if len(t.Reply) > 0 {
		b.WriteString("reply\n")
		printSteps(&b, Packet{}, t.Reply)
	}
	if t.Verdict.AnswerReason != "" {
		fmt.Fprintf(&b, "=> %s\n", t.Verdict.AnswerReason)
	}
	return b.String()
}

func printSteps(b *strings.Builder, last Packet, steps []Step) {
	for i := range steps {
		s := &steps[i]
		fmt.Fprintf(b, "%3d %s\n", i+1, strings.TrimPrefix(s.Node+": "+s.Stage, ": "))
		if s.Rule != "" {
			fmt.Fprintf(b, "    %s\n", s.Rule)
		}
		fmt.Fprintf(b, "    -> %s", s.Did)
		if s.Why != (cluster.Owner{}) {
			fmt.Fprintf(b, " [%s]", s.Why)
		}
		b.WriteByte('\n')
		if len(s.Choices) > 1 {
			fmt.Fprintf(b, "    one of %s\n", s.choices())
		}
		if s.After.words() != last.words() {
			fmt.Fprintf(b, "    %s\n", s.After)
		}
		if s.Entry != "" {
			fmt.Fprintf(b, "    CT %s\n", s.Entry)
		}
		last = s.After
	}
}

func (s *Step) choices() string {
	words := make([]string, len(s.Choices))
	for i, c := range s.Choices {
		if words[i] = c.String(); c.Port() == 0 {
			words[i] = c.Addr().String()
		}
	}
	return strings.Join(words, ", ")
}

// forward returns the verdict about the forward path.
func (v Verdict) forward() string {
	switch {
	case v.Delivered:
		return fmt.Sprintf("=> %s; %s sees %s\n", v.Reason, v.At, v.Seen)
	case v.Reason == "":
		return ""
	case v.Rejected, v.Flooded:
		return fmt.Sprintf("=> %s\n", v.Reason)
	}
	return fmt.Sprintf("=> not delivered: %s\n", v.Reason)
}

// String returns "tcp 172.18.0.3:32768 > 10.96.0.11:80", and the mark if there is one.
func (p Packet) String() string {
	if p.Protocol == 0 {
		return ""
	}
	s := p.Protocol.String() + " " + p.words()
	if p.Mark != 0 {
		s += " mark 0x" + strconv.FormatUint(uint64(p.Mark), 16)
	}
	return s
}

// words returns the part of a packet that gets a line when it changes. The step's text has the
// MACs.
func (p Packet) words() string {
	switch {
	case !p.Dst.IsValid():
		return ""
	case !p.Src.IsValid():
		return "> " + endpoint(p.Dst, p.DstPort)
	}
	return endpoint(p.Src, p.SrcPort) + " > " + endpoint(p.Dst, p.DstPort)
}
