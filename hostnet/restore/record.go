// Package restore records the machine's own addresses and routes on the gateway bridge's device,
// and restores those that were lost with the device.
//
// A restart of a userspace Open vSwitch makes the device anew, without them. They are restored with
// metric, protocol, scope, label and the rest of their lifetimes. What is removed from an existing
// device is not restored: the next Record does not have it.
package restore

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"hairpin/claims"
	"hairpin/netdev"
)

// Device identifies a network device for as long as it keeps its addresses and routes.
type Device struct {
	Boot  string `json:"boot"` // the machine's boot and the network namespace
	Index int    `json:"index"`
	MAC   string `json:"mac"` // Open vSwitch sets a tap device down to change it, so routes are lost then, too
}

// Record is the machine's own network on a device.
type Record struct {
	Device
	AcceptRA  string  `json:"acceptRA,omitempty"` // net.ipv6.conf.DEVICE.accept_ra
	Addresses []Entry `json:"addresses,omitempty"`
	Routes    []Entry `json:"routes,omitempty"`
}

// Entry is an address or a route: the message with which the kernel lists it, which has all its
// attributes.
type Entry struct {
	Message []byte `json:"message"`
	// When it expires, and when an address is no longer preferred, in seconds of CLOCK_BOOTTIME;
	// never = not at all.
	Until     int64 `json:"until,omitempty"`
	Preferred int64 `json:"preferred,omitempty"`
}

// maxEntries limits the routes of a Record. A machine that has more on the gateway bridge runs a
// daemon of a routing protocol, which restores its routes itself. Then only the default routes are
// recorded.
const maxEntries = 100

// DeviceOf identifies a link.
func DeviceOf(l netlink.Link) Device {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	ns, errNS := os.Readlink("/proc/thread-self/ns/net")
	d := Device{Index: l.Attrs().Index, MAC: l.Attrs().HardwareAddr.String()}
	if err == nil && errNS == nil { // otherwise nothing is ever restored
		d.Boot = strings.TrimSpace(string(boot)) + " " + ns
	}
	return d
}

// SameMachine reports whether both devices are of one boot of one machine.
func (d Device) SameMachine(e Device) bool { return d.Boot == e.Boot && d.Boot != "" }

// bootTime returns the seconds since the boot.
func bootTime() int64 {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
		return 0
	}
	return t.Sec
}

// Read reads the network of a link in the caller's network namespace. Addresses in excluded
// prefixes, and routes to or by them, are not the machine's.
func Read(l netlink.Link, exclude []netip.Prefix) (Record, error) {
	r := Record{Device: DeviceOf(l), AcceptRA: acceptRA(l.Attrs().Name)}
	c, err := open()
	if err != nil {
		return r, err
	}
	defer c.close()
	if r.Addresses, err = c.addresses(l, exclude); err != nil {
		return r, fmt.Errorf("addresses of %s: %w", l.Attrs().Name, err)
	}
	if r.Routes, err = c.routes(l, exclude); err != nil {
		return r, fmt.Errorf("routes of %s: %w", l.Attrs().Name, err)
	}
	return r, nil
}

func acceptRAPath(link string) string { return "/proc/sys/net/ipv6/conf/" + link + "/accept_ra" }

// acceptRA returns the sysctl accept_ra of a link, empty without IPv6.
func acceptRA(link string) string {
	text, err := os.ReadFile(acceptRAPath(link))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// SameExceptLifetimes reports whether two Records have the same addresses and routes. Their
// lifetimes may differ.
func (r *Record) SameExceptLifetimes(o *Record) bool {
	return r.Device == o.Device && r.AcceptRA == o.AcceptRA &&
		slices.EqualFunc(r.Addresses, o.Addresses, sameAddress) && slices.EqualFunc(r.Routes, o.Routes, sameRoute)
}

// SameLifetimes reports whether the ends of lifetimes of two Records with the same addresses and
// routes differ by at most a tolerance, in seconds.
func (r *Record) SameLifetimes(o *Record, tolerance int64) bool {
	near := func(a, b int64) bool { return (a == never) == (b == never) && max(a-b, b-a) <= tolerance }
	same := func(a, b Entry) bool { return near(a.Until, b.Until) && near(a.Preferred, b.Preferred) }
	return slices.EqualFunc(r.Addresses, o.Addresses, same) && slices.EqualFunc(r.Routes, o.Routes, same)
}

// String returns the text that Parse reads.
func (r *Record) String() string {
	text, err := json.Marshal(r)
	if err != nil {
		return "" // JSON can encode every Record
	}
	return string(text)
}

// Parse parses the text of String. It leaves out entries that are no valid messages.
func Parse(text string) (r Record, err error) {
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return Record{}, err
	}
	r.Addresses = slices.DeleteFunc(r.Addresses, func(e Entry) bool {
		if len(e.Message) < unix.SizeofIfAddrmsg {
			return true
		}
		p, _ := e.prefix()
		return !p.IsValid()
	})
	r.Routes = slices.DeleteFunc(r.Routes, func(e Entry) bool { return !parseRoute(e.Message).to.IsValid() })
	return r, nil
}

