package cluster

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// AnnotationHostLinks has the node's links to other networks than that of its gateway bridge. It is
// Hairpin's.
const AnnotationHostLinks = "k8s.ovn.org/host-links"

// HostLink is a link of a host, other than the gateway bridge, that is up. It either has a network,
// on which egress addresses may be, or only single addresses and routes, as a VPN's link may.
type HostLink struct {
	Name      string
	Index     int // the interface index in the kernel
	MAC       MAC // zero = none
	Table     int // route table of the VRF that the link belongs to; 0 = none
	MTU       int // bytes; 0 = unknown
	Addresses []netip.Prefix
	// Routes are those by this link in the main table or the VRF's, without those of its own
	// networks. If there are very many, only some are listed.
	Routes []HostRoute
}

// HostRoute is a route that is not Hairpin's.
type HostRoute struct {
	Prefix netip.Prefix
	Via    netip.Addr // zero = on link
}

// hostLinkJSON is one entry of AnnotationHostLinks.
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

// HostLinksAnnotation returns the value of AnnotationHostLinks.
func HostLinksAnnotation(list []HostLink) string {
	out := make([]hostLinkJSON, 0, len(list))
	for _, l := range list {
		j := hostLinkJSON{Name: l.Name, Index: l.Index, Table: l.Table, MTU: l.MTU}
		if l.MAC != (MAC{}) {
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

// hostLinks reads the annotation. Links stays nil without it: then the node's links are not known.
func (p *nodeParser) hostLinks(o *corev1.Node) {
	text, ok := o.Annotations[AnnotationHostLinks]
	if !ok {
		return
	}
	field := "metadata.annotations[" + AnnotationHostLinks + "]"
	var list []hostLinkJSON
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		p.problem(field, "not the expected JSON list: %v", err)
		return
	}
	p.node.Links = []HostLink{}
	for _, j := range list {
		if l, ok := p.hostLink(field, j); ok {
			p.node.Links = append(p.node.Links, l)
		}
	}
	slices.SortFunc(p.node.Links, func(a, b HostLink) int { return strings.Compare(a.Name, b.Name) })
}

// linkName reports whether the kernel accepts a name for a link.
func linkName(s string) bool {
	const longest = 15 // IFNAMSIZ, without the zero
	return s != "" && len(s) <= longest && s != "." && s != ".." && !strings.ContainsAny(s, " \t\n\v\f\r/:\"\x00")
}

func (p *nodeParser) hostLink(field string, j hostLinkJSON) (HostLink, bool) {
	l := HostLink{Name: j.Name, Index: j.Index, Table: j.Table, MTU: j.MTU}
	switch {
	case !linkName(j.Name):
		p.problem(field, "name: %q is not a link's name", j.Name)
		return l, false
	case slices.ContainsFunc(p.node.Links, func(m HostLink) bool { return m.Name == j.Name }):
		p.problem(field, "name: %s is given twice", j.Name)
		return l, false
	case j.Index < 1 || j.Index > 1<<24:
		p.problem(field, "%s: index: %d is not a link's number", j.Name, j.Index)
		return l, false
	case j.Table < 0 || j.Table > 1<<31-1:
		p.problem(field, "%s: vrf-table: %d is not a table's number", j.Name, j.Table)
		return l, false
	}
	if j.MAC != "" {
		var err error
		if l.MAC, err = ParseMAC(j.MAC); err != nil {
			p.problem(field, "%s: mac-address: %v", j.Name, err)
		}
	}
	for _, text := range j.Addresses {
		if a, ok := parsePrefix(text); ok {
			l.Addresses = append(l.Addresses, a)
		} else {
			p.problem(field, "%s: ip-addresses: %q is not an address with a prefix length", j.Name, text)
		}
	}
	for _, x := range j.Routes {
		r := HostRoute{}
		to, ok := parsePrefix(x.To)
		if r.Prefix = to.Masked(); !ok {
			p.problem(field, "%s: routes: %q is not a range", j.Name, x.To)
			continue
		}
		if x.Via != "" {
			var err error
			if r.Via, err = netip.ParseAddr(x.Via); err != nil || r.Via.Zone() != "" ||
				FamilyOf(r.Via) != FamilyOf(to.Addr()) {
				p.problem(field, "%s: routes: %q is not a next hop to %s", j.Name, x.Via, to)
				continue
			}
		}
		l.Routes = append(l.Routes, r)
	}
	slices.SortFunc(l.Addresses, ComparePrefixes)
	slices.SortStableFunc(l.Routes, func(a, b HostRoute) int { return ComparePrefixes(a.Prefix, b.Prefix) })
	return l, true
}
