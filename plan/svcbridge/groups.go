package svcbridge

import (
	"cmp"
	"net/netip"
	"slices"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/pipeline"
	"hairpin/plan/admission"
	"hairpin/plan/node"
	"hairpin/plan/service"
	"hairpin/plan/stablehash"
)

// variantBits is the number of bits of a group's ID that say how the Frontend's endpoints are
// chosen.
const variantBits = 2

// Variants of a Frontend's endpoints.
const (
	toAllEndpoints uint8 = iota + 1 // no ID is 0
	toInternal                      // policy Local within the cluster
	toOwnPods                       // policy Local for external clients, which keep their address
)

// groupKinds has the first bits of group IDs by protocol; IPv6 adds 1.
var groupKinds = map[cluster.Protocol]uint32{cluster.TCP: 0, cluster.UDP: 2, cluster.SCTP: 4}

// groupID returns the ID of a Frontend's group.
func groupID(f *admission.Frontend, variant uint8) uint32 {
	id := groupKinds[f.Protocol]
	if f.Family == cluster.IPv6 {
		id++
	}
	return (id<<admission.SlotBits|f.GroupSlot())<<variantBits | uint32(variant)
}

// group returns the ID of a group of endpoints, and makes the group on first use.
func (w *serviceBridge) group(x *service.Front, variant uint8, to []netip.AddrPort) uint32 {
	k := flow.GroupKey{Bridge: claims.ServiceBridge, ID: groupID(x.Frontend, variant)}
	if _, made := w.Groups.Get(k); !made {
		if len(to) > flow.MaxBuckets {
			w.problem(x,
				"%d of %d endpoints get connections of this node's clients, others on each node: a group of Open "+
					"vSwitch has no more buckets", flow.MaxBuckets, len(to))
			to = sampleEndpoints(w.Env, to)
		}
		g := bucketsOf(x, k, variant, to)
		w.Groups.Put(k, g)
		if x.Affinity > 0 {
			w.learnAffinity(x, g)
		}
	}
	return k.ID
}

// sampleEndpoints chooses as many endpoints as fit in a group. Each node chooses others, so that
// all get connections. An added or removed endpoint changes at most one of the chosen.
func sampleEndpoints(e *node.Env, to []netip.AddrPort) []netip.AddrPort {
	own := stablehash.String(e.Node.Name)
	score := make(map[netip.AddrPort]uint64, len(to))
	for _, a := range to {
		score[a] = stablehash.Mix(stablehash.AddrPort(a) ^ stablehash.Mix(own))
	}
	to = slices.Clone(to)
	slices.SortFunc(to, func(a, b netip.AddrPort) int { return cmp.Or(cmp.Compare(score[a], score[b]), a.Compare(b)) })
	return to[:flow.MaxBuckets]
}

// bucketsOf makes a group of endpoints.
func bucketsOf(x *service.Front, k flow.GroupKey, variant uint8, to []netip.AddrPort) *flow.Group {
	g := &flow.Group{GroupKey: k, Owner: x.Owner}
	// An endpoint has the same ID in every group and on every node, unless another endpoint of the
	// group has taken it.
	taken := map[uint32]bool{0: true}
	for _, a := range to {
		id := uint32(stablehash.AddrPort(a)) >> 1
		for taken[id] {
			id++
		}
		taken[id] = true
		ct := flow.CT{Commit: true, Zone: claims.ZoneServices, Table: pipeline.SvcEgressClassifier,
			NAT: flow.NAT{Kind: flow.NATDst, Addr: a.Addr(), PortMin: a.Port(), PortMax: a.Port()}}
		if variant == toOwnPods {
			ct.Mark, ct.EthSrc = claims.CTMarkOutside, true
		}
		g.Buckets = append(g.Buckets, flow.Bucket{ID: id, CT: ct})
	}
	slices.SortFunc(g.Buckets, func(a, b flow.Bucket) int { return cmp.Compare(a.ID, b.ID) })
	return g
}
