package host

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/shell"
	"hairpin/delta"
)

// mainTable is the default routing table of commands.
const mainTable = 254

// borrowedWord begins the comment of a value that belongs to the machine.
const borrowedWord = "borrowed"

// Print writes a state as iproute2, ethtool and sysctl commands that create it, in a canonical
// order: links, sysctls, addresses, neighbours, routes on links, routes with a gateway, rules. Link
// names are quoted for a shell. The comment of each command is its owner, preceded by "borrowed" if
// it is.
func Print(s State) string {
	var b strings.Builder
	for _, k := range delta.Keys(s.Links) {
		line(&b, linkText(s.Links[k]), false, s.Links[k].Owner)
	}
	for _, k := range delta.Keys(s.Sysctls) {
		line(&b, sysctlText(s.Sysctls[k]), false, s.Sysctls[k].Owner)
	}
	for _, k := range delta.Sorted(s.Addresses, AddressKey.Compare) {
		a := s.Addresses[k]
		line(&b, addressText("replace", a), a.Borrowed, a.Owner)
	}
	for _, k := range delta.Sorted(s.Neighbors, NeighborKey.Compare) {
		line(&b, neighborText("replace", s.Neighbors[k]), false, s.Neighbors[k].Owner)
	}
	for _, gateway := range []bool{false, true} { // a gateway must be on a link
		for _, k := range delta.Sorted(s.Routes, RouteKey.Compare) {
			if r := s.Routes[k]; r.Via.IsValid() == gateway {
				line(&b, routeText("replace", r), r.Borrowed, r.Owner)
			}
		}
	}
	for _, k := range delta.Sorted(s.Rules, Rule.Compare) {
		line(&b, ruleText("add", k), false, s.Rules[k])
	}
	return b.String()
}

func line(b *strings.Builder, words string, borrowed bool, owner cluster.Owner) {
	b.WriteString(words)
	if borrowed || owner != (cluster.Owner{}) {
		b.WriteString(" #")
		if borrowed {
			b.WriteString(" " + borrowedWord)
		}
		if owner != (cluster.Owner{}) {
			b.WriteString(" " + owner.String())
		}
	}
	b.WriteByte('\n')
}

func linkText(l Link) string {
	s := "ip link set dev " + shell.Word(l.Name)
	if l.MAC != (cluster.MAC{}) {
		s += " address " + l.MAC.String()
	}
	if l.MTU != 0 {
		s += fmt.Sprintf(" mtu %d", l.MTU)
	}
	s += " up"
	if l.Checksums {
		s += "; ethtool -K " + shell.Word(l.Name) + " tx off"
	}
	return s
}

// sysctlText writes the path with dots, and a dot in an interface name as a slash, as sysctl does.
func sysctlText(s Sysctl) string {
	return "sysctl -w " + shell.Word(swapDots(s.Path)+"="+s.Value)
}

func swapDots(path string) string { return strings.NewReplacer("/", ".", ".", "/").Replace(path) }

func addressText(verb string, a Address) string {
	s := fmt.Sprintf("%s addr %s %s dev %s", ip(a.Prefix.Addr()), verb, a.Prefix, shell.Word(a.Link))
	if a.Prefix.Addr().Is6() {
		s += " nodad"
	}
	if a.Deprecated {
		s += " preferred_lft 0"
	}
	return s
}

func neighborText(verb string, n Neighbor) string {
	return fmt.Sprintf("%s neigh %s %s lladdr %s dev %s nud permanent", ip(n.IP), verb, n.IP, n.MAC, shell.Word(n.Link))
}

func routeText(verb string, r Route) string {
	local := ""
	if r.Table == LocalTable {
		local = "local "
	}
	s := fmt.Sprintf("%s route %s %s%s", ip(r.Prefix.Addr()), verb, local, prefixText(r.Prefix))
	if r.Via.IsValid() {
		s += " via " + r.Via.String()
	}
	if r.Link != "" {
		s += " dev " + shell.Word(r.Link)
	}
	if r.MTU != 0 {
		s += fmt.Sprintf(" mtu %d", r.MTU)
	}
	if r.AdvMSS != 0 {
		s += fmt.Sprintf(" advmss %d", r.AdvMSS)
	}
	if r.Src.IsValid() {
		s += " src " + r.Src.String()
	}
	if r.Table != mainTable {
		s += fmt.Sprintf(" table %d", r.Table)
	}
	if !r.Borrowed {
		s += fmt.Sprintf(" proto %d", claims.RouteProtocol)
	}
	return s
}

func ruleText(verb string, r Rule) string {
	s := "ip"
	if r.Family == cluster.IPv6 {
		s = "ip -6"
	}
	s += fmt.Sprintf(" rule %s priority %d from ", verb, r.Priority)
	if r.From.IsValid() {
		s += r.From.String()
	} else {
		s += "all"
	}
	if r.Mark != 0 {
		s += fmt.Sprintf(" fwmark 0x%x", r.Mark)
	}
	if r.Mask != 0 {
		s += fmt.Sprintf("/0x%x", r.Mask)
	}
	return s + fmt.Sprintf(" table %d", r.Table)
}

func ip(a netip.Addr) string {
	if a.Is6() {
		return "ip -6"
	}
	return "ip"
}

// String returns the route in the format of `ip route show`, without the verb: "10.96.0.0/16 via
// 169.254.169.4 dev br-ex …".
func (r Route) String() string { return withoutVerb(routeText("show", r)) }

// String returns the neighbour in the format of `ip neigh show`, without the verb.
func (n Neighbor) String() string { return withoutVerb(neighborText("show", n)) }

func withoutVerb(command string) string {
	_, s, _ := strings.Cut(command, " show ")
	return s
}

func prefixText(p netip.Prefix) string {
	if p.Bits() == 0 && p.Addr().IsUnspecified() {
		return "default"
	}
	return p.String()
}

// Compare orders addresses by link and address.
func (k AddressKey) Compare(l AddressKey) int {
	return cmp.Or(cmp.Compare(k.Link, l.Link), cluster.ComparePrefixes(k.Prefix, l.Prefix))
}

// Compare orders routes by table and destination.
func (k RouteKey) Compare(l RouteKey) int {
	return cmp.Or(cmp.Compare(k.Table, l.Table), cluster.ComparePrefixes(k.Prefix, l.Prefix))
}

// HasMark reports whether a packet's mark fits the rule.
func (r Rule) HasMark(mark uint32) bool {
	return r.Mark == 0 || r.Mark == mark&cmp.Or(r.Mask, ^uint32(0))
}

// Compare orders rules by family and priority.
func (r Rule) Compare(q Rule) int {
	return cmp.Or(cmp.Compare(r.Family, q.Family), cmp.Compare(r.Priority, q.Priority),
		cluster.ComparePrefixes(r.From, q.From),
		cmp.Compare(r.Mark, q.Mark), cmp.Compare(r.Mask, q.Mask), cmp.Compare(r.Table, q.Table))
}

// Compare orders neighbours by link and address.
func (k NeighborKey) Compare(l NeighborKey) int {
	return cmp.Or(cmp.Compare(k.Link, l.Link), k.IP.Compare(l.IP))
}
