package store

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"
	"sort"

	"hairpin/cluster"
)

// maxPairs limits a Service: the number of its addresses (cluster IP, NodePort, external addresses)
// times the endpoints of each, for all ports.
const maxPairs = 100_000

// target identifies a Service port; the ports of slices with the same target belong to it.
type target struct {
	family   cluster.Family
	protocol cluster.Protocol
	name     string
}

// source is a port of a slice, with all endpoints of the slice.
type source struct {
	slice int
	port  uint16
}

// sources returns the ports of all slices, in the slices' order, except those of a former Service
// with the same name.
func (v *service) sources(uid string) map[target][]source {
	out := map[target][]source{}
	for i, x := range v.slices {
		if uid != "" && x.ServiceUID != "" {
			if x.ServiceUID != uid {
				continue
			}
			x.ServiceUID = uid // share the memory of the text
		}
		for _, p := range x.Ports {
			t := target{x.Family, p.Protocol, p.Name}
			out[t] = append(out[t], source{i, p.Port})
		}
	}
	return out
}

// setBackends sets the endpoints of the Service's Frontends. Frontends with the same sources share
// one list.
func (v *service) setBackends(list []*cluster.Frontend) {
	if len(list) == 0 {
		return
	}
	all, shared := v.sources(list[0].UID), map[string][]cluster.Backend{}
	from, sizes := make([][]source, len(list)), make([]int, len(list))
	for i, f := range list {
		from[i] = all[target{f.Family, f.Protocol, f.PortName}]
		for _, s := range from[i] {
			sizes[i] += len(v.slices[s.slice].accepted)
		}
	}
	limit := limitPerFrontend(list, sizes)
	if limit < math.MaxInt {
		v.refused.Add(list[0].Owner, "spec.ports",
			"the endpoints of all ports and addresses are more than %d: %d endpoints of each port are used", maxPairs,
			limit)
	}
	for i, f := range list {
		for _, x := range v.slices {
			if x.Family == f.Family && x.Triggered.After(f.Triggered) {
				f.Triggered = x.Triggered
			}
		}
		key := keyOf(from[i])
		if _, ok := shared[key]; !ok {
			shared[key] = v.endpoints(from[i], min(sizes[i], limit))
		}
		f.Backends = shared[key]
	}
}

// limitPerFrontend returns the largest number of endpoints that every Frontend may have.
func limitPerFrontend(list []*cluster.Frontend, sizes []int) int {
	fits := func(each int) bool {
		pairs := 0
		for i, f := range list {
			pairs += (1 + min(1, int(f.NodePort)) + len(f.ExternalIPs) + len(f.LoadBalancerIPs)) * min(sizes[i], each)
		}
		return pairs <= maxPairs
	}
	if fits(math.MaxInt) {
		return math.MaxInt
	}
	return max(1, sort.Search(maxPairs, func(n int) bool { return !fits(n + 1) }))
}

func keyOf(list []source) string {
	var key []byte
	for _, s := range list {
		key = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint32(key, uint32(s.slice)), s.port)
	}
	return string(key)
}

// endpoints returns the same as merge. If these are all endpoints of one slice, the slice shares
// the list, which saves memory.
func (v *service) endpoints(from []source, limit int) []cluster.Backend {
	if len(from) != 1 {
		return v.merge(from, limit)
	}
	x, port := v.slices[from[0].slice], from[0].port
	if x.port == port && len(x.Endpoints) == min(len(x.accepted), limit) {
		return x.Endpoints
	}
	out := v.merge(from, limit)
	if len(out) == len(x.Endpoints) {
		x.Endpoints, x.accepted, x.port = out, out, port
	}
	return out
}

// merge returns at most limit endpoints, sorted and without duplicates. If there are more, it takes
// the fittest.
func (v *service) merge(from []source, limit int) []cluster.Backend {
	if limit == 0 {
		return nil
	}
	out := make([]cluster.Backend, 0, limit)
	for fitness := fittest; fitness >= 0; fitness-- {
		for _, s := range from {
			for i := range v.slices[s.slice].accepted {
				b := &v.slices[s.slice].accepted[i]
				if len(out) < limit && fitnessOf(b) == fitness {
					out = append(out, *b)
					out[len(out)-1].Port = s.port
				}
			}
		}
	}
	// The first of several duplicates is kept. The sort is stable, so the names of slices decide
	// last.
	slices.SortStableFunc(out, func(a, b cluster.Backend) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Port, b.Port), preferenceOf(&b).compare(preferenceOf(&a)))
	})
	return slices.CompactFunc(out, func(a, b cluster.Backend) bool { return a.Addr == b.Addr && a.Port == b.Port })
}

// preference orders duplicates of one address and port. Readiness counts first, then a node name,
// then hints. Without the node name, policy Local finds no endpoint; without its hints, the hints
// of all other endpoints are ignored.
type preference struct {
	fitness     int
	node, hints int // 1: the endpoint has a node name, hints for nodes or zones
}

func preferenceOf(b *cluster.Backend) preference {
	p := preference{fitness: fitnessOf(b)}
	if b.Node != "" {
		p.node = 1
	}
	if len(b.ForNodes)+len(b.ForZones) > 0 {
		p.hints = 1
	}
	return p
}

func (p preference) compare(q preference) int {
	return cmp.Or(cmp.Compare(p.fitness, q.fitness), cmp.Compare(p.node, q.node), cmp.Compare(p.hints, q.hints))
}

const fittest = 2

func fitnessOf(b *cluster.Backend) int {
	switch {
	case b.Ready:
		return fittest
	case b.Serving:
		return 1
	}
	return 0
}
