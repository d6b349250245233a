package restore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"hairpin/netdev"
)

// Restore adds to a link what the Record has and the link does not, and returns what it did as
// commands of ip(8). The link replaces the Record's device. An error does not stop the other steps.
// An address that another link has now stays there.
func (r *Record) Restore(l netlink.Link) (did []string, err error) {
	c, err := open()
	if err != nil {
		return nil, err
	}
	defer c.close()
	name := l.Attrs().Name
	var errs []error
	try := func(text string, err error) {
		switch {
		case errors.Is(err, unix.EEXIST):
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", text, err))
		default:
			did = append(did, text)
		}
	}
	if now := acceptRA(name); r.AcceptRA != "" && now != "" && now != r.AcceptRA {
		try("sysctl -w net.ipv6.conf."+name+".accept_ra="+r.AcceptRA,
			netdev.SetSysctl("net/ipv6/conf/"+name+"/accept_ra", r.AcceptRA))
	}
	if l.Attrs().Flags&net.FlagUp == 0 {
		try("ip link set "+name+" up", netlink.LinkSetUp(l))
	}
	used, err := usedElsewhere(l)
	if err != nil {
		return did, err
	}
	begin := bootTime()
	for _, e := range r.Addresses {
		p, _ := e.prefix()
		if !p.IsValid() || e.expired(begin) || used[p.Addr()] {
			continue
		}
		try(fmt.Sprintf("ip address add %s dev %s", p, name),
			c.add(unix.RTM_NEWADDR, payload(e.addressRequest(l.Attrs().Index, begin))))
	}
	for _, e := range r.Routes {
		if e.expired(begin) {
			continue
		}
		e.avoidKernelMetric(name) // e is a copy
		to := parseRoute(e.Message).to
		try(fmt.Sprintf("ip route add %s dev %s", to, name),
			c.add(unix.RTM_NEWROUTE, payload(e.routeRequest(r.Index, l.Attrs().Index, begin))))
	}
	return did, errors.Join(errs...)
}

// Minimal returns a Record with only addresses and default routes. Its device and that of its
// routes have the index 0, which Restore replaces.
func Minimal(boot string, addresses []netip.Prefix, nextHops []netip.Addr) Record {
	r := Record{Device: Device{Boot: boot}}
	for _, p := range addresses {
		head := nl.NewIfAddrmsg(int(familyOf(p.Addr())))
		head.Prefixlen = uint8(p.Bits())
		b := append(head.Serialize(), nl.NewRtAttr(unix.IFA_LOCAL, p.Addr().AsSlice()).Serialize()...)
		r.Addresses = append(r.Addresses,
			Entry{Message: append(b, nl.NewRtAttr(unix.IFA_ADDRESS, p.Addr().AsSlice()).Serialize()...)})
	}
	for _, a := range nextHops {
		head := &nl.RtMsg{RtMsg: unix.RtMsg{Family: familyOf(a), Table: unix.RT_TABLE_MAIN, Protocol: unix.RTPROT_BOOT,
			Type: unix.RTN_UNICAST}}
		b := append(head.Serialize(), nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(0)).Serialize()...)
		r.Routes = append(r.Routes, Entry{Message: append(b,
			nl.NewRtAttr(unix.RTA_GATEWAY, a.AsSlice()).Serialize()...)})
	}
	return r
}

