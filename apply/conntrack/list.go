package conntrack

import (
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hairpin/cluster"
)

// Entries lists the kernel's entries of a protocol with one of the ports in either direction, in
// package walk's format: "tcp src=… dst=… sport=… dport=… src=… dst=… sport=… dport=…", then mark
// and zone if set. Like `conntrack -L`, it lists no entries of the userspace datapath.
func Entries(protocol cluster.Protocol, family cluster.Family, ports ...uint16) ([]string, error) {
	f := netlink.InetFamily(unix.AF_INET)
	if family == cluster.IPv6 {
		f = unix.AF_INET6
	}
	number := map[cluster.Protocol]uint8{cluster.TCP: unix.IPPROTO_TCP, cluster.UDP: unix.IPPROTO_UDP,
		cluster.SCTP: unix.IPPROTO_SCTP}[protocol]
	var out []string
	err := each(f, func(e *entry) error {
		if e.forward.protocol != number || !about(e, ports) {
			return nil
		}
		text := protocol.String()
		for _, t := range [...]tuple{e.forward, e.reverse} {
			text += fmt.Sprintf(" src=%s dst=%s sport=%d dport=%d", t.src.Addr(), t.dst.Addr(), t.src.Port(),
				t.dst.Port())
		}
		if e.mark != 0 {
			text += fmt.Sprintf(" mark=%d", e.mark)
		}
		if e.zone != 0 {
			text += fmt.Sprintf(" zone=%d", e.zone)
		}
		out = append(out, text)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list conntrack entries: %w", err)
	}
	slices.Sort(out)
	return slices.Compact(out), nil // an interrupted listing has duplicates
}

func about(e *entry, ports []uint16) bool {
	for _, p := range ports {
		for _, t := range [...]tuple{e.forward, e.reverse} {
			if t.src.Port() == p || t.dst.Port() == p {
				return true
			}
		}
	}
	return false
}
