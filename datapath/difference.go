package datapath

import (
	"iter"
	"maps"
	"strings"

	"hairpin/datapath/flow"
	"hairpin/delta"
)

// Differences returns the lines that differ between the wanted and the found State. It ignores a
// system that the agent would not change, whatever its text: tools can write the same thing in
// several forms.
func Differences(want, found State) []string {
	// The switch itself learns other neighbours.
	found.Bridge.TunnelNeighbors = maps.Clone(found.Bridge.TunnelNeighbors)
	for ip := range found.Bridge.TunnelNeighbors {
		if _, ok := want.Bridge.TunnelNeighbors[ip]; !ok {
			delete(found.Bridge.TunnelNeighbors, ip)
		}
	}
	return lineDiff(Print(want), Print(Adopted(want, found)))
}

// Adopted replaces found parts and flows by wanted ones that are equivalent. It ignores what a
// system cannot store, such as the owner of a flow, and differences in the notation of the tools.
func Adopted(want, found State) State {
	for _, p := range parts {
		p.adopt(&found, want)
	}
	found.Bridge.Flows = adopted(want.Bridge.Flows, found.Bridge.Flows,
		func(w, f *flow.Flow) bool { return w.String() == f.String() })
	found.Bridge.Groups = adopted(want.Bridge.Groups, found.Bridge.Groups, (*flow.Group).Equal)
	return found
}

func adopted[K comparable, V any](want, found delta.Map[K, *V], same func(w, f *V) bool) (out delta.Map[K, *V]) {
	for k, f := range found.All() {
		if w := want.At(k); w != nil && (w == f || same(w, f)) {
			f = w
		}
		out.Put(k, f)
	}
	return out
}

// lineDiff compares two canonical texts as sets of lines. It ignores owners and other comments: not
// every system can store them.
func lineDiff(wanted, found string) []string {
	want, have := map[string]bool{}, map[string]bool{}
	for key := range keyedLines(wanted) {
		want[key] = true
	}
	for key := range keyedLines(found) {
		have[key] = true
	}
	var out []string
	for key, l := range keyedLines(wanted) {
		if !have[key] {
			out = append(out, "- "+l)
		}
	}
	for key, l := range keyedLines(found) {
		if !want[key] {
			out = append(out, "+ "+l)
		}
	}
	return out
}

// keyedLines yields the lines of a text with their keys for comparison. The key contains the
// bridge, as two bridges may have the same flow.
func keyedLines(text string) iter.Seq2[string, string] {
	return func(yield func(key, line string) bool) {
		bridge := ""
		for line := range strings.SplitSeq(text, "\n") {
			words, _, _ := strings.Cut(line, " # ")
			words = strings.TrimSpace(words)
			switch {
			case words == "" || strings.HasPrefix(words, "#"):
				bridge = ""
				continue
			case strings.HasPrefix(words, "bridge "):
				bridge = words
			}
			if !yield(bridge+" "+words, line) {
				return
			}
		}
	}
}
