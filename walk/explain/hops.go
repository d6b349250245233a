package explain

import (
	"slices"

	"hairpin/walk/packet"
)

// Hop is a step with its place and its change to the packet.
type Hop struct {
	packet.Step
	Place  Place
	Change string // the packet before and after, empty if it did not change
	Key    bool   // one of the few steps that decide about the packet
}

// ForwardHops returns the packet's hops.
func (e *Explanation) ForwardHops() []Hop {
	return hops(e.Trace.Sent, e.Trace.Forward, e.forwardKeys())
}

// ReplyHops returns the reply's hops, and the reply as it was sent.
func (e *Explanation) ReplyHops() ([]Hop, packet.Packet) {
	return hops(e.replied(), e.Trace.Reply, e.replyKeys()), e.replied()
}

func hops(before packet.Packet, list []packet.Step, keys []int) []Hop {
	out := make([]Hop, len(list))
	for i := range list {
		out[i] = Hop{Step: list[i], Place: PlaceOf(list[i].Stage), Change: changes(before, list[i].After),
			Key: slices.Contains(keys, i)}
		before = list[i].After
	}
	return out
}
