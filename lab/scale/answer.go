package scale

import "encoding/binary"

// What an answer needs to know of RFC 8926 (Geneve), OVN's option in it, and of Ethernet, IPv4 and TCP: lengths and places, in bytes.
const (
	geneveHeader   = 8
	ovnOption      = 8 // class, type, length; then where the packet came into the switch, and where it leaves it, 16 bits each
	etherHeader    = 14
	ipHeader       = 20
	tcpHeader      = 20
	tcpSyn, tcpAck = 0x02, 0x10
	tcpReset       = 0x04
)

// answer gives the tunnel packet by which a node's kernel would refuse a connection to a port without a listener, which is what probes of
// egress nodes want to hear. Nil: the packet asks for none.
func answer(ask []byte) []byte {
	const inner = geneveHeader + ovnOption
	const all = inner + etherHeader + ipHeader + tcpHeader
	if len(ask) < all || ask[0]&0x3f != ovnOption/4 {
		return nil
	}
	ether, ip, tcp := ask[inner:], ask[inner+etherHeader:], ask[inner+etherHeader+ipHeader:]
	if binary.BigEndian.Uint16(ether[12:]) != 0x0800 || ip[0] != 0x45 || ip[9] != 6 || tcp[13]&(tcpSyn|tcpAck) != tcpSyn {
		return nil
	}
	a := make([]byte, all)
	copy(a, ask[:inner])
	copy(a[geneveHeader+4:], ask[geneveHeader+6:inner]) // the switch's ports change places
	copy(a[geneveHeader+6:], ask[geneveHeader+4:geneveHeader+6])
	e := a[inner:]
	copy(e, ether[6:12])
	copy(e[6:], ether[:6])
	copy(e[12:], ether[12:14])
	i := e[etherHeader:]
	i[0], i[8], i[9] = 0x45, 64, 6
	binary.BigEndian.PutUint16(i[2:], ipHeader+tcpHeader)
	copy(i[12:], ip[16:20])
	copy(i[16:], ip[12:16])
	binary.BigEndian.PutUint16(i[10:], checksum(0, i[:ipHeader]))
	t := i[ipHeader:]
	copy(t, tcp[2:4])
	copy(t[2:], tcp[:2])
	binary.BigEndian.PutUint32(t[8:], binary.BigEndian.Uint32(tcp[4:])+1)
	t[12], t[13] = tcpHeader/4<<4, tcpReset|tcpAck
	binary.BigEndian.PutUint16(t[16:], checksum(6+tcpHeader, i[12:]))
	return a
}

// checksum is that of the Internet (RFC 1071) of bytes, and of a number that stands for a pseudo header.
func checksum(sum uint32, b []byte) uint16 {
	for k := 0; k+1 < len(b); k += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[k:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
