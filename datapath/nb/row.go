package nb

import (
	"fmt"

	"hairpin/cluster"
)

// Add puts rows into the state.
func (s State) Add(rows ...Row) {
	for _, r := range rows {
		s[r.Key()] = r
	}
}

// Key gives the one key of the table.
func (*Global) Key() Key { return Key{TableGlobal, "."} }

// Key is by name.
func (r *Chassis) Key() Key { return Key{TableChassis, r.Name} }

// Key is by name.
func (r *AddressSet) Key() Key { return Key{TableAddressSet, r.Name} }

// Key is by name.
func (r *Group) Key() Key { return Key{TableGroup, r.Name} }

// Key is by name.
func (r *Router) Key() Key { return Key{TableRouter, r.Name} }

// Key is by name.
func (r *RouterPort) Key() Key { return Key{TableRouterPort, r.Name} }

// Key is by name.
func (r *Switch) Key() Key { return Key{TableSwitch, r.Name} }

// Key is by name.
func (r *SwitchPort) Key() Key { return Key{TableSwitchPort, r.Name} }

// Key is by port and address.
func (r *QoS) Key() Key {
	return Key{TableQoS, fmt.Sprintf("%s %d %s", r.Switch, r.Priority, r.Match)}
}

// Key is the row's identity.
func (r *MACBinding) Key() Key { return Key{TableMACBinding, r.Port + " " + r.IP.String()} }

// Key is by router, kind of match, prefix and next hop: routes that differ in the next hop only are ECMP.
func (r *Route) Key() Key {
	policy := "dst-ip"
	if r.BySource {
		policy = "src-ip"
	}
	return Key{TableRoute, r.Router + " " + policy + " " + r.Prefix.String() + " " + r.NextHop.String()}
}

// Key is by router, priority and match.
func (r *Policy) Key() Key {
	return Key{TablePolicy, fmt.Sprintf("%s %d %s", r.Router, r.Priority, r.Match)}
}

// Key is by router, type, addresses and match.
func (r *NAT) Key() Key {
	return Key{TableNAT, fmt.Sprintf("%s %s %s %s %s", r.Router, r.Type, r.External, r.Logical, r.Match)}
}

// Key is by name.
func (r *LoadBalancer) Key() Key { return Key{TableLoadBalancer, r.Name} }

// Why tells what wanted the row.
func (r *Global) Why() cluster.Owner { return r.Owner }

// Why tells what wanted the row.
func (r *Chassis) Why() cluster.Owner { return r.Owner }

// Why tells what wanted the row.
func (r *AddressSet) Why() cluster.Owner { return r.Owner }

// Why tells what wanted the row.
func (r *Group) Why() cluster.Owner { return r.Owner }

// Why tells what wanted the row.
func (r *Router) Why() cluster.Owner { return r.Owner }

// Why tells what wanted the row.
func (r *RouterPort) Why() cluster.Owner { return r.Owner }

// Why tells what wanted the row.
func (r *Switch) Why() cluster.Owner { return r.Owner }

// Why tells what wanted the row.
func (r *SwitchPort) Why() cluster.Owner { return r.Owner }

// Why tells what wanted the row.
func (r *QoS) Why() cluster.Owner { return r.Owner }

// Why is what wants the row.
func (r *MACBinding) Why() cluster.Owner { return r.Owner }

// Why tells what wanted the row.
func (r *Route) Why() cluster.Owner { return r.Owner }

// Why tells what wanted the row.
func (r *Policy) Why() cluster.Owner { return r.Owner }

// Why tells what wanted the row.
func (r *NAT) Why() cluster.Owner { return r.Owner }

// Why tells what wanted the row.
func (r *LoadBalancer) Why() cluster.Owner { return r.Owner }

func (*Global) row()       {}
func (*Chassis) row()      {}
func (*AddressSet) row()   {}
func (*Group) row()        {}
func (*Router) row()       {}
func (*RouterPort) row()   {}
func (*Switch) row()       {}
func (*SwitchPort) row()   {}
func (*QoS) row()          {}
func (*MACBinding) row()   {}
func (*Route) row()        {}
func (*Policy) row()       {}
func (*NAT) row()          {}
func (*LoadBalancer) row() {}
