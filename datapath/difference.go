package datapath

import (
	"iter"
	"maps"
	"strings"

	"hairpin/datapath/flow"
	"hairpin/delta"
)

// Difference is a line of the text of a State that only one of two States has.
type Difference struct {
	System string `json:"system"`
	Line   string `json:"line"` // "- " before a missing line, "+ " before an extra one
}

// Comparison is the result of the comparison of a node with its desired State.
type Comparison struct {
	Node        string       `json:"node"`
	Planned     bool         `json:"planned"` // the Filter selects something of the desired State
	Differences []Difference `json:"differences"`
}

// Differences returns the selected lines that differ between the wanted and the found State. It
// ignores a system that the agent would not change, whatever its text: tools can write the same
// thing in several forms. With an Owner, it finds an extra line only if the line has that owner:
// the system stores it, or the line is a flow or group that Adopted gave the owner of the wanted
// one.
func (f Filter) Differences(want, found State) (list []Difference) {
	// The switch itself learns other neighbours.
	found.Bridge.TunnelNeighbors = maps.Clone(found.Bridge.TunnelNeighbors)
	for ip := range found.Bridge.TunnelNeighbors {
		if _, ok := want.Bridge.TunnelNeighbors[ip]; !ok {
			delete(found.Bridge.TunnelNeighbors, ip)
		}
	}
	found = Adopted(want, found)
	for _, p := range parts {
		if !f.selects(p) {
			continue
		}
		for _, line := range lineDiff(p.section(want), p.section(found)) {
			if f.owns(line) {
				list = append(list, Difference{p.system(), line})
			}
		}
	}
	return list
}

// Adopted returns found with parts, flows and groups replaced by equivalent wanted ones. These have
// what a system does not store, such as the owner of a flow, and the notation of the wanted text. A
// found flow or group that differs gets the owner of the wanted one.
func Adopted(want, found State) State {
	for _, p := range parts {
		p.adoptUnchanged(&found, want)
	}
	found.Bridge.Flows = adoptEntries(want.Bridge.Flows, found.Bridge.Flows,
		func(w, f *flow.Flow) bool { return w.String() == f.String() },
		func(w, f flow.Flow) *flow.Flow { f.Owner = w.Owner; return &f })
	found.Bridge.Groups = adoptEntries(want.Bridge.Groups, found.Bridge.Groups, (*flow.Group).Equal,
		func(w, f flow.Group) *flow.Group { f.Owner = w.Owner; return &f })
	return found
}

// adoptEntries returns found with each value replaced by the wanted one of its key if they are the
// same. Otherwise withOwner returns the found value with the owner of the wanted one.
func adoptEntries[K comparable, V any](want, found delta.Map[K, *V], same func(w, f *V) bool,
	withOwner func(w, f V) *V) (out delta.Map[K, *V]) {
	for k, f := range found.All() {
		switch w := want.At(k); {
		case w == nil:
		case w == f || same(w, f):
			f = w
		default:
			f = withOwner(*w, *f)
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
