package kernel

import (
	"errors"

	"golang.org/x/sys/unix"

	"hairpin/apply/inside"
	"hairpin/cluster"
	"hairpin/datapath/host"
	"hairpin/delta"
)

// Objects are deleted by the message with which the kernel lists them, as "ip … flush" does: it has
// more attributes than package host knows.

// delete deletes an object. A missing one is no error.
func (a *applying) delete(kind int, raw []byte, command string) {
	err := a.t.send(kind, 0, payload(raw))
	for _, missing := range []error{unix.ESRCH, unix.ENOENT, unix.EADDRNOTAVAIL, unix.ENODEV} {
		if errors.Is(err, missing) {
			return
		}
	}
	a.try(err, "%s", command)
}

func (a *applying) deleteRules(rules map[host.Rule]cluster.Owner) {
	if len(rules) == 0 {
		return
	}
	list, err := a.t.listRules()
	a.try(err, "rules")
	for _, f := range list {
		if _, unwanted := rules[f.rule]; unwanted {
			a.delete(unix.RTM_DELRULE, f.raw, "ip rule del")
		}
	}
}

func (a *applying) deleteRoutes(routes map[host.RouteKey]host.Route) {
	a.eachRoute(routes,
		func(f foundRoute) { a.delete(unix.RTM_DELROUTE, f.raw, "ip route del "+f.key.Prefix.String()) })
}

// deleteVariants deletes Hairpin's routes that a new route of the same key would not replace: those
// with another metric or type.
func (a *applying) deleteVariants(routes map[host.RouteKey]host.Route) {
	a.eachRoute(routes, func(f foundRoute) {
		if !f.plain {
			a.delete(unix.RTM_DELROUTE, f.raw, "ip route del "+f.key.Prefix.String())
		}
	})
}

// eachRoute calls do with Hairpin's routes that have these keys.
func (a *applying) eachRoute(routes map[host.RouteKey]host.Route, do func(foundRoute)) {
	if len(routes) == 0 {
		return
	}
	list, err := a.t.listRoutes()
	a.try(err, "routes")
	for _, f := range list {
		if _, has := routes[f.key]; has {
			do(f)
		}
	}
}

func (a *applying) deleteNeighbors(neighbors map[host.NeighborKey]host.Neighbor) {
	if len(neighbors) == 0 {
		return
	}
	indexes := map[string]int{}
	for k := range neighbors {
		if l, err := a.t.links.LinkByName(k.Link); err == nil {
			indexes[k.Link] = l.Attrs().Index
		}
	}
	list, err := a.t.listNeighbors()
	a.try(err, "neighbours")
	for _, f := range list {
		for k := range neighbors {
			if f.permanent && f.ip == k.IP && f.link == indexes[k.Link] {
				a.delete(unix.RTM_DELNEIGH, f.raw, "ip neigh del "+f.ip.String())
			}
		}
	}
}

func (a *applying) deleteAddresses(addresses map[host.AddressKey]host.Address) {
	if len(addresses) == 0 {
		return
	}
	list, err := a.t.listAddresses()
	a.try(err, "addresses")
	for k := range addresses {
		l, err := a.t.links.LinkByName(k.Link)
		if err != nil {
			continue // removed with its addresses
		}
		for _, f := range list {
			if f.link == l.Attrs().Index && f.prefix == k.Prefix {
				a.delete(unix.RTM_DELADDR, f.raw, "ip addr del "+k.Prefix.String()+" dev "+k.Link)
			}
		}
	}
}

// deleteSysctls restores the former values of sysctls.
func (a *applying) deleteSysctls(sysctls map[string]host.Sysctl) {
	if len(sysctls) == 0 {
		return
	}
	a.try(inside.Do(a.t.config.NetNS, func() error {
		return formerFile(a.t.config.Former).restore(delta.Keys(sysctls))
	}), "sysctls")
}
