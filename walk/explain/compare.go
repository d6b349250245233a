package explain

import (
	"fmt"
	"strings"

	"hairpin/walk/packet"
)

// Difference returns how a packet's path after a change differs from its path before: first the
// verdict, then the decisions of policies and the steps. Removed lines begin with "- ", added ones
// with "+ ". It is empty if path and verdict are the same.
func Difference(before, after *Explanation) string {
	steps := changed("POLICIES", before.decisionLines(), after.decisionLines()) +
		changed("FORWARD", lines(before.Trace.Forward), lines(after.Trace.Forward)) +
		changed("REPLY", lines(before.Trace.Reply), lines(after.Trace.Reply))
	head := ""
	for _, x := range [...][2]string{
		{before.Destination, after.Destination},
		{"endpoint followed: " + followed(before), "endpoint followed: " + followed(after)},
		{before.Sentence(), after.Sentence()}, {"why: " + before.Why().Text, "why: " + after.Why().Text},
	} {
		if x[0] != x[1] {
			head += fmt.Sprintf("- %s\n+ %s\n", x[0], x[1])
		}
	}
	return head + steps
}

func followed(e *Explanation) string {
	for _, x := range e.Endpoints {
		if x.Chosen {
			return x.Addr.String()
		}
	}
	return "none"
}

// changed returns the lines that differ between two lists, below a title; empty if none do.
func changed(title string, before, after []string) string {
	var b strings.Builder
	for _, l := range diffLines(before, after) {
		if l.sign != ' ' {
			fmt.Fprintf(&b, "%c %s\n", l.sign, strings.ReplaceAll(l.text, "\n", fmt.Sprintf("\n%c ", l.sign)))
		}
	}
	if b.Len() == 0 {
		return ""
	}
	return title + "\n" + b.String()
}

func (e *Explanation) decisionLines() (list []string) {
	for i := range e.Policies {
		d := &e.Policies[i]
		list = append(list, strings.Join(append([]string{d.String()}, d.Details()...), "\n    "))
	}
	return list
}

// lines returns steps with their rules and effects.
func lines(list []packet.Step) []string {
	out := make([]string, len(list))
	for i := range list {
		s := &list[i]
		out[i] = fmt.Sprintf("%s\n    %s\n    -> %s", s.At(), s.Rule, s.Did)
	}
	return out
}

type diffLine struct {
	sign byte
	text string
}

// diffLines returns the shortest difference of two short lists.
func diffLines(a, b []string) []diffLine {
	length := make([][]int, len(a)+1) // of the longest common subsequence of a[i:] and b[k:]
	for i := range length {
		length[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for k := len(b) - 1; k >= 0; k-- {
			if a[i] == b[k] {
				length[i][k] = length[i+1][k+1] + 1
			} else {
				length[i][k] = max(length[i+1][k], length[i][k+1])
			}
		}
	}
	var out []diffLine
	i, k := 0, 0
	for i < len(a) || k < len(b) {
		switch {
		case i < len(a) && k < len(b) && a[i] == b[k]:
			out = append(out, diffLine{' ', a[i]})
			i, k = i+1, k+1
		case k == len(b) || i < len(a) && length[i+1][k] >= length[i][k+1]:
			out = append(out, diffLine{'-', a[i]})
			i++
		default:
			out = append(out, diffLine{'+', b[k]})
			k++
		}
	}
	return out
}
