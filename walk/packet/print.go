package packet

import (
	"fmt"
	"strings"

	"hairpin/cluster"
)

// WriteSteps writes the steps of a path in the form of the documents. Each step has its place,
// rule, effect and object, the packet if it changed, and the new conntrack entry. last is the
// packet before the first step.
func WriteSteps(b *strings.Builder, last Packet, steps []Step) {
	for i := range steps {
		s := &steps[i]
		fmt.Fprintf(b, "%3d %s\n", i+1, s.At())
		if s.Rule != "" {
			fmt.Fprintf(b, "    %s\n", s.Rule)
		}
		fmt.Fprintf(b, "    -> %s", s.Did)
		if s.Why != (cluster.Owner{}) {
			fmt.Fprintf(b, " [%s]", s.Why)
		}
		b.WriteByte('\n')
		if choices := s.OneOf(); choices != "" {
			fmt.Fprintf(b, "    one of %s\n", choices)
		}
		if s.After.addresses() != last.addresses() {
			fmt.Fprintf(b, "    %s\n", s.After)
		}
		if s.Entry != "" {
			fmt.Fprintf(b, "    CT %s\n", s.Entry)
		}
		last = s.After
	}
}

// At returns where the step happened: "node-a: br-ex Classifier".
func (s *Step) At() string { return strings.TrimPrefix(s.Node+": "+s.Stage, ": ") }

// OneOf lists the endpoints or next hops of which the step chose one; empty if it had no choice.
func (s *Step) OneOf() string {
	if len(s.Choices) < 2 {
		return ""
	}
	words := make([]string, len(s.Choices))
	for i, c := range s.Choices {
		if words[i] = c.String(); c.Port() == 0 {
			words[i] = c.Addr().String() // a next hop
		}
	}
	return strings.Join(words, ", ")
}
