// Package attack creates, sends and receives packets of attackers: with spoofed addresses, router
// advertisements, tunnel packets. The lab's attacks use it to show that they are blocked.
package attack

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"hairpin/cluster"
)

// Numbers of RFC 826, 4443, 4861 and 8926.
const (
	EchoRequest4   = 8
	EchoRequest6   = 128
	typeRA         = 134
	typeNS         = 135
	typeNA         = 136
	GenevePort     = 6081
	etherBridging  = 0x6558 // Geneve: an Ethernet frame follows
	maxHops        = 255    // receivers reject neighbour discovery with less
	usualHops      = 64
	RouterLifetime = 1800 // seconds, as routers usually advertise
)

// Broadcast is the broadcast MAC.
var broadcast = cluster.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// allNodes and allNodesMAC address all machines of a link (RFC 4291).
var (
	allNodes    = netip.MustParseAddr("ff02::1")
	allNodesMAC = cluster.MAC{0x33, 0x33, 0, 0, 0, 1}
)

// Frame puts an IP packet into an Ethernet frame.
func Frame(src, dst cluster.MAC, packet []byte) []byte {
	kind := uint16(unix.ETH_P_IP)
	if packet[0]>>4 == 6 {
		kind = unix.ETH_P_IPV6
	}
	return append(ethernet(src, dst, kind), packet...)
}

func ethernet(src, dst cluster.MAC, kind uint16) []byte {
	return binary.BigEndian.AppendUint16(append(append([]byte{}, dst[:]...), src[:]...), kind)
}

// UDP returns a datagram with its IP header.
func UDP(src, dst netip.AddrPort, payload []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, src.Port())
	b = binary.BigEndian.AppendUint16(b, dst.Port())
	b = binary.BigEndian.AppendUint16(b, uint16(8+len(payload)))
	b = append(append(b, 0, 0), payload...)
	sum := transportSum(src.Addr(), dst.Addr(), unix.IPPROTO_UDP, b)
	if sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(b[6:], sum)
	return ip(src.Addr(), dst.Addr(), unix.IPPROTO_UDP, usualHops, b)
}

// TCP returns a segment with an acknowledgement and data, with its IP header.
func TCP(src, dst netip.AddrPort, seq, ack uint32, payload []byte) []byte {
	return tcp(src, dst, seq, ack, 0x18, payload) // PSH and ACK
}

// SYN returns the first segment of a TCP connection, with its IP header.
func SYN(src, dst netip.AddrPort) []byte { return tcp(src, dst, 1, 0, 2, nil) }

// SYNACK returns the answer to SYN, with its IP header; next is the sequence number after that of
// the SYN.
func SYNACK(src, dst netip.AddrPort, next uint32) []byte { return tcp(src, dst, 1, next, 0x12, nil) }

func tcp(src, dst netip.AddrPort, seq, ack uint32, flags byte, payload []byte) []byte {
	b := binary.BigEndian.AppendUint16(nil, src.Port())
	b = binary.BigEndian.AppendUint16(b, dst.Port())
	b = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, seq), ack)
	b = append(append(b, 5<<4, flags, 0xff, 0xff, 0, 0, 0, 0), payload...) // 5 words of header; the window
	binary.BigEndian.PutUint16(b[16:], transportSum(src.Addr(), dst.Addr(), unix.IPPROTO_TCP, b))
	return ip(src.Addr(), dst.Addr(), unix.IPPROTO_TCP, usualHops, b)
}

// Unreachable returns an ICMPv4 error with its IP header: no port at src for a packet of dst.
func Unreachable(src, dst netip.Addr, packet []byte) []byte {
	const portUnreachable, quoted = 3, 28
	b := append([]byte{3, portUnreachable, 0, 0, 0, 0, 0, 0}, packet[:min(len(packet), quoted)]...)
	binary.BigEndian.PutUint16(b[2:], fold(sum(0, b)))
	return ip(src, dst, unix.IPPROTO_ICMP, usualHops, b)
}

// TooBig returns the ICMP error that a packet exceeds an MTU of 1280, with its IP header.
func TooBig(src, dst netip.Addr, packet []byte) []byte {
	const mtu = 1280
	if src.Is6() {
		return icmp6(src, dst, usualHops, append([]byte{2, 0, 0, 0, 0, 0, mtu >> 8, mtu & 0xff}, packet...))
	}
	b := append([]byte{3, 4, 0, 0, 0, 0, mtu >> 8, mtu & 0xff}, packet...)
	binary.BigEndian.PutUint16(b[2:], fold(sum(0, b)))
	return ip(src, dst, unix.IPPROTO_ICMP, usualHops, b)
}

// Reset returns the rejection of a TCP connection, with its IP header; next is the sequence number
// after that of the SYN.
func Reset(src, dst netip.AddrPort, next uint32) []byte {
	return tcp(src, dst, 0, next, 0x14, nil) // RST and ACK
}

// Echo returns a ping with its IP header.
func Echo(src, dst netip.Addr, payload []byte) []byte {
	b := append([]byte{EchoRequest4, 0, 0, 0, 0x4a, 0x11, 0, 1}, payload...)
	if src.Is4() {
		binary.BigEndian.PutUint16(b[2:], fold(sum(0, b)))
		return ip(src, dst, unix.IPPROTO_ICMP, usualHops, b)
	}
	b[0] = EchoRequest6
	return icmp6(src, dst, usualHops, b)
}

