package annotation

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"hairpin/cluster"
)

// hostLinkJSON is one entry of HostLinks.
type hostLinkJSON struct {
	Name      string          `json:"name"`
	Index     int             `json:"index"`
	MAC       string          `json:"mac-address,omitempty"`
	Table     int             `json:"vrf-table,omitempty"`
	MTU       int             `json:"mtu,omitempty"`
	Addresses []string        `json:"ip-addresses"`
	Routes    []hostRouteJSON `json:"routes,omitempty"`
}

type hostRouteJSON struct {
	To  string `json:"to"`
	Via string `json:"via,omitempty"`
}

// maxPublishedRoutes is the largest number of routes of a link in the annotation. They serve to
// explain packets' paths; the node itself knows them all.
const maxPublishedRoutes = 32

// FormatHostLinks returns the value of HostLinks.
func FormatHostLinks(list []cluster.HostLink) string {
	out := make([]hostLinkJSON, 0, len(list))
	for _, l := range list {
		j := hostLinkJSON{Name: l.Name, Index: l.Index, Table: l.Table, MTU: l.MTU}
		if l.MAC != (cluster.MAC{}) {
			j.MAC = l.MAC.String()
		}
		for _, a := range l.Addresses {
			j.Addresses = append(j.Addresses, a.String())
		}
		for _, r := range l.Routes[:min(len(l.Routes), maxPublishedRoutes)] {
			to := hostRouteJSON{To: r.Prefix.String()}
			if r.Via.IsValid() {
				to.Via = r.Via.String()
			}
			j.Routes = append(j.Routes, to)
		}
		out = append(out, j)
	}
	text, err := json.Marshal(out)
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	return string(text)
}

// ParseHostLinks reads the output of FormatHostLinks. If the text is no JSON list of links, it
// returns nil, as for a node without the annotation; else a list that is not nil, even if empty.
func ParseHostLinks(text string) ([]cluster.HostLink, []error) {
	var list []hostLinkJSON
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, invalid{fmt.Errorf("not the expected JSON list: %w", err)}
	}
	var wrong invalid
	links := []cluster.HostLink{}
	for _, j := range list {
		switch {
		case !cluster.IsLinkName(j.Name):
			wrong.add("name: %q is not a link's name", j.Name)
		case slices.ContainsFunc(links, func(m cluster.HostLink) bool { return m.Name == j.Name }):
			wrong.add("name: %s is given twice", j.Name)
		case j.Index < 1 || j.Index > 1<<24:
			wrong.add("%s: index: %d is not a link's number", j.Name, j.Index)
		case j.Table < 0 || j.Table > 1<<31-1:
			wrong.add("%s: vrf-table: %d is not a table's number", j.Name, j.Table)
		default:
			links = append(links, wrong.hostLink(j))
		}
	}
	slices.SortFunc(links, func(a, b cluster.HostLink) int { return strings.Compare(a.Name, b.Name) })
	return links, wrong
}

// hostLink reads the addresses and routes of a link.
func (x *invalid) hostLink(j hostLinkJSON) cluster.HostLink {
	l := cluster.HostLink{Name: j.Name, Index: j.Index, Table: j.Table, MTU: j.MTU}
	if j.MAC != "" {
		var err error
		if l.MAC, err = cluster.ParseMAC(j.MAC); err != nil {
			x.add("%s: mac-address: %w", j.Name, err)
		}
	}
	for _, text := range j.Addresses {
		if a, ok := cluster.ParsePrefix(text); ok {
			l.Addresses = append(l.Addresses, a)
		} else {
			x.add("%s: ip-addresses: %q is not an address with a prefix length", j.Name, text)
		}
	}
	for _, r := range j.Routes {
		to, ok := cluster.ParsePrefix(r.To)
		if !ok {
			x.add("%s: routes: %q is not a range", j.Name, r.To)
			continue
		}
		route := cluster.HostRoute{Prefix: to.Masked()}
		if r.Via != "" {
			var err error
			if route.Via, err = netip.ParseAddr(r.Via); err != nil || route.Via.Zone() != "" ||
				cluster.FamilyOf(route.Via) != cluster.FamilyOf(to.Addr()) {
				x.add("%s: routes: %q is not a next hop to %s", j.Name, r.Via, to)
				continue
			}
		}
		l.Routes = append(l.Routes, route)
	}
	slices.SortFunc(l.Addresses, cluster.ComparePrefixes)
	slices.SortStableFunc(l.Routes,
		func(a, b cluster.HostRoute) int { return cluster.ComparePrefixes(a.Prefix, b.Prefix) })
	return l
}

// FormatHostRules returns the value of HostRules.
func FormatHostRules(list []cluster.HostRule) string {
	text, err := json.Marshal(append([]cluster.HostRule{}, list...))
	if err != nil {
		panic(err) // strings, numbers and prefixes always marshal
	}
	return string(text)
}

// ParseHostRules reads the output of FormatHostRules.
func ParseHostRules(text string) (rules []cluster.HostRule, errs []error) {
	var list []cluster.HostRule
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, invalid{fmt.Errorf("not the expected JSON list: %w", err)}
	}
	var wrong invalid
	for _, r := range list[:min(len(list), cluster.MaxHostRules)] {
		if r.In != "" && !cluster.IsLinkName(r.In) || slices.ContainsFunc(r.Routes,
			func(x cluster.TableRoute) bool { return !cluster.IsLinkName(x.Dev) || !x.To.IsValid() }) {
			wrong.add("%d: not a rule with links and routes", r.Priority)
			continue
		}
		rules = append(rules, r)
	}
	return rules, wrong
}
