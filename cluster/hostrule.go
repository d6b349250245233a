package cluster

import (
	"fmt"
	"net/netip"
)

// HostRule is a policy-routing rule that is not Hairpin's, in the terms of ip-rule(8).
type HostRule struct {
	Priority int          `json:"pref"`
	IPv6     bool         `json:"ipv6,omitempty"`
	Not      bool         `json:"not,omitempty"`
	From     netip.Prefix `json:"from,omitzero"` // zero = all
	To       netip.Prefix `json:"to,omitzero"`   // zero = all
	In       string       `json:"iif,omitempty"` // "lo": packets that the host sends
	Mark     uint32       `json:"fwmark,omitempty"`
	Mask     uint32       `json:"fwmask,omitempty"` // 0 = any mark
	More     bool         `json:"more,omitempty"`   // with conditions, an action or routes that no field has
	Refuse   bool         `json:"refuse,omitempty"` // unreachable, blackhole or prohibit, in place of a table
	Table    int          `json:"lookup,omitempty"`
	// Length is the shortest prefix of routes that are used: suppress_prefixlength + 1; 0 = all.
	Length int          `json:"length,omitempty"`
	Routes []TableRoute `json:"routes,omitempty"` // of the table, unless it is the main table
}

// TableRoute is a route of the table of a HostRule or RouteTable.
type TableRoute struct {
	To  netip.Prefix `json:"to"`
	Via netip.Addr   `json:"via,omitzero"` // zero = on link
	Dev string       `json:"dev"`
}

// Limits of what is published of a node: rules in an annotation, and routes of the table of a rule.
const (
	MaxHostRules   = 32
	MaxTableRoutes = 16
)

// Matches reports whether the rule matches a packet that arrived by a link ("lo": sent by the
// host), as far as its conditions are known.
func (r *HostRule) Matches(src, dst netip.Addr, mark uint32, in string) bool {
	if r.IPv6 != dst.Is6() {
		return false
	}
	matches := (!r.From.IsValid() || r.From.Contains(src)) && (!r.To.IsValid() || r.To.Contains(dst)) &&
		(r.In == "" || r.In == in) && mark&r.Mask == r.Mark
	return matches != r.Not
}

// String returns the rule as `ip rule` lists it.
func (r *HostRule) String() string {
	s := fmt.Sprintf("%d:", r.Priority)
	if r.Not {
		s += " not"
	}
	if r.From.IsValid() {
		s += " from " + r.From.String()
	} else {
		s += " from all"
	}
	if r.To.IsValid() {
		s += " to " + r.To.String()
	}
	if r.Mask != 0 {
		s += fmt.Sprintf(" fwmark 0x%x/0x%x", r.Mark, r.Mask)
	}
	if r.In != "" {
		s += " iif " + r.In
	}
	if r.More {
		return s + " …"
	}
	if r.Refuse {
		return s + " unreachable, blackhole or prohibit"
	}
	s += fmt.Sprintf(" lookup %d", r.Table)
	if r.Length != 0 {
		s += fmt.Sprintf(" suppress_prefixlength %d", r.Length-1)
	}
	return s
}