// ARPRequest returns a frame that asks which machine has an address.
func ARPRequest(from cluster.MAC, own, wanted netip.Addr) []byte {
	f := append(ethernet(from, broadcast, unix.ETH_P_ARP), 0, 1, 8, 0, 6, 4, 0, 1)
	f = append(append(f, from[:]...), own.AsSlice()...)
	return append(append(f, make([]byte, 6)...), wanted.AsSlice()...)
}

// NeighborSolicitation is ARPRequest for IPv6.
func NeighborSolicitation(from cluster.MAC, own, wanted netip.Addr) []byte {
	a := wanted.As16()
	group := [16]byte{0: 0xff, 1: 0x02, 11: 1, 12: 0xff, 13: a[13], 14: a[14], 15: a[15]} // solicited-node
	b := append([]byte{typeNS, 0, 0, 0, 0, 0, 0, 0}, a[:]...)
	b = append(append(b, 1, 1), from[:]...) // source link-layer address
	return Frame(from, cluster.MAC{0x33, 0x33, 0xff, a[13], a[14], a[15]},
		icmp6(own, netip.AddrFrom16(group), maxHops, b))
}

// ARPReply announces the MAC of an address to the whole network.
func ARPReply(mac cluster.MAC, claimed netip.Addr) []byte {
	b := append(ethernet(mac, broadcast, unix.ETH_P_ARP), 0, 1, 8, 0, 6, 4, 0, 2)
	a := claimed.As4()
	b = append(append(b, mac[:]...), a[:]...)
	return append(append(b, broadcast[:]...), a[:]...)
}

// NeighborAdvertisement is ARPReply for IPv6. Its source is the sender's link-local address.
func NeighborAdvertisement(mac cluster.MAC, claimed netip.Addr) []byte {
	return Advertise(mac, LinkLocal(mac), claimed, mac)
}

// RouterAdvertisement announces the sender as a router, with a prefix from which each receiver
// forms an address, or withdraws both, if lifetime is 0.
func RouterAdvertisement(mac cluster.MAC, prefix netip.Prefix, lifetime uint16) []byte {
	b := []byte{typeRA, 0, 0, 0, usualHops, 0x08} // preference high
	b = binary.BigEndian.AppendUint16(b, lifetime)
	b = append(b, make([]byte, 8)...)
	a := prefix.Addr().As16()
	b = append(b, 3, 4, byte(prefix.Bits()), 0xc0) // prefix information: on link, autonomous
	b = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, uint32(lifetime)), uint32(lifetime))
	b = append(append(b, 0, 0, 0, 0), a[:]...)
	b = append(append(b, 1, 1), mac[:]...) // source link-layer address
	return Frame(mac, allNodesMAC, icmp6(LinkLocal(mac), allNodes, maxHops, b))
}

// Geneve encapsulates a frame as OVN does: with the network's number, and the ports from and to
// (class 0x0102, type 0x80).
func Geneve(network uint32, from, to uint16, frame []byte) []byte {
	b := binary.BigEndian.AppendUint16([]byte{2, 0}, etherBridging) // 2 words of options
	b = binary.BigEndian.AppendUint32(b, network<<8)
	b = append(b, 0x01, 0x02, 0x80, 1)
	b = binary.BigEndian.AppendUint32(b, uint32(from)<<16|uint32(to))
	return append(b, frame...)
}

// LinkLocal returns the link-local address for a MAC (RFC 4291, appendix A).
func LinkLocal(m cluster.MAC) netip.Addr {
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]})
}

func icmp6(src, dst netip.Addr, hops byte, b []byte) []byte {
	binary.BigEndian.PutUint16(b[2:], transportSum(src, dst, unix.IPPROTO_ICMPV6, b))
	return ip(src, dst, unix.IPPROTO_ICMPV6, hops, b)
}

// ip prepends an IP header to a payload.
func ip(src, dst netip.Addr, protocol, hops byte, payload []byte) []byte {
	if src.Is6() {
		b := binary.BigEndian.AppendUint16([]byte{6 << 4, 0, 0, 0}, uint16(len(payload)))
		b = append(b, protocol, hops)
		return append(append(append(b, src.AsSlice()...), dst.AsSlice()...), payload...)
	}
	b := binary.BigEndian.AppendUint16([]byte{4<<4 | 5, 0}, uint16(20+len(payload)))
	b = append(b, 0, 0, 0, 0, hops, protocol, 0, 0)
	b = append(append(b, src.AsSlice()...), dst.AsSlice()...)
	binary.BigEndian.PutUint16(b[10:], fold(sum(0, b)))
	return append(b, payload...)
}

// transportSum returns the checksum over the pseudo header and b (RFC 1071).
func transportSum(src, dst netip.Addr, protocol byte, b []byte) uint16 {
	s := sum(sum(0, src.AsSlice()), dst.AsSlice())
	return fold(sum(s+uint32(protocol)+uint32(len(b)), b))
}

func sum(s uint32, b []byte) uint32 {
	for ; len(b) > 1; b = b[2:] {
		s += uint32(b[0])<<8 | uint32(b[1])
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	return s
}

func fold(s uint32) uint16 {
	for s>>16 != 0 {
		s = s&0xffff + s>>16
	}
	return ^uint16(s)
}
