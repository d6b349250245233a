// Package wire sends and receives ARP and neighbor discovery for egress addresses on the external
// network: it announces addresses, detects other machines that have them, and resolves neighbors.
package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hairpin/cluster"
)

// AnnounceHost restores resolution between the host and its neighbors on the gateway bridge, after
// a time in which the bridge forwarded nothing. Requests of that time (ARP, neighbor solicitations)
// are lost, and the kernel repeats them only after a second. So AnnounceHost sends requests for the
// host's unresolved neighbors, and announces the host's own addresses.
func AnnounceHost(g cluster.Gateway) error {
	link, err := netlink.LinkByName(g.Bridge)
	if err != nil {
		return fmt.Errorf("announce the host: %w", err)
	}
	entries, err := netlink.NeighList(link.Attrs().Index, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("announce the host: neighbors: %w", err)
	}
	var frames [][]byte
	for _, p := range g.Addresses {
		frames = append(frames, announcement(g.MAC, p.Addr()))
	}
	for _, e := range entries {
		target, ok := netip.AddrFromSlice(e.IP)
		if own := ownFor(g.Addresses, target.Unmap()); ok && own.IsValid() && e.State&netlink.NUD_INCOMPLETE != 0 {
			frames = append(frames, solicitation(g.MAC, own, target.Unmap()))
		}
	}
	if err := send(link.Attrs().Index, frames); err != nil {
		return fmt.Errorf("announce the host: %w", err)
	}
	return nil
}

// AnnounceBridge announces the Ethernet address of the gateway bridge to its network, and sends
// each other node a reply. The tunnels of Open vSwitch on the userspace datapath learn only from a
// reply (ARP reply, neighbor advertisement to the node's own address), and keep what they learn for
// 15 minutes. It does nothing, and returns false, while the bridge still has another address,
// because the kernel would continue to announce that.
func AnnounceBridge(g cluster.Gateway, others []*cluster.Node) (sent bool, err error) {
	link, err := netlink.LinkByName(g.Bridge)
	if err != nil {
		return false, fmt.Errorf("announce the gateway bridge: %w", err)
	}
	if !bytes.Equal(link.Attrs().HardwareAddr, g.MAC[:]) {
		return false, nil
	}
	var frames [][]byte
	for _, p := range g.Addresses {
		frames = append(frames, announcement(g.MAC, p.Addr()))
		for _, o := range others {
			for _, a := range o.Addresses {
				if p.Contains(a) && a != p.Addr() && o.Gateway.MAC != (cluster.MAC{}) {
					frames = append(frames, answer(g.MAC, p.Addr(), o.Gateway.MAC, a))
				}
			}
		}
	}
	if err := send(link.Attrs().Index, frames); err != nil {
		return false, fmt.Errorf("announce the gateway bridge: %w", err)
	}
	return true, nil
}

// ownFor returns the host's address for requests to a neighbor: that of its network, or else any of
// its family.
func ownFor(own []netip.Prefix, neighbor netip.Addr) (a netip.Addr) {
	for _, p := range own {
		if p.Contains(neighbor) {
			return p.Addr()
		}
		if p.Addr().Is4() == neighbor.Is4() {
			a = p.Addr()
		}
	}
	return a
}

