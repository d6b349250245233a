package hostnet

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hairpin/apply/kernel"
	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/netdev"
)

// hostRules returns the machine's own policy routing rules, with the routes of their tables. It
// leaves out the rules that every machine has, and the rule for VRFs: links have their VRF's table.
// If a family has more rules than are published, one with More is in place of the others.
func hostRules() ([]cluster.HostRule, error) {
	const most = cluster.MaxHostRules/2 - 1 // of a family
	var out []cluster.HostRule
	tables := map[int][]netlink.Route{}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := netdev.List(func() ([]netlink.Rule, error) { return netlink.RuleList(family) })
		if err != nil {
			return nil, fmt.Errorf("rules: %w", err)
		}
		n := 0
		for _, r := range list {
			x, ok := hostRule(&r, family)
			if !ok {
				continue
			}
			if n++; n > most {
				out = append(out, cluster.HostRule{Priority: x.Priority, IPv6: x.IPv6, More: true})
				break
			}
			out = append(out, x)
			tables[x.Table] = nil
		}
	}
	for table := range tables {
		if table == 0 || table == unix.RT_TABLE_MAIN {
			continue
		}
		var err error
		if tables[table], err = (kernel.Routes{Table: table, Max: 2 * cluster.MaxTableRoutes}).List(); err != nil {
			return nil, err
		}
	}
	for i := range out { // a part of the table would not describe the rule
		if r := &out[i]; r.More || !addTableRoutes(r, tables[r.Table]) {
			r.More, r.Routes = true, nil
		}
	}
	slices.SortStableFunc(out, func(a, b cluster.HostRule) int { return cmp.Compare(a.Priority, b.Priority) })
	return out, nil
}

// hostRule converts a rule. It is not ok for the rules that hostRules leaves out.
func hostRule(r *netlink.Rule, family int) (x cluster.HostRule, ok bool) {
	x = cluster.HostRule{
		Priority: max(r.Priority, 0), IPv6: family == netlink.FAMILY_V6, Not: r.Invert, In: r.IifName, Mark: r.Mark,
		From: netdev.Prefix(r.Src), To: netdev.Prefix(r.Dst),
		Table: r.Table, Length: r.SuppressPrefixlen + 1,
	}
	if r.Mask != nil {
		x.Mask = *r.Mask
	} else if r.Mark != 0 {
		x.Mask = ^uint32(0)
	}
	x.More = r.Goto >= 0 || r.OifName != "" || r.Tos != 0 || r.TunID != 0 || r.IPProto != 0 || r.Dport != nil ||
		r.Sport != nil ||
		r.UIDRange != nil || r.SuppressIfgroup >= 0
	const mainPriority = 32766 // of the kernel's own rule for the main table
	// plain rules are without a condition. One without a table is that for VRFs.
	plain := !x.Not && !x.From.IsValid() && !x.To.IsValid() && x.In == "" && x.Mask == 0 && !x.More && x.Length == 0
	x.Refuse = x.Table == unix.RT_TABLE_UNSPEC && !x.More // the library does not report which kind of refusal
	ours := r.Priority >= claims.RulePriorityFirst && r.Priority <= claims.RulePriorityLast
	usual := plain && (x.Table == unix.RT_TABLE_LOCAL || x.Table == unix.RT_TABLE_DEFAULT ||
		x.Table == unix.RT_TABLE_MAIN && r.Priority == mainPriority)
	return x, !ours && !usual && !(plain && x.Table == unix.RT_TABLE_UNSPEC)
}

// addTableRoutes adds a table's routes to a rule. It reports whether they describe the table: not
// if there are too many, or if one has a gateway of the other family, or rejects, drops or skips
// packets.
func addTableRoutes(x *cluster.HostRule, list []netlink.Route) bool {
	for _, r := range list {
		if (r.Family == netlink.FAMILY_V6) != x.IPv6 {
			continue
		}
		hop := netdev.NextHops(&r)[0]
		if slices.Contains([]int{unix.RTN_BLACKHOLE, unix.RTN_UNREACHABLE, unix.RTN_PROHIBIT, unix.RTN_THROW},
			r.Type) || hop.Via != nil || len(x.Routes) == cluster.MaxTableRoutes {
			return false
		}
		to, ok := hostRoute(&r, hop.LinkIndex)
		if !ok {
			continue
		}
		if l, err := netlink.LinkByIndex(hop.LinkIndex); err == nil { // otherwise the link is about to be removed
			x.Routes = append(x.Routes, cluster.TableRoute{To: to.Prefix, Via: to.Via, Dev: l.Attrs().Name})
		}
	}
	return true
}