func familyOf(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// usedElsewhere returns the addresses of other links.
func usedElsewhere(l netlink.Link) (map[netip.Addr]bool, error) {
	list, err := netdev.Addresses(nil)
	if err != nil {
		return nil, fmt.Errorf("addresses: %w", err)
	}
	used := map[netip.Addr]bool{}
	for _, a := range list {
		if ip, ok := netip.AddrFromSlice(a.IP); ok && a.LinkIndex != l.Attrs().Index {
			used[ip.Unmap()] = true
		}
	}
	return used, nil
}

// avoidKernelMetric increases the metric of a route of a router advertisement by one, if the metric
// is that of the kernel's own routes. While a route with that metric exists that the kernel did not
// add itself, it ignores all advertisements of the router.
func (e *Entry) avoidKernelMetric(link string) {
	x := parseRoute(e.Message)
	if x.protocol != unix.RTPROT_RA || x.metric != metricRA(link, x.to) || acceptRA(link) == "0" {
		return
	}
	b := bytes.Clone(e.Message[:unix.SizeofRtMsg])
	for _, a := range attributes(e.Message, unix.SizeofRtMsg) {
		value := a.Value
		if a.Attr.Type == unix.RTA_PRIORITY {
			value = nl.Uint32Attr(x.metric + 1)
		}
		b = append(b, nl.NewRtAttr(int(a.Attr.Type), value).Serialize()...)
	}
	e.Message = b
}

// metricRA returns the metric of the kernel's routes of router advertisements. The sysctl
// ra_defrtr_metric is for default routes.
func metricRA(link string, to netip.Prefix) uint32 {
	const usual = 1024
	text, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + link + "/ra_defrtr_metric")
	if err != nil || to.Bits() > 0 {
		return usual
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err != nil {
		return usual
	}
	return uint32(n)
}

// add adds an address or a route that does not exist.
func (c *connection) add(kind int, request nl.NetlinkRequestData) error {
	_, err := c.execute(kind, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK, request)
	return err
}

// payload is a message without its header.
type payload []byte

func (p payload) Len() int          { return len(p) }
func (p payload) Serialize() []byte { return p }

// settableFlags are the flags of an address that its creator sets; the kernel sets the others.
const settableFlags = unix.IFA_F_NOPREFIXROUTE | unix.IFA_F_MANAGETEMPADDR | unix.IFA_F_HOMEADDRESS |
	unix.IFA_F_MCAUTOJOIN

// addressRequest returns the message that adds an address to a link. It disables duplicate address
// detection: the machine itself had the address a moment ago.
func (e *Entry) addressRequest(link int, now int64) []byte {
	flags := addressFlags(e.Message) & settableFlags
	if e.Message[0] == unix.AF_INET6 {
		flags |= unix.IFA_F_NODAD
	}
	b := bytes.Clone(e.Message[:unix.SizeofIfAddrmsg])
	b[2] = byte(flags)
	binary.NativeEndian.PutUint32(b[4:], uint32(link))
	for _, a := range attributes(e.Message, unix.SizeofIfAddrmsg) {
		switch a.Attr.Type {
		case unix.IFA_CACHEINFO, unix.IFA_FLAGS:
		default:
			b = append(b, nl.NewRtAttr(int(a.Attr.Type), a.Value).Serialize()...)
		}
	}
	b = append(b, nl.NewRtAttr(unix.IFA_FLAGS, nl.Uint32Attr(flags)).Serialize()...)
	life := nl.IfaCacheInfo{IfaCacheinfo: unix.IfaCacheinfo{Prefered: remaining(e.Preferred, now),
		Valid: remaining(e.Until, now)}}
	return append(b, nl.NewRtAttr(unix.IFA_CACHEINFO, life.Serialize()).Serialize()...)
}

// remaining returns the rest of a lifetime.
func remaining(until, now int64) uint32 {
	if until == never {
		return ^uint32(0)
	}
	return uint32(max(0, until-now))
}

// rtaNextHopID is the attribute with the ID of a next hop object (linux/rtnetlink.h, RTA_NH_ID).
const rtaNextHopID = 30

// routeRequest returns the message that adds a route, with another link in place of the old one.
func (e *Entry) routeRequest(old, link int, now int64) []byte {
	b := bytes.Clone(e.Message[:unix.SizeofRtMsg])
	binary.NativeEndian.PutUint32(b[8:], binary.NativeEndian.Uint32(b[8:])&unix.RTNH_F_ONLINK)
	withNewLink := func(v []byte) []byte {
		if int(uint32Of(v)) == old {
			return nl.Uint32Attr(uint32(link))
		}
		return v
	}
	for _, a := range attributes(e.Message, unix.SizeofRtMsg) {
		value := a.Value
		switch a.Attr.Type {
		case unix.RTA_CACHEINFO, unix.RTA_EXPIRES, rtaNextHopID: // the message also has the next hops themselves
			continue
		case unix.RTA_OIF:
			value = withNewLink(value)
		case unix.RTA_MULTIPATH:
			value = nil
			eachNexthop(a.Value, func(hop []byte) {
				h := bytes.Clone(hop)
				h[2] &= unix.RTNH_F_ONLINK
				copy(h[4:], withNewLink(h[4:8]))
				value = append(value, align(h)...)
			})
		}
		b = append(b, nl.NewRtAttr(int(a.Attr.Type), value).Serialize()...)
	}
	if e.Until != never {
		b = append(b, nl.NewRtAttr(unix.RTA_EXPIRES, nl.Uint32Attr(remaining(e.Until, now))).Serialize()...)
	}
	return b
}

// sameAddress and sameRoute report whether two entries differ in their lifetimes only. They compare
// requests, which have nothing that the kernel adds itself.
func sameAddress(a, b Entry) bool {
	a.Until, a.Preferred, b.Until, b.Preferred = never, never, never, never
	return bytes.Equal(a.addressRequest(0, 0), b.addressRequest(0, 0))
}

func sameRoute(a, b Entry) bool {
	a.Until, b.Until = never, never
	return bytes.Equal(a.routeRequest(0, 0, 0), b.routeRequest(0, 0, 0))
}
