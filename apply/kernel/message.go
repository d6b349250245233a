package kernel

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/host"
	"hairpin/netdev"
)

// The found* types are entries that the kernel lists, with the message, which also deletes them.
type foundAddress struct {
	raw        []byte
	link       int
	prefix     netip.Prefix
	deprecated bool
	ours       bool // by its protocol
}

type foundNeighbor struct {
	raw       []byte
	link      int
	ip        netip.Addr
	mac       cluster.MAC
	permanent bool
}

type foundRoute struct {
	raw      []byte
	key      host.RouteKey
	link     int
	via, src netip.Addr
	mtu, mss int
	protocol uint8
	plain    bool // package host can represent it
}

type foundRule struct {
	raw      []byte
	rule     host.Rule
	priority uint32
}

// dump sends a list request and returns the messages of the reply.
func (t *Target) dump(kind int, head nl.NetlinkRequestData, attrs ...*nl.RtAttr) ([][]byte, error) {
	return netdev.List(func() ([][]byte, error) {
		req := nl.NewNetlinkRequest(kind, unix.NLM_F_DUMP)
		req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: t.socket}
		req.AddData(head)
		for _, a := range attrs {
			req.AddData(a)
		}
		return req.Execute(unix.NETLINK_ROUTE, 0)
	})
}

// send makes one change.
func (t *Target) send(kind, flags int, data ...nl.NetlinkRequestData) error {
	req := nl.NewNetlinkRequest(kind, flags|unix.NLM_F_ACK)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: t.socket}
	for _, d := range data {
		req.AddData(d)
	}
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// payload is a received message that is sent unchanged.
type payload []byte

func (p payload) Len() int          { return len(p) }
func (p payload) Serialize() []byte { return p }

// attributes parses the attributes after a message's header.
func attributes(raw []byte, head int) ([]syscall.NetlinkRouteAttr, error) {
	if len(raw) < head {
		return nil, fmt.Errorf("netlink: a message of %d bytes", len(raw))
	}
	return nl.ParseRouteAttr(raw[head:])
}

func addrOf(b []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(b)
	return a
}

// number parses an attribute of 4 bytes.
func number(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}

// ifaProto is the attribute with the protocol of an address (linux/if_addr.h, IFA_PROTO).
const ifaProto = 11

func parseAddress(raw []byte) (foundAddress, error) {
	f := foundAddress{raw: raw}
	attrs, err := attributes(raw, unix.SizeofIfAddrmsg)
	if err != nil {
		return f, err
	}
	f.link = int(number(raw[4:]))
	f.deprecated = raw[2]&unix.IFA_F_DEPRECATED != 0 // for IPv4, the lifetimes do not show it
	var peer, own netip.Addr
	for _, a := range attrs {
		switch a.Attr.Type {
		case unix.IFA_ADDRESS:
			peer = addrOf(a.Value)
		case unix.IFA_LOCAL:
			own = addrOf(a.Value)
		case ifaProto:
			f.ours = len(a.Value) == 1 && a.Value[0] == claims.AddressProtocol
		}
	}
	if !own.IsValid() { // IPv6 without a peer
		own = peer
	}
	f.prefix = netip.PrefixFrom(own, int(raw[1]))
	return f, nil
}

func parseNeighbor(raw []byte) (foundNeighbor, error) {
	f := foundNeighbor{raw: raw}
	attrs, err := attributes(raw, unix.SizeofNdMsg)
	if err != nil {
		return f, err
	}
	f.link = int(number(raw[4:]))
	f.permanent = binary.NativeEndian.Uint16(raw[8:])&unix.NUD_PERMANENT != 0
	for _, a := range attrs {
		switch a.Attr.Type {
		case unix.NDA_DST:
			f.ip = addrOf(a.Value)
		case unix.NDA_LLADDR:
			copy(f.mac[:], a.Value)
		}
	}
	return f, nil
}

// metricIPv6 is the kernel's default metric for IPv6 routes.
const metricIPv6 = 1024

