// Package conn describes what conntrack may hold: the endpoints that UDP connections to Services
// may be translated to, and the egress addresses of the host's own links.
//
// UDP connections have no end: a client that keeps sending keeps an entry to a removed endpoint. An
// entry for a known VIP is deleted if its endpoint is not in the wanted State, or if no endpoint is
// left. Entries of endpoints that still serve stay, whatever policies and topology require now.
// kube-proxy does the same.
//
// An egress address that moved to another node, or that no EgressIP has any more, leaves entries,
// too. They would match the first packets of another connection from the same port. A UDP client
// that keeps sending would keep the address for ever.
//
// When the host begins to use another path to a range, older connections keep the source address of
// the old path.
package conn

import (
	"cmp"
	"net/netip"
	"slices"

	"hairpin/cluster"
	"hairpin/delta"
)

// State is a set of translations: those that are allowed (wanted), or those that exist (found).
type State struct {
	UDP    map[netip.AddrPort]Targets // by the VIP: the address and port that the client sends to
	Egress map[netip.Addr]Egress      // by the address that the remote side sees; found: also those of the node
	Ways   map[netip.Prefix]Way       // out of the host, by the destination range; wanted only
}

// Way is the path by which UDP connections to a range leave the host: its source address.
type Way struct {
	Source netip.Addr // all of the connections must have it
	Owner  cluster.Owner
}

// Egress describes an address that the kernel translates the source of connections to.
type Egress struct {
	Elsewhere bool // this node does not translate to it; wanted only
	Owner     cluster.Owner
}

// Targets are the addresses that connections to one VIP are translated to.
type Targets struct {
	Live  []netip.AddrPort // endpoints that serve, sorted
	Steps []netip.AddrPort // intermediate addresses, such as the cluster IP; wanted only, sorted
	Owner cluster.Owner
}

// Pair is a translation: the address that the client sent to, and the one that it became.
type Pair struct{ VIP, To netip.AddrPort }

// Compare orders pairs.
func (p Pair) Compare(q Pair) int { return cmp.Or(p.VIP.Compare(q.VIP), p.To.Compare(q.To)) }

// Delta is the set of entries to delete.
type Delta struct {
	Dead []Pair // sorted
	// Unserved are the VIPs of Dead that have no endpoint now: all connections to them must be
	// deleted, also those with a translation that is not in Dead. Sorted.
	Unserved []netip.AddrPort
	// Revived are the VIPs that had no endpoint until now, or were not known, with their wanted
	// Targets: older connections must be deleted, whatever their endpoint.
	Revived    map[netip.AddrPort]Targets
	LeftEgress []netip.Addr // egress addresses: all of their connections must be deleted; sorted
	// WrongSource are ranges with their source address: UDP connections with another source must be
	// deleted.
	WrongSource map[netip.Prefix]netip.Addr
}

// AddWrongSource adds to WrongSource the ranges with a source address that changed, or was not
// known before.
func (d Delta) AddWrongSource(before, want State) Delta {
	for p, w := range want.Ways {
		if before.Ways[p].Source == w.Source {
			continue
		}
		if d.WrongSource == nil {
			d.WrongSource = map[netip.Prefix]netip.Addr{}
		}
		d.WrongSource[p] = w.Source
	}
	return d
}

// AddLeftEgress adds to LeftEgress the addresses that are now on another node and were not before,
// or were not known, and those that this node translated to and no EgressIP has any more. The found
// State may lack connections that the node made after it was read.
func (d Delta) AddLeftEgress(before, want State) Delta {
	for a, w := range want.Egress {
		if b, known := before.Egress[a]; w.Elsewhere && (!known || !b.Elsewhere) && !slices.Contains(d.LeftEgress, a) {
			d.LeftEgress = append(d.LeftEgress, a)
		}
	}
	for a, b := range before.Egress {
		if _, known := want.Egress[a]; !known && !b.Elsewhere {
			d.LeftEgress = append(d.LeftEgress, a)
		}
	}
	slices.SortFunc(d.LeftEgress, netip.Addr.Compare)
	return d
}