// Update applies a notification of the kernel about an address or a route of the device, which
// another program or an administrator added or removed. The device is up. Update replaces the
// lists: a copy of the Record keeps its own.
func (r *Record) Update(m syscall.NetlinkMessage, exclude []netip.Prefix) {
	updated := func(list []Entry, e Entry, same func(a, b Entry) bool, added bool) []Entry {
		out := slices.DeleteFunc(slices.Clone(list), func(o Entry) bool { return same(o, e) })
		if added && len(out) < maxEntries {
			out = append(out, e)
		}
		return out
	}
	switch m.Header.Type {
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		if e, ok := address(m.Data, r.Index, exclude); ok {
			r.Addresses = updated(r.Addresses, e, sameAddress, m.Header.Type == unix.RTM_NEWADDR)
		}
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		if e, ok := routeThrough(m.Data, r.Index, exclude); ok {
			r.Routes = updated(r.Routes, e, sameRoute, m.Header.Type == unix.RTM_NEWROUTE)
		}
	}
}

// WithoutIPv4Addresses returns a Record with the IPv6 addresses and all routes: the kernel removes
// these from a device that is set down.
func (r *Record) WithoutIPv4Addresses() *Record {
	out := *r
	out.Addresses = slices.DeleteFunc(slices.Clone(r.Addresses), isIPv4)
	return &out
}

// ReplaceIPv4Addresses replaces the IPv4 addresses of a Record by those of a newer one.
func (r *Record) ReplaceIPv4Addresses(now *Record) {
	four := slices.DeleteFunc(slices.Clone(now.Addresses), func(e Entry) bool { return !isIPv4(e) })
	r.Addresses = append(four, r.WithoutIPv4Addresses().Addresses...)
}

func isIPv4(e Entry) bool { return e.Message[0] == unix.AF_INET }

// Prefixes lists the addresses that have not expired.
func (r *Record) Prefixes() (list []netip.Prefix) {
	for _, e := range r.Addresses {
		if p, _ := e.prefix(); p.IsValid() && !e.expired(bootTime()) {
			list = append(list, p)
		}
	}
	return list
}

// NextHops lists the gateways, through the device, of the best default route of each family.
func (r *Record) NextHops() (list []netip.Addr) {
	best := map[bool]uint32{}
	for _, e := range r.Routes {
		x := parseRoute(e.Message)
		if x.to.Bits() != 0 || x.table != unix.RT_TABLE_MAIN || e.expired(bootTime()) {
			continue
		}
		v6 := x.to.Addr().Is6()
		switch m, known := best[v6]; {
		case known && m < x.metric:
			continue
		case known && m > x.metric:
			list = slices.DeleteFunc(list, func(a netip.Addr) bool { return a.Is6() == v6 })
		}
		best[v6] = x.metric
		list = append(list, x.hops(r.Index)...)
	}
	return list
}

// never is the end of an unlimited lifetime.
const never = int64(0)

func (e *Entry) expired(now int64) bool { return e.Until != never && e.Until <= now }

// connection is a netlink connection to the kernel.
type connection struct{ socket *nl.SocketHandle }

