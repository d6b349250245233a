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
		if s.After.addresses() != last.addresses() {
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
