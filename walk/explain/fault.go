package explain

import (
	"fmt"
	"strings"

	"hairpin/cluster"
	"hairpin/walk/explain/why"
	"hairpin/walk/packet"
)

// Fault is the first step of a packet's path where a node deviates from its desired state.
type Fault struct {
	Node   string `json:"node"`
	Stage  string `json:"stage"`
	Wanted string `json:"wanted"` // the desired rule and its effect
	Real   string `json:"real"`   // what the packet meets instead
	Object string `json:"object,omitempty"`
	Repair string `json:"repair,omitempty"` // what the node's agent does about it, by its own report
}

// replyPrefix is before the stage of a Fault on the path of the reply.
const replyPrefix = "reply: "

// FindFault compares the walk through the desired state with the walk through the real one. It
// returns nil if the packet meets the same rules.
func FindFault(wanted, real *Explanation) *Fault {
	for _, w := range [...]struct {
		prefix     string // of the stage
		want, have []packet.Step
	}{{"", wanted.Trace.Forward, real.Trace.Forward}, {replyPrefix, wanted.Trace.Reply, real.Trace.Reply}} {
		for i := range w.want {
			s := &w.want[i]
			if i < len(w.have) && same(s, &w.have[i]) {
				continue
			}
			return &Fault{Node: s.Node, Stage: w.prefix + s.Stage, Wanted: inWords(s), Object: s.Why.String(),
				Real: instead(real, w.have, i)}
		}
		if len(w.have) > len(w.want) {
			s := &w.have[len(w.want)]
			return &Fault{Node: s.Node, Stage: w.prefix + s.Stage, Wanted: "nothing", Real: inWords(s)}
		}
	}
	if was, is := wanted.Sentence(), real.Sentence(); was != is {
		return &Fault{Node: real.Trace.Verdict.At.Node, Stage: "the end", Wanted: was, Real: is}
	}
	return nil
}

func same(a, b *packet.Step) bool {
	return a.Node == b.Node && a.Stage == b.Stage && a.Did == b.Did && a.Rule == b.Rule
}

// instead describes what the packet really meets at a step.
func instead(real *Explanation, have []packet.Step, i int) string {
	if i >= len(have) {
		return strings.TrimSuffix(real.Sentence(), ".")
	}
	return have[i].At() + ": " + inWords(&have[i])
}

func inWords(s *packet.Step) string {
	if s.Rule == "" {
		return s.Did
	}
	return s.Rule + " (" + s.Did + ")"
}

// String returns the fault as several lines.
func (f *Fault) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "FAULT on %s, %s:\n  wanted  %s\n  real    %s\n", f.Node, f.Stage, f.Wanted, f.Real)
	if f.Object != "" {
		fmt.Fprintf(&b, "  object  %s\n", f.Object)
	}
	if f.Repair != "" {
		fmt.Fprintf(&b, "  repair  %s\n", f.Repair)
	}
	return b.String()
}

// AddFault adds a Fault. It becomes the reason if wanted, the walk through the desired state, has
// another verdict.
func (e *Explanation) AddFault(f *Fault, wanted *Explanation) {
	e.fault = f
	if wanted.Sentence() == e.Sentence() {
		return
	}
	e.why = why.Why{Reason: why.ReasonDrift, Object: cluster.ParseOwner(f.Object),
		Text: fmt.Sprintf("%s differs from its desired state in %s; without that: %s", f.Node, f.Stage,
			wanted.why.Text)}
}
