package admission

import (
	"cmp"
	"maps"
	"slices"

	"hairpin/cluster"
	"hairpin/plan/stablehash"
)

// A slot is part of the IDs of a Frontend's OpenFlow groups. A hash of the Frontend's name gives
// the order in which it tries slots, and it gets the first free one. So no name can take a slot
// from another Service. A Frontend keeps its slot while others are added and removed.

// SlotBits is the size of a group slot.
const SlotBits = 27

// firstSlotBits is the size of a first choice: the other bits of it are zero.
const firstSlotBits = 21

func firstSlot(f *cluster.Frontend) uint32 {
	return stablehash.String32(f.Key()) >> (32 - firstSlotBits) << (SlotBits - firstSlotBits)
}

// slotAt returns the slot that a Frontend tries after i others. Only the first may be 0.
func slotAt(f *cluster.Frontend, i int) uint32 {
	if i == 0 {
		return firstSlot(f)
	}
	return max(1, uint32(stablehash.Nth(stablehash.String(f.Key()), i)>>(64-SlotBits)))
}

// groupName identifies a Frontend that has a slot, whether it exists or not.
type groupName struct {
	owner cluster.Owner
	portName
}

func groupNameOf(f *cluster.Frontend) groupName { return groupName{f.Owner, nameOf(f)} }

// groupSlot is a slot that only one Frontend can have.
type groupSlot struct {
	family   cluster.Family
	protocol cluster.Protocol
	slot     uint32
}

// slotPool allocates group slots.
type slotPool struct {
	byName map[groupName]uint32
	taken  map[groupSlot]bool
	// During an update: names that may have gone, and Frontends that need a slot.
	released map[groupName]bool
	requests []*cluster.Frontend
}

// newSlotPool returns a slotPool in which Frontends that request a slot get the one that they had
// in another pool.
func newSlotPool(had *slotPool) *slotPool {
	p := &slotPool{byName: map[groupName]uint32{}, taken: map[groupSlot]bool{}, released: map[groupName]bool{}}
	if had != nil {
		p.byName, p.taken = maps.Clone(had.byName), maps.Clone(had.taken)
		for k := range p.byName {
			p.released[k] = true
		}
	}
	return p
}

// release returns a slot to the pool, unless the Frontend requests one before the end of the
// update.
func (p *slotPool) release(f *cluster.Frontend) { p.released[groupNameOf(f)] = true }

func (p *slotPool) request(f *cluster.Frontend) {
	k := groupNameOf(f)
	delete(p.released, k)
	if _, has := p.byName[k]; !has {
		p.requests = append(p.requests, f)
	}
}

// allocate ends an update: it frees the slots of Frontends that have gone, then allocates slots,
// the oldest Service first.
func (p *slotPool) allocate() {
	for k := range p.released {
		if slot, has := p.byName[k]; has {
			delete(p.byName, k)
			delete(p.taken, groupSlot{k.family, k.protocol, slot})
		}
	}
	slices.SortFunc(p.requests, func(a, b *cluster.Frontend) int { return cmp.Or(a.CompareAge(b), a.Compare(b)) })
	for _, f := range p.requests {
		k := groupNameOf(f)
		if _, has := p.byName[k]; has { // two ports have this name
			continue
		}
		s := groupSlot{f.Family, f.Protocol, firstSlot(f)}
		for i := 1; p.taken[s]; i++ {
			s.slot = slotAt(f, i)
		}
		p.byName[k], p.taken[s] = s.slot, true
	}
	p.released, p.requests = map[groupName]bool{}, nil
}
