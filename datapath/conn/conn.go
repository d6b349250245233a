// Package conn is what conntrack may hold: the endpoints that UDP connections to Services may be
// translated to, and the egress addresses of the host's own links.
//
// UDP connections have no end: a client that keeps sending keeps an entry to a removed endpoint. An
// entry for a known virtual address whose endpoint is not in the wanted State is deleted, also when
// no endpoint is left. Entries of endpoints that still serve stay, whatever policies and topology
// say now. kube-proxy does the same.
//
// An egress address that moved to another node leaves entries, too. When it comes back, or while it
// is moving, they would match the first packets of another connection from the same port.
//
// When the host begins to send to a range by another way, connections of before keep the source
// that they had there.
package conn

import (
	"cmp"
	"net/netip"
	"slices"

	"hairpin/cluster"
	"hairpin/delta"
)

// State is translations. Wanted: all that may be. Found: those that are.
type State struct {
	UDP    map[netip.AddrPort]Targets // by the address and port that the client asked
	Egress map[netip.Addr]Egress      // by the address that the other side sees; found: of the node, too
	Ways   map[netip.Prefix]Way       // by the range of what is asked; wanted only
}

// Way is how UDP connections to a range leave the host.
type Way struct {
	Source netip.Addr // with which all must leave
	Owner  cluster.Owner
}

// Egress is an address whose connections the kernel remembers.
type Egress struct {
	Elsewhere bool // this node does not translate to it; wanted only
	Owner     cluster.Owner
}

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
	// Unserved are the virtual addresses of Dead that have no endpoint now: all connections to them
	// must go. Sorted.
	Unserved []netip.AddrPort
	// Back is the virtual addresses that had no endpoint until now, or were not known, as they are
	// wanted: connections of before must go, wherever they lead.
	Back map[netip.AddrPort]Targets
	Left []netip.Addr // egress addresses, all connections of which must go; sorted
	// ranges, UDP connections to which must go that leave the host with another address than this
	Strays map[netip.Prefix]netip.Addr
}

// Turn adds to Strays the ranges whose way is another by now, or was not known.
func (d Delta) Turn(before, want State) Delta {
	for p, w := range want.Ways {
		if before.Ways[p].Source == w.Source {
			continue
		}
		if d.Strays == nil {
			d.Strays = map[netip.Prefix]netip.Addr{}
		}
		d.Strays[p] = w.Source
	}
	return d
}

// Leave adds to Left the addresses that are elsewhere by now, and were not before, or not known:
// what was found when the node still translated to them lacks what came later.
func (d Delta) Leave(before, want State) Delta {
	for a, w := range want.Egress {
		if b, known := before.Egress[a]; w.Elsewhere && (!known || !b.Elsewhere) && !slices.Contains(d.Left, a) {
			d.Left = append(d.Left, a)
		}
	}
	slices.SortFunc(d.Left, netip.Addr.Compare)
	return d
}

// End adds the translations that may be no longer and could be before: what was found may lack
// them.
func (d Delta) End(before, want State) Delta {
	ended := Diff(want, before)
	d.Dead, d.Unserved = slices.Concat(d.Dead, ended.Dead), slices.Concat(d.Unserved, ended.Unserved)
	d.sort()
	return d
}

func (d *Delta) sort() {
	slices.SortFunc(d.Dead, Pair.Compare)
	slices.SortFunc(d.Unserved, netip.AddrPort.Compare)
	d.Dead, d.Unserved = slices.Compact(d.Dead), slices.Compact(d.Unserved)
}

// Diff returns the entries that must go.
func Diff(want, have State) Delta {
	var d Delta
	for a, w := range want.Egress {
		if h, there := have.Egress[a]; w.Elsewhere && there && !h.Elsewhere {
			d.Left = append(d.Left, a)
		}
	}
	slices.SortFunc(d.Left, netip.Addr.Compare)
	if delta.Same(want.UDP, have.UDP) {
		return d
	}
	for vip, h := range have.UDP {
		w, known := want.UDP[vip]
		if !known {
			continue
		}
		if len(h.Live) == 0 && len(w.Live) > 0 {
			d.back(vip, w)
		}
		gone := len(w.Live) == 0 && len(h.Live) > 0 // nothing serves: no step leads anywhere
		// What was wanted before has ways to endpoints, too: they change with a Service's port or
		// policy.
		for _, list := range [][]netip.AddrPort{h.Live, h.Steps} {
			for _, to := range list {
				if gone || !w.allows(to) {
					d.Dead = append(d.Dead, Pair{vip, to})
					if len(w.Live) == 0 {
						d.Unserved = append(d.Unserved, vip)
					}
				} else if _, known := want.UDP[to]; !known && slices.Contains(w.Steps, to) {
					d.Dead = append(d.Dead, w.formerly(vip, to, have.UDP[to].Live)...)
				}
			}
		}
	}
	d.sort()
	return d
}

// formerly returns the entries that must go by a step that no new connection takes: it is known
// only by where it leads.
func (t *Targets) formerly(vip, step netip.AddrPort, ends []netip.AddrPort) []Pair {
	var dead []Pair
	for _, end := range ends {
		if !slices.Contains(t.Live, end) {
			dead = append(dead, Pair{step, end}, Pair{vip, step})
		}
	}
	return dead
}

// Since adds to Back what is wanted now and was not before: a Service may have been there earlier,
// with other endpoints.
func (d Delta) Since(before, want State) Delta {
	if delta.Same(want.UDP, before.UDP) {
		return d
	}
	for vip, w := range want.UDP {
		if _, known := before.UDP[vip]; !known {
			d.back(vip, w)
		}
	}
	return d
}

func (d *Delta) back(vip netip.AddrPort, w Targets) {
	if d.Back == nil {
		d.Back = map[netip.AddrPort]Targets{}
	}
	d.Back[vip] = w
}

func (t *Targets) allows(to netip.AddrPort) bool {
	return slices.Contains(t.Live, to) || slices.Contains(t.Steps, to)
}

// Equal reports whether two Targets are the same.
func (t Targets) Equal(u Targets) bool {
	return t.Owner == u.Owner && slices.Equal(t.Live, u.Live) && slices.Equal(t.Steps, u.Steps)
}

// Grow is nothing: connections are made by packets.
func (d Delta) Grow() Delta { return Delta{} }

// Shrink is all of it.
func (d Delta) Shrink() Delta { return d }

// Count is the number of translations to end, and of addresses and ranges to look at.
func (d Delta) Count() int { return len(d.Dead) + len(d.Back) + len(d.Left) + len(d.Strays) }

// Empty reports whether there is nothing to do.
func (d Delta) Empty() bool { return d.Count() == 0 }

// Add notes a translation that was found.
func (s *State) Add(p Pair) {
	if s.UDP == nil {
		s.UDP = map[netip.AddrPort]Targets{}
	}
	t := s.UDP[p.VIP]
	if i, there := slices.BinarySearchFunc(t.Live, p.To, netip.AddrPort.Compare); !there {
		t.Live = slices.Insert(t.Live, i, p.To)
		s.UDP[p.VIP] = t
	}
}

// AddSource notes the address that a translated connection was found to come from.
func (s *State) AddSource(a netip.Addr) {
	if s.Egress == nil {
		s.Egress = map[netip.Addr]Egress{}
	}
	s.Egress[a] = Egress{}
}
