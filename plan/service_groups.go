package plan

import (
	"cmp"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/flow"
)

// A Frontend's group has a number of its family and protocol, a slot, and by which of several ways it is served. The first
// choice of a slot is a hash of the Frontend's name. Where another one has it, a Frontend tries others until one is free, so
// names cannot take a slot away from another Service. It keeps the slot while others come and go.
const (
	wayBits  = 2
	slotBits = 27
	hashBits = 21 // of a first choice
)

// Ways to a Frontend's endpoints.
const (
	toAllEndpoints uint8 = iota + 1 // no number is 0
	toInternal                      // policy Local within the cluster
	toOwnPods                       // policy Local for clients outside, who keep their address
)

// slotOf returns the slot that a Frontend tries after i others. 0 is a first choice only.
func slotOf(f *cluster.Frontend, i int) uint32 {
	if i == 0 {
		h := fnv.New32a()
		_, _ = h.Write([]byte(f.Key())) // never fails
		return h.Sum32() >> (32 - hashBits) << (slotBits - hashBits)
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(f.Key()))
	return max(1, uint32(mix(h.Sum64()+uint64(i)*0x9e3779b97f4a7c15)>>(64-slotBits)))
}

// groupKinds are the first bits of groups' numbers: by protocol, and whether it is IPv6.
var groupKinds = map[cluster.Protocol]uint32{cluster.TCP: 0, cluster.UDP: 2, cluster.SCTP: 4}

// groupID is the number of a Frontend's group.
func groupID(f *cluster.Frontend, way uint8) uint32 {
	id := groupKinds[f.Protocol]
	if f.Family == cluster.IPv6 {
		id++
	}
	return (id<<slotBits|cmp.Or(f.Group, slotOf(f, 0)))<<wayBits | uint32(way)
}

// groupName names a Frontend that has a slot, also while it is not there.
type groupName struct {
	owner cluster.Owner
	word
}

// groupSlot is a slot that one Frontend has.
type groupSlot struct {
	family   cluster.Family
	protocol cluster.Protocol
	slot     uint32
}

// groupPool allocates slots. A nil one has none.
type groupPool struct {
	slots map[groupName]uint32
	taken map[groupSlot]bool
	// During an update: the names that may be gone, and the Frontends that need a slot.
	released map[groupName]bool
	requests []*cluster.Frontend
}

// newGroupPool returns a groupPool that keeps the slots of another one, of those Frontends that request them.
func newGroupPool(had *groupPool) *groupPool {
	p := &groupPool{slots: map[groupName]uint32{}, taken: map[groupSlot]bool{}, released: map[groupName]bool{}}
	if had != nil {
		p.slots, p.taken = maps.Clone(had.slots), maps.Clone(had.taken)
		for k := range p.slots {
			p.released[k] = true
		}
	}
	return p
}

func groupNameOf(f *cluster.Frontend) groupName { return groupName{f.Owner, wordOf(f)} }

// release gives a slot back, unless the Frontend requests one before the end of the update.
func (p *groupPool) release(f *cluster.Frontend) {
	if p != nil {
		p.released[groupNameOf(f)] = true
	}
}

func (p *groupPool) request(f *cluster.Frontend) {
	if p == nil {
		return
	}
	k := groupNameOf(f)
	delete(p.released, k)
	if _, has := p.slots[k]; !has {
		p.requests = append(p.requests, f)
	}
}

// allocate ends an update: slots of Frontends that are gone are free, then others choose, the oldest first.
func (p *groupPool) allocate() {
	if p == nil {
		return
	}
	for k := range p.released {
		if slot, has := p.slots[k]; has {
			delete(p.slots, k)
			delete(p.taken, groupSlot{k.family, k.protocol, slot})
		}
	}
	slices.SortFunc(p.requests, func(a, b *cluster.Frontend) int { return cmp.Or(a.CompareAge(b), a.Compare(b)) })
	for _, f := range p.requests {
		k := groupNameOf(f)
		if _, has := p.slots[k]; has { // two ports with one name
			continue
		}
		s := groupSlot{f.Family, f.Protocol, slotOf(f, 0)}
		for i := 1; p.taken[s]; i++ {
			s.slot = slotOf(f, i)
		}
		p.slots[k], p.taken[s] = s.slot, true
	}
	p.released, p.requests = map[groupName]bool{}, nil
}

// grouped gives a Frontend its slot where that is not its first choice.
func (j *judgement) grouped(f *cluster.Frontend) *cluster.Frontend {
	if j.groups == nil {
		return f
	}
	slot := j.groups.slots[groupNameOf(f)]
	if slot == slotOf(f, 0) {
		return f
	}
	out := *f
	out.Group = slot
	return &out
}

// group is the number of a group of endpoints, which is made when it is asked for.
func (w *switchboard) group(x *front, way uint8, to []netip.AddrPort) uint32 {
	k := flow.GroupKey{Bridge: claims.ServiceBridge, ID: groupID(x.Frontend, way)}
	if _, made := w.Groups.Get(k); !made {
		if len(to) > flow.MaxBuckets {
			w.problem(x, "%d of %d endpoints get connections of this node's clients, on each node others: Open vSwitch has no room for more in a group", flow.MaxBuckets, len(to))
			to = w.some(to)
		}
		g := bucketsOf(x, k, way, to)
		w.Groups.Put(k, g)
		if x.Affinity > 0 {
			w.sticks(x, g)
		}
	}
	return k.ID
}

// some chooses as many endpoints as have room in a group. Each node chooses others, so that all get connections, and one that comes or goes
// changes one of the chosen at most.
func (e *Env) some(to []netip.AddrPort) []netip.AddrPort {
	h := fnv.New64a()
	_, _ = h.Write([]byte(e.Node.Name)) // never fails
	node := h.Sum64()
	score := make(map[netip.AddrPort]uint64, len(to))
	for _, a := range to {
		score[a] = mix(hash(a) ^ mix(node))
	}
	to = slices.Clone(to)
	slices.SortFunc(to, func(a, b netip.AddrPort) int { return cmp.Or(cmp.Compare(score[a], score[b]), a.Compare(b)) })
	return to[:flow.MaxBuckets]
}

// bucketsOf makes a group of endpoints.
func bucketsOf(x *front, k flow.GroupKey, way uint8, to []netip.AddrPort) *flow.Group {
	g := &flow.Group{GroupKey: k, Owner: x.Owner}
	// An endpoint has the same id in every group and on every node, unless another one of the group got it before.
	taken := map[uint32]bool{0: true}
	for _, a := range to {
		id := uint32(hash(a)) >> 1
		for taken[id] {
			id++
		}
		taken[id] = true
		ct := flow.CT{Commit: true, Zone: claims.ZoneServices, Table: claims.TableServed, NAT: flow.NAT{Kind: flow.NATDst, Addr: a.Addr(), PortMin: a.Port(), PortMax: a.Port()}}
		if way == toOwnPods {
			ct.Mark, ct.EthSrc = claims.CTMarkOutside, true
		}
		g.Buckets = append(g.Buckets, flow.Bucket{ID: id, CT: ct})
	}
	slices.SortFunc(g.Buckets, func(a, b flow.Bucket) int { return cmp.Compare(a.ID, b.ID) })
	return g
}
