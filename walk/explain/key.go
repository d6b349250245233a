package explain

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"hairpin/walk/packet"
)

// Bounds of the number of key steps of one direction. Only a packet that is lost has a lower bound,
// if its path is long enough.
const (
	fewestKey = 5
	maxKey    = 8
)

// keySteps returns the indexes of the steps that decide about a packet: where it is translated,
// where an endpoint or next hop is chosen, where it goes to another node, where a rule of an object
// other than a Node or Pod applies, and where it ends. Of steps for one object, it returns only the
// last, unless they change the packet. For a lost packet, it adds the last places that it left.
//
// seen is the Evidence for each step, nil without a Proof; fault is the index of the step with the
// Fault, negative if there is none.
func keySteps(before packet.Packet, list []packet.Step, lost bool, seen []Evidence, fault int) []int {
	const ( // in the order of their importance
		translates = iota // changes addresses, or chooses
		ends              // is the last one, has the Fault, or was not met by the packet that was sent
		crosses           // goes to another node or place
		applies           // has a rule of an object
	)
	kinds, last := map[int]int{}, -1
	for i := range list {
		s := &list[i]
		switch {
		case i == fault || i == len(list)-1 || missing(seen, i):
			kinds[i] = ends
		case readdressed(before, s.After) != "" || len(s.Choices) > 1:
			kinds[i] = translates
		case PlaceOf(s.Stage).Kind == Tunnel:
			kinds[i] = crosses
		case ofObject(s):
			kinds[i] = applies
		}
		if last >= 0 && kinds[last] == applies && list[last].Why == s.Why && list[last].Node == s.Node {
			delete(kinds, last)
		}
		if _, ok := kinds[i]; ok {
			last = i
		}
		before = s.After
	}
	for kind := applies; kind > translates && len(kinds) > maxKey; kind-- {
		for i := len(list) - 2; i >= 0 && len(kinds) > maxKey; i-- {
			if k, ok := kinds[i]; ok && k == kind {
				delete(kinds, i)
			}
		}
	}
	for i := len(list) - 2; lost && i >= 0 && len(kinds) < fewestKey; i-- {
		a, b := PlaceOf(list[i].Stage), PlaceOf(list[i+1].Stage)
		if _, ok := kinds[i]; !ok && (a.Kind != b.Kind || a.Name != b.Name) {
			kinds[i] = crosses
		}
	}
	var keys []int
	for i := range list {
		if _, ok := kinds[i]; ok {
			keys = append(keys, i)
		}
	}
	return keys
}

// ofObject reports whether a step's rule belongs to a Service, an EgressIP or a policy.
func ofObject(s *packet.Step) bool {
	return s.Why.Kind != "" && s.Why.Kind != "Node" && s.Why.Kind != "Pod"
}

// readdressed returns how a step changes addresses and ports; empty if it does not.
func readdressed(before, after packet.Packet) string {
	if !before.Dst.IsValid() || !after.Dst.IsValid() {
		return ""
	}
	return after.Changed(&before)
}

// forwardKeys returns the key steps of the packet.
func (e *Explanation) forwardKeys() []int {
	list := e.Trace.Forward
	return keySteps(e.Trace.Sent, list, !e.Trace.Verdict.Delivered, e.Proof.forward(), e.faultAt("", list))
}

// replyKeys returns the key steps of the reply.
func (e *Explanation) replyKeys() []int {
	list := e.Trace.Reply
	return keySteps(e.replied(), list, !e.Trace.Verdict.Answered, e.Proof.reply(), e.faultAt(replyPrefix, list))
}

// faultAt returns the index of the step with the Fault, negative if there is none.
func (e *Explanation) faultAt(prefix string, list []packet.Step) int {
	if e.fault == nil {
		return -1
	}
	return slices.IndexFunc(list, func(s packet.Step) bool {
		return s.Node == e.fault.Node && prefix+s.Stage == e.fault.Stage
	})
}

// keys writes the key steps, a line for each.
func (e *Explanation) keys(b *strings.Builder, c palette) {
	forward, reply := e.forwardKeys(), e.replyKeys()
	all, shown := len(e.Trace.Forward)+len(e.Trace.Reply), len(forward)+len(reply)
	if all == 0 {
		return
	}
	fmt.Fprintf(b, "\n%sSTEPS%s  ", c.place, c.off)
	if shown < all {
		fmt.Fprintf(b, "%d of %d; -v shows all, with their rules\n", shown, all)
	} else {
		fmt.Fprintf(b, "-v shows their rules\n")
	}
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	end := "" // the effect of the last step
	if e.Trace.Verdict.Cause == packet.ByPolicies {
		end = "drops it"
	}
	keyLines(t, c, e.Trace.Sent, e.Trace.Forward, forward, e.Proof.forward(), end)
	if len(reply) > 0 {
		fmt.Fprintf(t, "REPLY\n")
		keyLines(t, c, e.replied(), e.Trace.Reply, reply, e.Proof.reply(), "")
	}
	_ = t.Flush() // a strings.Builder returns no errors
}

func keyLines(w io.Writer, c palette, before packet.Packet, list []packet.Step, keys []int, seen []Evidence,
	end string) {
	for i := range list {
		s := &list[i]
		if !slices.Contains(keys, i) {
			before = s.After
			continue
		}
		did := s.Did
		if words := readdressed(before, s.After); words != "" {
			did = words
		}
		if i == len(list)-1 && end != "" {
			did = end
		}
		if n := len(s.Choices); n > 1 {
			did += fmt.Sprintf(", one of %d", n)
		}
		if ofObject(s) {
			did += fmt.Sprintf("  %s[%s]%s", c.faint, s.Why, c.off)
		}
		if i < len(seen) && seen[i].Known {
			did += "; " + seen[i].line()
		}
		fmt.Fprintf(w, "%3d %s%s%s\t%s\n", i+1, c.place, s.At(), c.off, did)
		before = s.After
	}
}
