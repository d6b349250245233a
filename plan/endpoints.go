package plan

import (
	"hash/fnv"
	"net/netip"
	"slices"

	"hairpin/cluster"
)

// chosen are a Frontend's endpoints that get new connections on one node: those of the whole cluster, and those of the
// node itself. Each is chosen for itself: ready ones; when there is none, those that still serve while they terminate
// (KEP-1669).
type chosen struct {
	cluster, local []netip.AddrPort
}

// choose looks at where endpoints are first, and whether they are ready then.
func choose(e *Env, f *cluster.Frontend) chosen {
	var c chosen
	near := nearby(e.Node, f.Backends)
	c.cluster = pick(f.Backends, func(b *cluster.Backend) bool { return b.Ready && near(b) })
	if len(c.cluster) == 0 {
		c.cluster = pick(f.Backends, stillServes)
	}
	if !f.ExternalLocal && !f.InternalLocal {
		return c
	}
	here := func(b *cluster.Backend) bool {
		return b.Node == e.Node.Name || b.Node == "" && e.Node.HasAddress(b.Addr)
	}
	c.local = pick(f.Backends, func(b *cluster.Backend) bool { return b.Ready && here(b) })
	if len(c.local) == 0 {
		c.local = pick(f.Backends, func(b *cluster.Backend) bool { return stillServes(b) && here(b) })
	}
	return c
}

func stillServes(b *cluster.Backend) bool { return b.Serving && b.Terminating }

func pick(list []cluster.Backend, fit func(*cluster.Backend) bool) []netip.AddrPort {
	out := make([]netip.AddrPort, 0, len(list))
	for i := range list {
		if b := &list[i]; fit(b) {
			out = append(out, netip.AddrPortFrom(b.Addr, b.Port))
		}
	}
	return out
}

// nearby reads the hints of ready endpoints: those for this node if every one has hints for nodes and one is for this;
// else those for this zone on the same terms; else all (KEP-4444, KEP-3015).
func nearby(n *cluster.Node, list []cluster.Backend) func(*cluster.Backend) bool {
	allNodes, allZones, node, zone := true, true, false, false
	for i := range list {
		b := &list[i]
		if !b.Ready {
			continue
		}
		allNodes, allZones = allNodes && len(b.ForNodes) > 0, allZones && len(b.ForZones) > 0
		if !allNodes && !allZones {
			break
		}
		node = node || slices.Contains(b.ForNodes, n.Name)
		zone = zone || n.Zone != "" && slices.Contains(b.ForZones, n.Zone)
	}
	switch {
	case allNodes && node:
		return func(b *cluster.Backend) bool { return slices.Contains(b.ForNodes, n.Name) }
	case allZones && zone:
		return func(b *cluster.Backend) bool { return slices.Contains(b.ForZones, n.Zone) }
	}
	return func(*cluster.Backend) bool { return true }
}

// steady orders endpoints so that few change their place when one comes or goes. Open vSwitch keeps a client with a place
// in the list, not with an endpoint. Each endpoint, in the order of a hash, takes the first free place of its own sequence.
func steady(list []netip.AddrPort) []netip.AddrPort {
	type ranked struct {
		hash uint64
		at   netip.AddrPort
	}
	order := make([]ranked, 0, len(list))
	for _, a := range list {
		order = append(order, ranked{hash(a), a})
	}
	slices.SortFunc(order, func(a, b ranked) int {
		if a.hash != b.hash {
			if a.hash < b.hash {
				return -1
			}
			return 1
		}
		return a.at.Compare(b.at)
	})
	out := make([]netip.AddrPort, len(list))
	for _, r := range order {
		// Places of a list twice as long, by halves: a list that grows by one moves few of them.
		for x := r.hash; ; x = x*6364136223846793005 + 1442695040888963407 {
			if i := jump(x, len(out)); !out[i].IsValid() {
				out[i] = r.at
				break
			}
		}
	}
	return out
}

func hash(a netip.AddrPort) uint64 {
	h := fnv.New64a()
	b, _ := a.MarshalBinary() // cannot fail
	_, _ = h.Write(b)
	return h.Sum64()
}

// jump is the jump consistent hash (Lamping and Veach, 2014): when n grows by one, one key in n moves, and only to the
// new place.
func jump(key uint64, n int) int {
	b, j := int64(-1), int64(0)
	for j < int64(n) {
		b = j
		key = key*2862933555777941757 + 1
		j = int64(float64(b+1) * (float64(int64(1)<<31) / float64((key>>33)+1)))
	}
	return int(b)
}
