package kernel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"hairpin/apply"
	"hairpin/apply/inside"
	"hairpin/apply/late"
	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/host"
	"hairpin/delta"
)

// applying is one Apply. Its steps are idempotent and ordered by their dependencies. They continue
// after errors, to make as many changes as possible.
type applying struct {
	t       *Target
	want    host.State
	errs    []error
	missing map[string]bool // links, by name
}

// Apply makes the changes: it adds links, sysctls, addresses, neighbours, routes and rules, and
// then removes in the reverse order. It leaves out changes on links that do not exist. Then the
// error is an *apply.Waiting, if all other changes succeeded.
func (t *Target) Apply(ctx context.Context, d host.Delta) error {
	late.For(ctx, "the kernel")
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	a := &applying{t: t, want: t.config.Wanted(), missing: map[string]bool{}}
	a.links(d.Links.Add, d)
	a.links(d.Links.Change, d)
	a.sysctls(d.Sysctls.Add)
	a.sysctls(d.Sysctls.Change)
	a.addresses(d.Addresses.Add)
	a.addresses(d.Addresses.Change)
	a.neighbors(d.Neighbors.Add)
	a.neighbors(d.Neighbors.Change)
	a.routes(d.Routes)
	for _, r := range delta.Sorted(d.Rules.Add, host.Rule.Compare) {
		a.try(a.rule(r), "ip rule add %+v", r)
	}
	a.deleteRules(d.Rules.Delete)
	a.deleteRoutes(d.Routes.Delete)
	a.deleteNeighbors(d.Neighbors.Delete)
	a.deleteAddresses(d.Addresses.Delete)
	a.deleteSysctls(d.Sysctls.Delete)
	return a.result()
}

func (a *applying) result() error {
	if len(a.errs) > 0 {
		return errors.Join(a.errs...)
	}
	if len(a.missing) > 0 {
		return &apply.Waiting{Devices: delta.Keys(a.missing)}
	}
	return nil
}

// try records an error with its command.
func (a *applying) try(err error, format string, args ...any) {
	if err != nil {
		a.errs = append(a.errs, fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err))
	}
}

// text returns the command for a State with one entry.
func text(s host.State) string { return strings.TrimSpace(host.Print(s)) }

// index returns the index of a link, or records that it is missing.
func (a *applying) index(name string) (int, bool) {
	l := a.link(name)
	if l == nil {
		return 0, false
	}
	return l.Attrs().Index, true
}

// link returns a link; nil if it is missing. A link that was missing earlier in this Apply stays
// missing: it has no addresses yet, so the kernel would reject its routes.
func (a *applying) link(name string) netlink.Link {
	if a.missing[name] {
		return nil
	}
	l, err := a.t.links.LinkByName(name)
	switch {
	case errors.As(err, &netlink.LinkNotFoundError{}):
		a.missing[name] = true
		return nil
	case err != nil:
		a.try(err, "link %s", name)
		return nil
	}
	return l
}

func (a *applying) links(links map[string]host.Link, d host.Delta) {
	for _, name := range delta.Keys(links) {
		want := links[name]
		l := a.link(name)
		if l == nil {
			continue
		}
		command := text(host.State{Links: map[string]host.Link{name: want}})
		var found cluster.MAC
		copy(found[:], l.Attrs().HardwareAddr)
		if want.MAC != (cluster.MAC{}) && want.MAC != found {
			a.try(a.t.links.LinkSetHardwareAddr(l, net.HardwareAddr(want.MAC[:])), "%s", command)
			a.restoreNeighbors(name, d)
		}
		if want.MTU != 0 && want.MTU != l.Attrs().MTU {
			a.try(a.t.links.LinkSetMTU(l, want.MTU), "%s", command)
		}
		if want.Checksums {
			a.try(a.t.computeChecksums(name), "%s", command)
		}
		if l.Attrs().Flags&net.FlagUp == 0 {
			a.try(a.t.links.LinkSetUp(l), "%s", command)
		}
	}
}

// restoreNeighbors restores a link's wanted neighbours: with a new MAC, the kernel deletes even
// permanent ones.
func (a *applying) restoreNeighbors(link string, d host.Delta) {
	lost := map[host.NeighborKey]host.Neighbor{}
	for k, n := range a.want.Neighbors {
		if _, deleted := d.Neighbors.Delete[k]; k.Link == link && !deleted {
			lost[k] = n
		}
	}
	a.neighbors(lost)
}

