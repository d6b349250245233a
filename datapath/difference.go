package datapath

import (
	"iter"
	"maps"
	"strings"

	"hairpin/datapath/flow"
	"hairpin/delta"
)

// Differences returns the lines in which what was found differs from what is wanted. A system that
// the agent would leave alone has none, whatever its text: the tools know several words for the
// same.
func Differences(want, found State) []string {
	// The switch learns further neighbours itself.
	found.Bridge.TunnelNeighbors = maps.Clone(found.Bridge.TunnelNeighbors)
	for ip := range found.Bridge.TunnelNeighbors {
		if _, ok := want.Bridge.TunnelNeighbors[ip]; !ok {
			delete(found.Bridge.TunnelNeighbors, ip)
		}
	}
	return lineDiff(Print(want), Print(Adopted(want, found)))
}

// Adopted puts wanted parts and flows in place of found ones that are the same but for what a
// system cannot keep, such as the object that wanted a flow, and for what the tools have several
// words for.
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

// lineDiff compares two canonical texts as sets of lines. Owners and other comments do not count:
// not every system can keep them.
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

// keyedLines yields the lines of a text with what they are compared by: two bridges may have the
// same flow.
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
