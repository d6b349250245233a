package cluster

import "slices"

// RouteTable is a route table of a host that an EgressService names.
type RouteTable struct {
	Name   string // as in spec.network: the name of a VRF, or the number of a table
	Number int
	VRF    bool
	Links  []string     // the links of its routes and the members of the VRF; sorted
	Routes []TableRoute // only some of them, if there are very many
}

// Table returns the route table that an EgressService names so, or nil.
func (n *Node) Table(name string) *RouteTable {
	i := slices.IndexFunc(n.Tables, func(t RouteTable) bool { return t.Name == name })
	if i < 0 {
		return nil
	}
	return &n.Tables[i]
}

// TableNames returns the route tables that EgressServices name, sorted.
func (s *Snapshot) TableNames() []string {
	var list []string
	for _, e := range s.EgressIPs {
		if e.ByTable() {
			list = append(list, e.Service.Table)
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}
