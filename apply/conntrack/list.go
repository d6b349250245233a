package conntrack

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hairpin/cluster"
)

// Entries lists the kernel's entries of connections of a protocol that have one of the ports anywhere, in
// the form in which package walk writes them: "tcp src=… dst=… sport=… dport=… src=… dst=… sport=… dport=…", then mark and
// zone where there are any. It is what `conntrack -L` lists: on the userspace datapath nothing of Open vSwitch's own.
func Entries(protocol cluster.Protocol, family cluster.Family, ports ...uint16) ([]string, error) {
	f := netlink.InetFamily(unix.AF_INET)
	if family == cluster.IPv6 {
		f = unix.AF_INET6
	}
	flows, err := list(f)
	if err != nil {
		return nil, fmt.Errorf("list conntrack entries: %w", err)
	}
	number := map[cluster.Protocol]uint8{cluster.TCP: unix.IPPROTO_TCP, cluster.UDP: unix.IPPROTO_UDP, cluster.SCTP: unix.IPPROTO_SCTP}[protocol]
	var out []string
	for _, x := range flows {
		if x.Forward.Protocol != number || !about(x, ports) {
			continue
		}
		text := protocol.String()
		for _, t := range [...]netlink.IPTuple{x.Forward, x.Reverse} {
			text += fmt.Sprintf(" src=%s dst=%s sport=%d dport=%d", plain(t.SrcIP), plain(t.DstIP), t.SrcPort, t.DstPort)
		}
		if x.Mark != 0 {
			text += fmt.Sprintf(" mark=%d", x.Mark)
		}
		if x.Zone != 0 {
			text += fmt.Sprintf(" zone=%d", x.Zone)
		}
		out = append(out, text)
	}
	return out, nil
}

func about(x *netlink.ConntrackFlow, ports []uint16) bool {
	for _, p := range ports {
		for _, t := range [...]netlink.IPTuple{x.Forward, x.Reverse} {
			if t.SrcPort == p || t.DstPort == p {
				return true
			}
		}
	}
	return false
}

func plain(ip []byte) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
