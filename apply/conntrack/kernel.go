package conntrack

import (
	"errors"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hairpin/cluster"
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

// end deletes the entries of pairs.
func end(family netlink.InetFamily, dead []conn.Pair) error {
	all := filter{}
	for _, p := range dead {
		if (cluster.FamilyOf(p.VIP.Addr()) == cluster.IPv4) == (family == unix.AF_INET) {
			all[p] = true
		}
	}
	if len(all) == 0 {
		return nil
	}
	return retry(func() error {
		_, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, family, all)
		if errors.Is(err, unix.ENOENT) { // it ended by itself
			return nil
		}
		return err
	})
}

// filter picks the entries of pairs.
type filter map[conn.Pair]bool

// MatchConntrackFlow tells whether to delete an entry.
func (f filter) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	p, ok := pairOf(flow)
	return ok && f[p]
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