func open() (*connection, error) {
	s, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	// Strict checks make the kernel filter what it lists: there may be a million routes through
	// other links.
	err = unix.SetsockoptInt(s.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	if err == nil {
		err = s.SetReceiveTimeout(&unix.Timeval{Sec: 5})
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	return &connection{&nl.SocketHandle{Socket: s}}, nil
}

func (c *connection) close() { c.socket.Close() }

func (c *connection) execute(kind, flags int, data ...nl.NetlinkRequestData) ([][]byte, error) {
	req := nl.NewNetlinkRequest(kind, flags)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: c.socket}
	for _, d := range data {
		req.AddData(d)
	}
	return req.Execute(unix.NETLINK_ROUTE, 0)
}

func (c *connection) addresses(l netlink.Link, exclude []netip.Prefix) (list []Entry, err error) {
	head := nl.NewIfAddrmsg(unix.AF_UNSPEC)
	head.Index = uint32(l.Attrs().Index)
	raw, err := netdev.List(func() ([][]byte, error) { return c.execute(unix.RTM_GETADDR, unix.NLM_F_DUMP, head) })
	if err != nil {
		return nil, err
	}
	var six []Entry
	for _, b := range raw {
		switch e, ok := address(b, l.Attrs().Index, exclude); {
		case !ok:
		case b[0] == unix.AF_INET:
			list = append(list, e)
		default:
			six = append(six, e)
		}
	}
	slices.Reverse(six) // the kernel lists the newest first, and prefers it
	return append(list, six...), nil
}

// address parses a message about an address on a link; not ok if it is not the machine's.
func address(b []byte, link int, exclude []netip.Prefix) (e Entry, ok bool) {
	if len(b) < unix.SizeofIfAddrmsg || addressIndex(b) != link {
		return e, false
	}
	e.Message = bytes.Clone(b)
	p, ours := e.prefix()
	ip := p.Addr()
	if ours || !ip.IsValid() || ip.Is6() && ip.IsLinkLocalUnicast() || addressFlags(b)&unix.IFA_F_DADFAILED != 0 ||
		within(exclude, ip) {
		return e, false
	}
	e.setLifetimes(bootTime())
	return e, true
}

// routeThrough parses a message about a route through a link; not ok if it is not the machine's.
func routeThrough(b []byte, link int, exclude []netip.Prefix) (e Entry, ok bool) {
	x := parseRoute(b)
	if !x.ownedByMachine(exclude) || !x.uses(link) {
		return e, false
	}
	e.Message = bytes.Clone(b)
	if x.expires != 0 {
		e.Until = bootTime() + (x.expires+ticks-1)/ticks
	}
	return e, true
}

func (c *connection) routes(l netlink.Link, exclude []netip.Prefix) (list []Entry, err error) {
	by := nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(l.Attrs().Index)))
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		head := &nl.RtMsg{RtMsg: unix.RtMsg{Family: family}}
		raw, err := netdev.List(func() ([][]byte, error) {
			return c.execute(unix.RTM_GETROUTE, unix.NLM_F_DUMP, head, by)
		})
		if err != nil {
			return nil, err
		}
		for _, b := range raw {
			if e, ok := routeThrough(b, l.Attrs().Index, exclude); ok {
				list = append(list, e)
			}
		}
	}
	if len(list) > maxEntries {
		list = slices.DeleteFunc(list, func(e Entry) bool { return parseRoute(e.Message).to.Bits() != 0 })
		list = list[:min(len(list), maxEntries)]
	}
	// Routes without a gateway first: others need them.
	slices.SortStableFunc(list,
		func(a, b Entry) int { return parseRoute(a.Message).rank() - parseRoute(b.Message).rank() })
	return list, nil
}

func within(ranges []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(a) })
}

// attributes parses the attributes of a message after its head. The kernel aligns each; the last
// one of a damaged Record may end before that.
func attributes(b []byte, head int) []syscall.NetlinkRouteAttr {
	if len(b) < head {
		return nil
	}
	list, err := nl.ParseRouteAttr(align(slices.Clip(b[head:])))
	if err != nil {
		return nil
	}
	return list
}

// align appends zeros until the length is that of aligned attributes.
func align(b []byte) []byte { return append(b, make([]byte, (4-len(b)%4)%4)...) }

func uint32Of(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

func addrOf(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a
}

// ifaProto is the attribute with the protocol of an address (linux/if_addr.h, IFA_PROTO).
const ifaProto = 11

// prefix returns an address, and whether Hairpin added it.
func (e *Entry) prefix() (p netip.Prefix, ours bool) {
	var own, peer netip.Addr
	for _, a := range attributes(e.Message, unix.SizeofIfAddrmsg) {
		switch a.Attr.Type {
		case unix.IFA_LOCAL:
			own = addrOf(a.Value)
		case unix.IFA_ADDRESS:
			peer = addrOf(a.Value)
		case ifaProto:
			ours = len(a.Value) == 1 && a.Value[0] == claims.AddressProtocol
		}
	}
	if !own.IsValid() { // IPv6 without a peer
		own = peer
	}
	if !own.IsValid() {
		return p, ours
	}
	return netip.PrefixFrom(own, int(e.Message[1])), ours
}

func addressIndex(b []byte) int { return int(uint32Of(b[4:])) }

func addressFlags(b []byte) uint32 {
	flags := uint32(b[2])
	for _, a := range attributes(b, unix.SizeofIfAddrmsg) {
		if a.Attr.Type == unix.IFA_FLAGS {
			flags = uint32Of(a.Value)
		}
	}
	return flags
}

// setLifetimes records when an address expires.
func (e *Entry) setLifetimes(now int64) {
	end := func(seconds uint32) int64 {
		if seconds == ^uint32(0) {
			return never
		}
		return now + int64(seconds)
	}
	for _, a := range attributes(e.Message, unix.SizeofIfAddrmsg) {
		if a.Attr.Type == unix.IFA_CACHEINFO && len(a.Value) >= 8 {
			e.Preferred, e.Until = end(uint32Of(a.Value)), end(uint32Of(a.Value[4:]))
		}
	}
}