// send sends Ethernet frames on a link.
func send(link int, frames [][]byte) error {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0) // protocol 0: receives nothing
	if err != nil {
		return fmt.Errorf("packet socket: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	var errs []error
	for _, f := range frames {
		if err := unix.Sendto(fd, f, 0, &unix.SockaddrLinklayer{Ifindex: link}); err != nil {
			errs = append(errs, fmt.Errorf("send: %w", err))
		}
	}
	return errors.Join(errs...)
}

// announcement returns a gratuitous ARP request (RFC 5227, section 3) or an unsolicited neighbor
// advertisement (RFC 4861, section 7.2.6).
func announcement(mac cluster.MAC, own netip.Addr) []byte {
	if own.Is4() {
		return arp(request, broadcast, mac, own, cluster.MAC{}, own)
	}
	all := netip.AddrFrom16([16]byte{0: 0xff, 1: 0x02, 15: 1})
	return neighborMessage(multicast(all), mac, own, all, advertisement, override, own)
}

// answer returns an ARP reply, or a neighbor advertisement, to one neighbor.
func answer(mac cluster.MAC, own netip.Addr, to cluster.MAC, neighbor netip.Addr) []byte {
	if own.Is4() {
		return arp(reply, to, mac, own, to, neighbor)
	}
	return neighborMessage(to, mac, own, neighbor, advertisement, override, own)
}

// solicitation returns a request for the MAC of a neighbor (RFC 826; RFC 4861, section 7.2.2).
func solicitation(mac cluster.MAC, own, target netip.Addr) []byte {
	if own.Is4() {
		return arp(request, broadcast, mac, own, cluster.MAC{}, target)
	}
	t := target.As16()
	group := netip.AddrFrom16([16]byte{0: 0xff, 1: 0x02, 11: 1, 12: 0xff, 13: t[13], 14: t[14], 15: t[15]})
	return neighborMessage(multicast(group), mac, own, group, solicit, 0, target)
}

var broadcast = cluster.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// multicast returns the MAC of an IPv6 group (RFC 2464, section 7).
func multicast(group netip.Addr) cluster.MAC {
	g := group.As16()
	return cluster.MAC{0x33, 0x33, g[12], g[13], g[14], g[15]}
}

// Operations of ARP.
const (
	request = 1
	reply   = 2
)

func arp(operation byte, to, mac cluster.MAC, own netip.Addr, targetMAC cluster.MAC, target netip.Addr) []byte {
	f := ethernet(to, mac, unix.ETH_P_ARP)
	f = append(f, 0, 1, 8, 0, 6, 4, 0, operation) // Ethernet, IPv4, the lengths of their addresses
	f = append(append(f, mac[:]...), own.AsSlice()...)
	return append(append(f, targetMAC[:]...), target.AsSlice()...)
}

// Types of ICMPv6 messages, and of the option with the sender's MAC in each.
const (
	solicit, solicitOption             = 135, 1
	advertisement, advertisementOption = 136, 2

	override  = 0x20000000 // flag of an advertisement: it replaces the receiver's entry
	solicited = 0x40000000 // and of one that is a reply
)

// neighborMessage returns a neighbor solicitation or advertisement.
func neighborMessage(ether, mac cluster.MAC, from, to netip.Addr, kind byte, flags uint32, target netip.Addr) []byte {
	src, dst, of := from.As16(), to.As16(), target.As16()
	option := byte(solicitOption)
	if kind == advertisement {
		option = advertisementOption
	}
	message := binary.BigEndian.AppendUint32([]byte{kind, 0, 0, 0}, flags)
	message = append(append(message, of[:]...), option, 1)
	message = append(message, mac[:]...)
	pseudo := append(append([]byte{}, src[:]...), dst[:]...)
	pseudo = append(pseudo, 0, 0, 0, byte(len(message)), 0, 0, 0, unix.IPPROTO_ICMPV6)
	binary.BigEndian.PutUint16(message[2:], checksum(append(pseudo, message...)))

	f := ethernet(ether, mac, unix.ETH_P_IPV6)
	const hopLimit = 255 // receivers discard other values
	f = append(f, 0x60, 0, 0, 0, 0, byte(len(message)), unix.IPPROTO_ICMPV6, hopLimit)
	f = append(append(f, src[:]...), dst[:]...)
	return append(f, message...)
}

func ethernet(to, from cluster.MAC, kind uint16) []byte {
	return binary.BigEndian.AppendUint16(append(append([]byte{}, to[:]...), from[:]...), kind)
}

// checksum returns the Internet checksum (RFC 1071) of an even number of bytes.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