func sysctlFile(path string) string { return filepath.Join("/proc/sys", path) }

func (a *applying) sysctls(sysctls map[string]host.Sysctl) {
	if len(sysctls) == 0 {
		return
	}
	err := inside.Do(a.t.config.NetNS, func() error {
		for _, path := range delta.Keys(sysctls) {
			a.sysctl(sysctls[path])
		}
		return nil
	})
	a.try(err, "sysctls")
}

func (a *applying) sysctl(s host.Sysctl) {
	command := text(host.State{Sysctls: map[string]host.Sysctl{s.Path: s}})
	if !filepath.IsLocal(s.Path) {
		a.try(errors.New("not a path below /proc/sys"), "%s", command)
		return
	}
	if err := formerFile(a.t.config.Former).keep(s.Path); err != nil {
		a.try(err, "%s", command)
		return
	}
	err := os.WriteFile(sysctlFile(s.Path), []byte(s.Value), 0)
	// net/ipv4/conf/LINK/…: index records a missing link, and Apply returns an *apply.Waiting.
	if part := strings.Split(s.Path, "/"); errors.Is(err, os.ErrNotExist) && len(part) == 5 && part[0] == "net" {
		if _, exists := a.index(part[3]); !exists {
			return
		}
	}
	a.try(err, "%s", command)
}

func (a *applying) addresses(addresses map[host.AddressKey]host.Address) {
	for _, k := range delta.Sorted(addresses, host.AddressKey.Compare) {
		want := addresses[k]
		command := text(host.State{Addresses: map[host.AddressKey]host.Address{k: want}})
		if !k.Prefix.IsSingleIP() && !a.t.config.ours(k.Link, k.Prefix.Addr()) {
			a.try(errors.New("neither the link nor the range is ours, and it is no single address"), "%s", command)
			continue
		}
		index, exists := a.index(k.Link)
		if !exists {
			continue
		}
		if k.Prefix.Addr().Is6() {
			// A link can have an IPv6 address only once; replacing it would keep the old length.
			a.deleteAddresses(a.otherLengths(k, index))
		}
		a.try(a.address(want, index), "%s", command)
	}
}

// forever is an unlimited lifetime.
const forever = ^uint32(0)

// address adds an address, or changes its lifetime.
func (a *applying) address(want host.Address, index int) error {
	ip := want.Prefix.Addr()
	head := nl.NewIfAddrmsg(int(familyOf(ip)))
	head.Prefixlen = uint8(want.Prefix.Bits())
	head.Index = uint32(index)
	flags := uint32(0)
	if ip.Is6() {
		flags = unix.IFA_F_NODAD
	}
	life := nl.IfaCacheInfo{IfaCacheinfo: unix.IfaCacheinfo{Prefered: forever, Valid: forever}}
	if want.Deprecated {
		life.Prefered = 0
	}
	data := []nl.NetlinkRequestData{
		head, nl.NewRtAttr(unix.IFA_LOCAL, ip.AsSlice()), nl.NewRtAttr(unix.IFA_ADDRESS, ip.AsSlice()),
		nl.NewRtAttr(unix.IFA_FLAGS, nl.Uint32Attr(flags)), nl.NewRtAttr(unix.IFA_CACHEINFO, life.Serialize()),
		nl.NewRtAttr(ifaProto, []byte{claims.AddressProtocol}),
	}
	return a.t.send(unix.RTM_NEWADDR, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, data...)
}

// otherLengths returns the address with other prefix lengths on the same link.
func (a *applying) otherLengths(k host.AddressKey, index int) map[host.AddressKey]host.Address {
	list, err := a.t.listAddresses()
	a.try(err, "addresses")
	out := map[host.AddressKey]host.Address{}
	for _, f := range list {
		if f.link == index && f.prefix.Addr() == k.Prefix.Addr() && f.prefix != k.Prefix {
			other := host.AddressKey{Link: k.Link, Prefix: f.prefix}
			out[other] = host.Address{AddressKey: other}
		}
	}
	return out
}

func (a *applying) neighbors(neighbors map[host.NeighborKey]host.Neighbor) {
	for _, k := range delta.Sorted(neighbors, host.NeighborKey.Compare) {
		want := neighbors[k]
		command := text(host.State{Neighbors: map[host.NeighborKey]host.Neighbor{k: want}})
		if !a.t.config.ours(k.Link, k.IP) {
			a.try(errors.New("neither the link nor the range is ours"), "%s", command)
			continue
		}
		index, exists := a.index(k.Link)
		if !exists {
			continue
		}
		head := &netlink.Ndmsg{Family: familyOf(k.IP), Index: uint32(index), State: unix.NUD_PERMANENT}
		a.try(a.t.send(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, head,
			nl.NewRtAttr(unix.NDA_DST, k.IP.AsSlice()), nl.NewRtAttr(unix.NDA_LLADDR, want.MAC[:])), "%s", command)
	}
}

