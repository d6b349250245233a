package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"hairpin/datapath/conn"
)

// tries is how often a listing is repeated after changes of the table interrupted it
// (NLM_F_DUMP_INTR, EINTR).
const tries = 8

// each calls f with every entry of a family, of all zones, while the kernel lists them: there may
// be a million. An entry is valid until f returns. After an interruption, f may get an entry again.
// The last listing counts even if it was interrupted: the next Read finds missing entries.
func each(family netlink.InetFamily, f func(*entry) error) error {
	var e entry
	var failed error
	for range tries {
		req := request(family, nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP)
		err := req.ExecuteIter(unix.NETLINK_NETFILTER, 0, func(raw []byte) bool {
			if e.parse(raw) {
				failed = f(&e)
			}
			return failed == nil
		})
		if failed != nil {
			return failed
		}
		if !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return nil
}

func request(family netlink.InetFamily, operation, flags int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(netlink.ConntrackTable<<8|operation, flags)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: uint8(family), Version: nl.NFNETLINK_V0})
	return req
}

// deleteEntries deletes the entries for which of returns a key in list.
func deleteEntries[K comparable](list []K, family func(K) netlink.InetFamily, of func(*entry) (K, bool)) error {
	if len(list) == 0 {
		return nil
	}
	s, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("end the kernel's connections: %w", err)
	}
	defer s.Close()
	if err := s.SetReceiveTimeout(&unix.Timeval{Sec: 10}); err != nil {
		return fmt.Errorf("end the kernel's connections: %w", err)
	}
	sockets := map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: {Socket: s}}
	var errs []error
	for _, f := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		listed := map[K]bool{}
		for _, k := range list {
			if family(k) == f {
				listed[k] = true
			}
		}
		if len(listed) == 0 {
			continue
		}
		err := each(f, func(e *entry) error {
			if k, ok := of(e); !ok || !listed[k] {
				return nil
			}
			req := request(f, nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK)
			req.AddRawData(e.raw[nl.SizeofNfgenmsg:])
			req.Sockets = sockets
			// ENOENT: the entry expired
			if _, err := req.Execute(unix.NETLINK_NETFILTER, 0); err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
			return nil
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("end the kernel's connections: %w", err))
		}
	}
	return errors.Join(errs...)
}

// inet returns the netlink family of an address.
func inet(a netip.Addr) netlink.InetFamily {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// entry is the part of a kernel entry that is used (linux/netfilter/nfnetlink_conntrack.h).
type entry struct {
	forward, reverse tuple
	mark             uint32
	zone             uint16
	raw              []byte // the message
}

// tuple is one direction of a connection.
type tuple struct {
	protocol uint8
	src, dst netip.AddrPort
}

// Attributes of entries that package nl has no names for.
const (
	ctaMark = 8
	ctaZone = 18
)

// parse parses a message; false if it is not about an entry.
func (e *entry) parse(raw []byte) bool {
	if len(raw) < nl.SizeofNfgenmsg {
		return false
	}
	*e = entry{raw: raw}
	attributes(raw[nl.SizeofNfgenmsg:], func(kind uint16, value []byte) {
		switch {
		case kind == nl.CTA_TUPLE_ORIG:
			e.forward.parse(value)
		case kind == nl.CTA_TUPLE_REPLY:
			e.reverse.parse(value)
		case kind == ctaMark && len(value) == 4:
			e.mark = binary.BigEndian.Uint32(value)
		case kind == ctaZone && len(value) == 2:
			e.zone = binary.BigEndian.Uint16(value)
		}
	})
	return e.forward.src.IsValid() && e.reverse.src.IsValid()
}

func (t *tuple) parse(raw []byte) {
	var src, dst netip.Addr
	var ports [2]uint16
	attributes(raw, func(kind uint16, value []byte) {
		switch kind {
		case nl.CTA_TUPLE_IP:
			attributes(value, func(kind uint16, value []byte) {
				switch kind {
				case nl.CTA_IP_V4_SRC, nl.CTA_IP_V6_SRC:
					src, _ = netip.AddrFromSlice(value)
				case nl.CTA_IP_V4_DST, nl.CTA_IP_V6_DST:
					dst, _ = netip.AddrFromSlice(value)
				}
			})
		case nl.CTA_TUPLE_PROTO:
			attributes(value, func(kind uint16, value []byte) {
				switch {
				case kind == nl.CTA_PROTO_NUM && len(value) == 1:
					t.protocol = value[0]
				case kind == nl.CTA_PROTO_SRC_PORT && len(value) == 2:
					ports[0] = binary.BigEndian.Uint16(value)
				case kind == nl.CTA_PROTO_DST_PORT && len(value) == 2:
					ports[1] = binary.BigEndian.Uint16(value)
				}
			})
		}
	})
	t.src, t.dst = netip.AddrPortFrom(src.Unmap(), ports[0]), netip.AddrPortFrom(dst.Unmap(), ports[1])
}

// attributes calls f with each attribute of a message, up to the first invalid one.
func attributes(raw []byte, f func(kind uint16, value []byte)) {
	for len(raw) >= unix.SizeofNlAttr {
		n := int(binary.NativeEndian.Uint16(raw))
		if n < unix.SizeofNlAttr || n > len(raw) {
			return
		}
		f(binary.NativeEndian.Uint16(raw[2:])&nl.NLA_TYPE_MASK, raw[unix.SizeofNlAttr:n])
		raw = raw[min(len(raw), (n+3)&^3):]
	}
}

// sourceOf returns the address to which the host translated the source of an entry; ok is false
// without such a translation. Zones other than the host's are Open vSwitch's.
func sourceOf(e *entry) (a netip.Addr, ok bool) {
	a = e.reverse.dst.Addr()
	return a, e.zone == 0 && a.IsValid() && a != e.forward.src.Addr()
}

// seenAs returns the source address with which an entry's connection leaves the node. In the host's
// zone, it is the one to which the host or the gateway router translated. In Open vSwitch's zones,
// it is the original source: the gateway bridge tracks packets that are already translated.
func seenAs(e *entry) (netip.Addr, bool) {
	if e.zone != 0 {
		return e.forward.src.Addr(), true
	}
	return sourceOf(e)
}

// untranslated returns the destination of a UDP entry in the host's own zone that has no
// translation there; otherwise ok is false. The host rejects new connections to a Service without
// endpoints, but passes established ones.
func untranslated(e *entry) (dst netip.AddrPort, ok bool) {
	return e.forward.dst, e.zone == 0 && e.forward.protocol == unix.IPPROTO_UDP && e.forward.dst.IsValid() &&
		e.forward.dst == e.reverse.src
}

// pairOf returns the translation of a UDP entry; ok is false for other entries.
func pairOf(e *entry) (p conn.Pair, ok bool) {
	p = conn.Pair{VIP: e.forward.dst, To: e.reverse.src}
	return p, e.forward.protocol == unix.IPPROTO_UDP && p.VIP.IsValid() && p.To.IsValid() && p.VIP != p.To
}
