package hostnet

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hairpin/apply/kernel"
	"hairpin/cluster"
	"hairpin/netdev"
)

// FindTables makes scans find the host's route tables with these names, which are those that
// EgressServices use.
func (sc *Scanner) FindTables(names []string) {
	if old := sc.tables.Swap(&names); old == nil && len(names) > 0 || old != nil && !slices.Equal(*old, names) {
		sc.RequestNow()
	}
}

// routeTables finds route tables by name. A name is a VRF's or a number.
func routeTables(names []string) (out []cluster.RouteTable, err error) {
	if len(names) == 0 {
		return nil, nil
	}
	links, err := netdev.List(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("links: %w", err)
	}
	for _, name := range names {
		t := cluster.RouteTable{Name: name}
		t.Number, _ = strconv.Atoi(name) // 0 for a VRF's name
		for _, l := range links {
			if v, ok := l.(*netlink.Vrf); ok && (v.Name == name || int(v.Table) == t.Number) {
				t.Number, t.VRF = int(v.Table), true
			}
		}
		if t.Number == 0 {
			continue
		}
		if err := addContents(&t, links); err != nil {
			return nil, err
		}
		out = append(out, t)
	}
	return out, nil
}

// addContents adds a table's routes and their links.
func addContents(t *cluster.RouteTable, links []netlink.Link) error {
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
		if s, ok := l.Attrs().Slave.(*netlink.VrfSlave); ok && t.VRF && int(s.Table) == t.Number {
			t.Links = append(t.Links, l.Attrs().Name)
		}
	}
	unicast := func(r *netlink.Route) bool { return r.Type == unix.RTN_UNICAST }
	list, err := (kernel.Routes{Table: t.Number, Max: 2 * maxRoutes, Keep: unicast}).List()
	if err != nil {
		return err
	}
	for _, r := range list {
		for _, hop := range netdev.NextHops(&r) {
			name := names[hop.LinkIndex]
			if to, ok := hostRoute(&r, hop.LinkIndex); ok && name != "" {
				t.Links = append(t.Links, name)
				if len(t.Routes) < cluster.MaxTableRoutes {
					t.Routes = append(t.Routes, cluster.TableRoute{To: to.Prefix, Via: to.Via, Dev: name})
				}
			}
		}
	}
	slices.Sort(t.Links)
	t.Links = slices.Compact(t.Links)
	return nil
}
