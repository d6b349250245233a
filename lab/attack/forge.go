package attack

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"hairpin/cluster"
)

// Tagged inserts VLAN tags (IEEE 802.1Q) into a frame, the outer one first. Of several, the outer
// one is a service tag (802.1ad).
func Tagged(frame []byte, vlans ...uint16) []byte {
	const macs = 2 * 6
	b := append([]byte{}, frame[:macs]...)
	for i, vlan := range vlans {
		kind := uint16(unix.ETH_P_8021Q)
		if i < len(vlans)-1 {
			kind = unix.ETH_P_8021AD
		}
		b = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, kind), vlan)
	}
	return append(b, frame[macs:]...)
}

// Fragments splits the payload of an IP packet at offsets, multiples of 8 (RFC 791; RFC 8200, 4.5).
func Fragments(packet []byte, offsets ...int) (parts [][]byte) {
	const header4, header6, more = 20, 40, 1 << 13
	id := binary.BigEndian.Uint16(packet[len(packet)-2:]) // the end of a mark is unique
	header := header4
	if packet[0]>>4 == 6 {
		header = header6
	}
	ends := append(slices.Clone(offsets), len(packet)-header)
	for i, end := range ends {
		begin, last := 0, i == len(offsets)
		if i > 0 {
			begin = ends[i-1]
		}
		b, part := slices.Clone(packet[:header]), packet[header+begin:header+end]
		place := uint16(begin)
		if header == header4 {
			if place /= 8; !last {
				place |= more
			}
			b = append(b, part...)
			binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
			binary.BigEndian.PutUint16(b[4:], id)
			binary.BigEndian.PutUint16(b[6:], place)
			copy(b[10:], []byte{0, 0})
			binary.BigEndian.PutUint16(b[10:], fold(sum(0, b[:header4])))
		} else {
			if !last {
				place |= 1
			}
			b = append(b, packet[6], 0) // the protocol of the next header
			b = binary.BigEndian.AppendUint16(b, place)
			b = append(binary.BigEndian.AppendUint32(b, uint32(id)), part...)
			b[6] = unix.IPPROTO_FRAGMENT
			binary.BigEndian.PutUint16(b[4:], uint16(len(b)-header6))
		}
		parts = append(parts, b)
	}
	return parts
}

// Corrupt changes the last byte of a frame, so that the transport protocol's checksum is wrong.
func Corrupt(frame []byte) []byte {
	frame[len(frame)-1]++
	return frame
}

// ARPAnnouncement announces an address from one MAC with another one as its hardware address.
func ARPAnnouncement(from, hardware cluster.MAC, claimed netip.Addr) []byte {
	const senderHardware = 14 + 8
	b := ARPReply(from, claimed)
	copy(b[senderHardware:], hardware[:])
	return b
}

// Advertise returns a neighbor advertisement to all nodes: of the address claimed, from the address
// src, with a target link-layer address.
func Advertise(from cluster.MAC, src, claimed netip.Addr, target cluster.MAC) []byte {
	a := claimed.As16()
	b := append([]byte{typeNA, 0, 0, 0, 0x20, 0, 0, 0}, a[:]...) // override
	b = append(append(b, 2, 1), target[:]...)
	return Frame(from, allNodesMAC, icmp6(src, allNodes, maxHops, b))
}
