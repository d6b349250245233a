package conntrack

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hairpin/datapath/conn"
)

// tries is how often a listing is begun again that changes of the table have interrupted (NLM_F_DUMP_INTR, EINTR).
const tries = 8

// retry does something that reads the whole table until nothing interrupts it. The last answer counts even if it was
// interrupted: entries that it lacks are found the next time.
func retry(do func() error) error {
	var err error
	for range tries {
		if err = do(); !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, unix.EINTR) {
			return err
		}
	}
	return nil
}

// list gives all entries of a family, of all zones.
func list(family netlink.InetFamily) (flows []*netlink.ConntrackFlow, err error) {
	err = retry(func() error {
		flows, err = netlink.ConntrackTableList(netlink.ConntrackTable, family)
		return err
	})
	return flows, err
}

// end deletes the entries of which something is listed.
func end[K comparable](list []K, family func(K) netlink.InetFamily, of func(*netlink.ConntrackFlow) (K, bool)) error {
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
		if err := retry(func() error {
			_, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, f, filter[K]{of, listed})
			if errors.Is(err, unix.ENOENT) { // it ended by itself
				return nil
			}
			return err
		}); err != nil {
			errs = append(errs, fmt.Errorf("end the kernel's connections: %w", err))
		}
	}
	return errors.Join(errs...)
}

// inet is the netlink family of an address.
func inet(a netip.Addr) netlink.InetFamily {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// filter picks the entries of which something is listed.
type filter[K comparable] struct {
	of     func(*netlink.ConntrackFlow) (K, bool)
	listed map[K]bool
}

// MatchConntrackFlow tells whether to delete an entry.
func (f filter[K]) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	k, ok := f.of(flow)
	return ok && f.listed[k]
}

// sourceOf gives the address to which the host has translated the source of an entry; ok is false when it has not. Zones other than
// the host's are Open vSwitch's.
func sourceOf(f *netlink.ConntrackFlow) (a netip.Addr, ok bool) {
	if f.Zone != 0 || f.Forward.SrcIP.Equal(f.Reverse.DstIP) {
		return a, false
	}
	a = plain(f.Reverse.DstIP)
	return a, a.IsValid()
}

// pairOf gives the translation of an entry; ok is false when it has none, or is not of UDP.
func pairOf(f *netlink.ConntrackFlow) (p conn.Pair, ok bool) {
	if f.Forward.Protocol != unix.IPPROTO_UDP {
		return p, false
	}
	vip, to := endpoint(f.Forward.DstIP, f.Forward.DstPort), endpoint(f.Reverse.SrcIP, f.Reverse.SrcPort)
	return conn.Pair{VIP: vip, To: to}, vip.IsValid() && to.IsValid() && vip != to
}

func endpoint(ip net.IP, port uint16) netip.AddrPort {
	a, ok := netip.AddrFromSlice(ip)
	if !ok {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a.Unmap(), port)
}