func parseRoute(raw []byte) (foundRoute, error) {
	f := foundRoute{raw: raw}
	attrs, err := attributes(raw, unix.SizeofRtMsg)
	if err != nil {
		return f, err
	}
	m := nl.DeserializeRtMsg(raw)
	f.protocol = m.Protocol
	f.plain = m.Tos == 0 && m.Src_len == 0
	f.key.Table = int(m.Table)
	to, metric, plainMetric := netip.IPv4Unspecified(), uint32(0), uint32(0)
	if m.Family == unix.AF_INET6 {
		to, plainMetric = netip.IPv6Unspecified(), metricIPv6
	}
	for _, a := range attrs {
		switch a.Attr.Type {
		case unix.RTA_DST:
			to = addrOf(a.Value)
		case unix.RTA_TABLE:
			f.key.Table = int(number(a.Value))
		case unix.RTA_OIF:
			f.link = int(number(a.Value))
		case unix.RTA_GATEWAY:
			f.via = addrOf(a.Value)
		case unix.RTA_PREFSRC:
			f.src = addrOf(a.Value)
		case unix.RTA_PRIORITY:
			metric = number(a.Value)
		case unix.RTA_METRICS:
			f.metrics(a.Value)
		case unix.RTA_CACHEINFO:
		case unix.RTA_PREF:
			f.plain = f.plain && len(a.Value) == 1 && a.Value[0] == 0
		default:
			f.plain = false
		}
	}
	f.key.Prefix = netip.PrefixFrom(to, int(m.Dst_len))
	scope := uint8(unix.RT_SCOPE_UNIVERSE)
	if m.Family == unix.AF_INET && !f.via.IsValid() {
		scope = unix.RT_SCOPE_LINK
	}
	kind := uint8(unix.RTN_UNICAST)
	if f.key.Table == host.LocalTable {
		kind = unix.RTN_LOCAL
	}
	f.plain = f.plain && m.Type == kind && metric == plainMetric && m.Scope == scope && f.link != 0
	return f, nil
}

// metrics parses the MTU and the MSS; other metrics make the route not plain.
func (f *foundRoute) metrics(b []byte) {
	attrs, err := nl.ParseRouteAttr(b)
	f.plain = f.plain && err == nil
	for _, a := range attrs {
		switch a.Attr.Type {
		case unix.RTAX_MTU:
			f.mtu = int(number(a.Value))
		case unix.RTAX_ADVMSS:
			f.mss = int(number(a.Value))
		default:
			f.plain = false
		}
	}
}

// frActToTable is the action "lookup" of a rule (linux/fib_rules.h).
const frActToTable = 1

func parseRule(raw []byte) (foundRule, error) {
	f := foundRule{raw: raw}
	attrs, err := attributes(raw, unix.SizeofRtMsg)
	if err != nil {
		return f, err
	}
	m := nl.DeserializeRtMsg(raw) // struct fib_rule_hdr has the same layout
	f.rule = host.Rule{Family: cluster.IPv4, Table: int(m.Table)}
	if m.Family == unix.AF_INET6 {
		f.rule.Family = cluster.IPv6
	}
	plain := m.Type == frActToTable && m.Tos == 0 && m.Dst_len == 0 && m.Flags&netlink.FibRuleInvert == 0
	mask := ^uint32(0)
	for _, a := range attrs {
		switch a.Attr.Type {
		case nl.FRA_SRC:
			f.rule.From = netip.PrefixFrom(addrOf(a.Value), int(m.Src_len))
		case nl.FRA_PRIORITY:
			f.priority = number(a.Value)
		case nl.FRA_FWMARK:
			f.rule.Mark = number(a.Value)
		case nl.FRA_FWMASK:
			mask = number(a.Value)
		case nl.FRA_TABLE:
			f.rule.Table = int(number(a.Value))
		case nl.FRA_SUPPRESS_IFGROUP, nl.FRA_SUPPRESS_PREFIXLEN:
			plain = plain && number(a.Value) == ^uint32(0)
		case nl.FRA_PROTOCOL:
		default:
			plain = false
		}
	}
	f.rule.Priority = int(f.priority)
	if mask != ^uint32(0) {
		f.rule.Mask = mask
		// No condition on the mark: in package host by Mark 0, in the kernel by mask 0.
		plain = plain && (f.rule.Mark == 0) == (mask == 0)
	}
	if !plain {
		f.rule = host.Rule{Family: f.rule.Family, Priority: f.rule.Priority, Table: host.OtherRule}
	}
	return f, nil
}

// inRange reports whether a rule has a priority of Hairpin's.
func (f *foundRule) inRange() bool {
	return f.priority >= claims.RulePriorityFirst && f.priority <= claims.RulePriorityLast
}
