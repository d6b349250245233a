// Package conn is what connections over UDP to Services may be translated to, wherever a conntrack holds one.
//
// UDP has no end of a connection: a client that goes on sending keeps an entry to an endpoint that is gone. What the
// wanted State does not have for a known virtual address is such an entry, and is deleted. Those of endpoints that
// still serve stay, whatever policies and topology say now; and so do all when nobody else serves.
package conn

import (
	"cmp"
	"net/netip"
	"slices"

	"hairpin/cluster"
)

// State is the translations of UDP connections, by the address and port that the client asked. Wanted: all that may be.
// Found: those that are.
type State map[netip.AddrPort]Targets

// Targets are where connections of one virtual address go.
type Targets struct {
	Live  []netip.AddrPort // endpoints that serve, sorted
	Steps []netip.AddrPort // addresses on the way to them, such as the cluster IP; wanted only, sorted
	Owner cluster.Owner
}

// Pair is a translation: to whom the client sent, and to whom that went.
type Pair struct{ VIP, To netip.AddrPort }

// Compare orders pairs.
func (p Pair) Compare(q Pair) int { return cmp.Or(p.VIP.Compare(q.VIP), p.To.Compare(q.To)) }

// Delta is the entries to delete.
type Delta struct {
	Dead []Pair // sorted
	// Back is what nobody served until now, or what was not there, as it is wanted: connections of before must go,
	// wherever they lead.
	Back State
}

// Diff gives the entries that must go.
func Diff(want, have State) Delta {
	var d Delta
	for vip, h := range have {
		w, known := want[vip]
		if !known || len(w.Live) == 0 {
			continue
		}
		if len(h.Live) == 0 {
			if d.Back == nil {
				d.Back = State{}
			}
			d.Back[vip] = w
		}
		// What was wanted before has ways to endpoints, too: they change with a Service's port or policy.
		for _, list := range [][]netip.AddrPort{h.Live, h.Steps} {
			for _, to := range list {
				if !w.allows(to) {
					d.Dead = append(d.Dead, Pair{vip, to})
				} else if _, known := want[to]; !known && slices.Contains(w.Steps, to) {
					d.Dead = append(d.Dead, w.formerly(vip, to, have[to].Live)...)
				}
			}
		}
	}
	slices.SortFunc(d.Dead, Pair.Compare)
	d.Dead = slices.Compact(d.Dead)
	return d
}

// formerly gives the entries that must go by a step that no new connection takes: it is known only by where it leads.
func (t *Targets) formerly(vip, step netip.AddrPort, ends []netip.AddrPort) []Pair {
	var dead []Pair
	for _, end := range ends {
		if !slices.Contains(t.Live, end) {
			dead = append(dead, Pair{step, end}, Pair{vip, step})
		}
	}
	return dead
}

// Since adds to Back what is wanted now and was not before: a Service may have been there earlier, with other endpoints.
func (d Delta) Since(before, want State) Delta {
	for vip, w := range want {
		if _, known := before[vip]; known || len(w.Live) == 0 {
			continue
		}
		if d.Back == nil {
			d.Back = State{}
		}
		d.Back[vip] = w
	}
	return d
}

func (t *Targets) allows(to netip.AddrPort) bool {
	return slices.Contains(t.Live, to) || slices.Contains(t.Steps, to)
}

// Equal tells whether two Targets are the same.
func (t Targets) Equal(u Targets) bool {
	return t.Owner == u.Owner && slices.Equal(t.Live, u.Live) && slices.Equal(t.Steps, u.Steps)
}

// Grow is nothing: connections are made by packets.
func (d Delta) Grow() Delta { return Delta{} }

// Shrink is all of it.
func (d Delta) Shrink() Delta { return d }

// Count is the number of translations to end, and of addresses to look at.
func (d Delta) Count() int { return len(d.Dead) + len(d.Back) }

// Empty tells whether there is nothing to do.
func (d Delta) Empty() bool { return len(d.Dead)+len(d.Back) == 0 }

// Add notes a translation that was found.
func (s State) Add(p Pair) {
	t := s[p.VIP]
	if i, there := slices.BinarySearchFunc(t.Live, p.To, netip.AddrPort.Compare); !there {
		t.Live = slices.Insert(t.Live, i, p.To)
		s[p.VIP] = t
	}
}