// routes adds routes without a next hop first, because the others may need them.
func (a *applying) routes(d delta.Delta[host.RouteKey, host.Route]) {
	a.deleteVariants(d.Change)
	changes := delta.Delta[host.RouteKey, host.Route]{Add: d.Add, Change: d.Change}.ApplyTo(nil)
	for _, direct := range []bool{true, false} { // direct: without a next hop
		for _, k := range delta.Sorted(changes, host.RouteKey.Compare) {
			want := changes[k]
			if want.Via.IsValid() == direct {
				continue
			}
			if index, exists := a.index(want.Link); exists {
				a.try(a.route(want, index), "%s", text(host.State{Routes: map[host.RouteKey]host.Route{k: want}}))
			}
		}
	}
}

func (a *applying) route(want host.Route, index int) error {
	head := &nl.RtMsg{RtMsg: unix.RtMsg{
		Family: familyOf(want.Prefix.Addr()), Dst_len: uint8(want.Prefix.Bits()), Protocol: claims.RouteProtocol,
		Type: unix.RTN_UNICAST, Scope: unix.RT_SCOPE_UNIVERSE,
	}}
	if want.Prefix.Addr().Is4() && !want.Via.IsValid() {
		head.Scope = unix.RT_SCOPE_LINK
	}
	if want.Table == host.LocalTable {
		head.Type = unix.RTN_LOCAL
	}
	if want.Via.IsValid() {
		// Without this flag, the kernel looks up the next hop by the rules, as for a packet. It
		// rejects the next hop if a rule selects a table with a route via a router to it, or if
		// another program removed the route to its subnet.
		head.Flags = unix.RTNH_F_ONLINK
	}
	data := []nl.NetlinkRequestData{
		head, nl.NewRtAttr(unix.RTA_DST, want.Prefix.Addr().AsSlice()),
		nl.NewRtAttr(unix.RTA_TABLE, nl.Uint32Attr(uint32(want.Table))),
		nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(index))),
	}
	for kind, ip := range map[int]netip.Addr{unix.RTA_GATEWAY: want.Via, unix.RTA_PREFSRC: want.Src} {
		if ip.IsValid() {
			data = append(data, nl.NewRtAttr(kind, ip.AsSlice()))
		}
	}
	metrics := nl.NewRtAttr(unix.RTA_METRICS, nil)
	for _, m := range [...]struct{ kind, value int }{{unix.RTAX_MTU, want.MTU}, {unix.RTAX_ADVMSS, want.AdvMSS}} {
		if m.value != 0 {
			metrics.AddRtAttr(m.kind, nl.Uint32Attr(uint32(m.value)))
		}
	}
	if want.MTU != 0 || want.AdvMSS != 0 {
		data = append(data, metrics)
	}
	return a.t.send(unix.RTM_NEWROUTE, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, data...)
}

func (a *applying) rule(want host.Rule) error {
	head := &nl.RtMsg{RtMsg: unix.RtMsg{Family: unix.AF_INET, Type: frActToTable}}
	if want.Family == cluster.IPv6 {
		head.Family = unix.AF_INET6
	}
	data := []nl.NetlinkRequestData{
		head, nl.NewRtAttr(nl.FRA_PRIORITY, nl.Uint32Attr(uint32(want.Priority))),
		nl.NewRtAttr(nl.FRA_TABLE, nl.Uint32Attr(uint32(want.Table))),
	}
	if want.From.IsValid() {
		head.Src_len = uint8(want.From.Bits())
		data = append(data, nl.NewRtAttr(nl.FRA_SRC, want.From.Addr().AsSlice()))
	}
	if want.Mark != 0 {
		data = append(data, nl.NewRtAttr(nl.FRA_FWMARK, nl.Uint32Attr(want.Mark)))
	}
	if want.Mask != 0 {
		data = append(data, nl.NewRtAttr(nl.FRA_FWMASK, nl.Uint32Attr(want.Mask)))
	}
	err := a.t.send(unix.RTM_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, data...)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}
