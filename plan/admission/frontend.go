package admission

import (
	"cmp"
	"net/netip"
	"slices"

	"hairpin/cluster"
)

// Frontend is what is served of a cluster.Frontend: it lacks what was rejected, and has what was
// allocated.
type Frontend struct {
	*cluster.Frontend
	NoNodePort []netip.Addr // node addresses at which another Service has the node port
	port       uint16       // allocated proxy port, 0 = none
	group      uint32       // allocated group slot
}

// ProxyPort returns the port of a Frontend at the proxy addresses.
func (f *Frontend) ProxyPort() uint16 { return cmp.Or(f.NodePort, f.AllocatedPort()) }

// AllocatedPort returns the allocated proxy port of a Frontend, also of one that has a node port
// now. Without an allocation, it is the one that it probably had earlier: the first that it tries.
func (f *Frontend) AllocatedPort() uint16 {
	if f.port != 0 {
		return f.port
	}
	return sequenceOf(f.Frontend).at(0)
}

// GroupSlot returns the slot of a Frontend's groups, of SlotBits bits.
func (f *Frontend) GroupSlot() uint32 { return f.group }

// edit changes what is served. The Snapshot's Frontend stays as it is.
func (f *Frontend) edit(change func(*cluster.Frontend)) {
	c := *f.Frontend
	change(&c)
	f.Frontend = &c
}

// same reports whether the same is served, with the same allocations.
func (f *Frontend) same(g *Frontend) bool {
	return f.Frontend == g.Frontend && f.port == g.port && f.group == g.group &&
		slices.Equal(f.NoNodePort, g.NoNodePort)
}