// AddEnded adds the translations that are no longer allowed and were allowed before: the found
// State may lack them.
func (d Delta) AddEnded(before, want State) Delta {
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

// Diff returns the entries that must be deleted.
func Diff(want, have State) Delta {
	var d Delta
	for a, w := range want.Egress {
		if h, there := have.Egress[a]; w.Elsewhere && there && !h.Elsewhere {
			d.LeftEgress = append(d.LeftEgress, a)
		}
	}
	slices.SortFunc(d.LeftEgress, netip.Addr.Compare)
	if delta.Same(want.UDP, have.UDP) {
		return d
	}
	for vip, h := range have.UDP {
		w, known := want.UDP[vip]
		if !known {
			continue
		}
		if len(h.Live) == 0 && len(w.Live) > 0 {
			d.revive(vip, w)
		}
		d.addDead(vip, w, h, want, have)
	}
	d.sort()
	return d
}

// addDead adds the translations of one VIP that must be deleted. have has intermediate addresses if
// it is an earlier wanted State (AddEnded): they change with a Service's port or policy.
func (d *Delta) addDead(vip netip.AddrPort, w, h Targets, want, have State) {
	unserved := len(w.Live) == 0
	gone := unserved && len(h.Live) > 0 // no endpoint serves: no intermediate address leads to one
	for _, to := range slices.Concat(h.Live, h.Steps) {
		if gone || !w.allows(to) {
			d.Dead = append(d.Dead, Pair{vip, to})
			if unserved {
				d.Unserved = append(d.Unserved, vip)
			}
		} else if _, known := want.UDP[to]; !known && slices.Contains(w.Steps, to) {
			d.Dead = append(d.Dead, w.staleSteps(vip, to, have.UDP[to].Live)...)
		}
	}
}

// staleSteps returns the translations by an intermediate address to endpoints that no longer serve,
// for an address that new connections do not use. ends are its translations.
func (t *Targets) staleSteps(vip, step netip.AddrPort, ends []netip.AddrPort) []Pair {
	var dead []Pair
	for _, end := range ends {
		if !slices.Contains(t.Live, end) {
			dead = append(dead, Pair{step, end}, Pair{vip, step})
		}
	}
	return dead
}

// AddRevived adds to Revived the VIPs that are wanted now and were not before: a Service may have
// existed earlier, with other endpoints.
func (d Delta) AddRevived(before, want State) Delta {
	if delta.Same(want.UDP, before.UDP) {
		return d
	}
	for vip, w := range want.UDP {
		if _, known := before.UDP[vip]; !known {
			d.revive(vip, w)
		}
	}
	return d
}

func (d *Delta) revive(vip netip.AddrPort, w Targets) {
	if d.Revived == nil {
		d.Revived = map[netip.AddrPort]Targets{}
	}
	d.Revived[vip] = w
}

func (t *Targets) allows(to netip.AddrPort) bool {
	return slices.Contains(t.Live, to) || slices.Contains(t.Steps, to)
}

// Equal reports whether two Targets are the same.
func (t Targets) Equal(u Targets) bool {
	return t.Owner == u.Owner && slices.Equal(t.Live, u.Live) && slices.Equal(t.Steps, u.Steps)
}

// Grow returns an empty Delta: packets create connections.
func (d Delta) Grow() Delta { return Delta{} }

// Shrink returns d.
func (d Delta) Shrink() Delta { return d }

// Count returns the number of translations to delete, and of addresses and ranges to examine.
func (d Delta) Count() int {
	return len(d.Dead) + len(d.Revived) + len(d.LeftEgress) + len(d.WrongSource)
}

// Empty reports whether there is nothing to do.
func (d Delta) Empty() bool { return d.Count() == 0 }

// Add adds a translation that was found.
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

// AddSource adds the source address of a translated connection that was found.
func (s *State) AddSource(a netip.Addr) {
	if s.Egress == nil {
		s.Egress = map[netip.Addr]Egress{}
	}
	s.Egress[a] = Egress{}
}
