package nb

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"hairpin/datapath/delta"
)

// Delta is a difference of two States.
type Delta = delta.Delta[Key, Row]

// Diff tells what makes have into want. Rows that are the same pointer are taken as equal without a look at them.
func Diff(want, have State) Delta { return delta.Of(want, have, Equal) }

// Compare orders keys by table, in the order in which rows are made, and by name.
func (k Key) Compare(l Key) int {
	return cmp.Or(cmp.Compare(k.Table, l.Table), cmp.Compare(k.Name, l.Name))
}

// Equal tells whether two rows have the same content, the owner included.
func Equal(a, b Row) bool { return a == b || a.Why() == b.Why() && SameContent(a, b) }

// SameContent is Equal without the owner. What is a set in OVN's schema is compared as a set, and a nil map is an
// empty one.
func SameContent(a, b Row) bool {
	switch a := a.(type) {
	case *Global:
		b, ok := b.(*Global)
		return ok && a.Name == b.Name && maps.Equal(a.Options, b.Options)
	case *Chassis:
		b, ok := b.(*Chassis)
		return ok && a.Name == b.Name && a.Hostname == b.Hostname && a.IP == b.IP
	case *AddressSet:
		b, ok := b.(*AddressSet)
		return ok && a.Name == b.Name && sameSet(a.Addresses, b.Addresses, netip.Prefix.Compare)
	case *Group:
		b, ok := b.(*Group)
		return ok && a.Name == b.Name
	case *Router:
		b, ok := b.(*Router)
		return ok && a.Name == b.Name && maps.Equal(a.Options, b.Options) && sameSet(a.Groups, b.Groups, cmp.Compare)
	case *RouterPort:
		b, ok := b.(*RouterPort)
		return ok && a.Name == b.Name && a.Router == b.Router && a.MAC == b.MAC && a.Chassis == b.Chassis &&
			maps.Equal(a.Options, b.Options) && sameSet(a.Networks, b.Networks, netip.Prefix.Compare)
	case *Switch:
		b, ok := b.(*Switch)
		return ok && a.Name == b.Name && maps.Equal(a.OtherConfig, b.OtherConfig) && sameSet(a.Groups, b.Groups, cmp.Compare)
	case *SwitchPort:
		b, ok := b.(*SwitchPort)
		return ok && a.Name == b.Name && a.Switch == b.Switch && a.Type == b.Type &&
			maps.Equal(a.Options, b.Options) && sameSet(a.Addresses, b.Addresses, cmp.Compare) &&
			sameSet(a.PortSecurity, b.PortSecurity, cmp.Compare)
	default:
		return equalUnnamed(a, b)
	}
}

// equalUnnamed is the second half of SameContent: the tables whose rows belong to another row or have VIPs.
func equalUnnamed(a, b Row) bool {
	switch a := a.(type) {
	case *QoS:
		b, ok := b.(*QoS)
		return ok && a.Switch == b.Switch && a.Priority == b.Priority && a.Match == b.Match && a.Mark == b.Mark
	case *MACBinding:
		b, ok := b.(*MACBinding)
		return ok && a.Port == b.Port && a.IP == b.IP && a.MAC == b.MAC
	case *Route:
		b, ok := b.(*Route)
		return ok && a.Router == b.Router && a.Prefix == b.Prefix && a.NextHop == b.NextHop && a.OutPort == b.OutPort && a.BySource == b.BySource
	case *Policy:
		b, ok := b.(*Policy)
		return ok && a.Router == b.Router && a.Priority == b.Priority && a.Match == b.Match && a.Action == b.Action &&
			maps.Equal(a.Options, b.Options) && sameSet(a.NextHops, b.NextHops, netip.Addr.Compare)
	case *NAT:
		b, ok := b.(*NAT)
		return ok && a.Router == b.Router && a.Type == b.Type && a.External == b.External && a.Logical == b.Logical &&
			a.PortRange == b.PortRange && a.Match == b.Match
	case *LoadBalancer:
		b, ok := b.(*LoadBalancer)
		return ok && a.Name == b.Name && a.Protocol == b.Protocol && a.Affinity == b.Affinity &&
			sameVIPs(a.VIPs, b.VIPs) && maps.Equal(a.Options, b.Options) && sameSet(a.Groups, b.Groups, cmp.Compare)
	}
	return false
}

// sameSet compares slices as sets. They are sorted in practice, so the first look decides.
func sameSet[T comparable](a, b []T, compare func(a, b T) int) bool {
	if len(a) != len(b) {
		return false
	}
	return slices.Equal(a, b) || slices.Equal(slices.SortedFunc(slices.Values(a), compare), slices.SortedFunc(slices.Values(b), compare))
}

// sameVIPs compares VIPs as the map that they are in OVN. The order of backends counts: OVN picks by position.
func sameVIPs(a, b []VIP) bool {
	if len(a) != len(b) {
		return false
	}
	equal := func(a, b VIP) bool { return a.Addr == b.Addr && slices.Equal(a.Backends, b.Backends) }
	return slices.EqualFunc(a, b, equal) || slices.EqualFunc(sortedVIPs(a), sortedVIPs(b), equal)
}

func sortedVIPs(vips []VIP) []VIP {
	return slices.SortedFunc(slices.Values(vips), func(a, b VIP) int { return a.Addr.Compare(b.Addr) })
}
