package scale

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"hairpin/cluster"
	"hairpin/lab/attack"
)

// Lengths and offsets in bytes of the headers in a tunnel packet: RFC 8926 (Geneve) with OVN's
// option, Ethernet, IPv4 and TCP.
const (
	geneveHeader = 8
	// class, type, length; then the packet's input port and output port of the switch, 16 bits each
	ovnOption      = 8
	etherHeader    = 14
	ipHeader       = 20
	tcpHeader      = 20
	tcpSyn, tcpAck = 0x02, 0x10
)

// inner is the offset of the frame in a tunnel packet.
const inner = geneveHeader + ovnOption

// innerIP returns the frame in a tunnel packet and its IPv4 packet, nil if there is none.
func innerIP(ask []byte) (ether, ip []byte) {
	if len(ask) < inner+etherHeader+ipHeader || ask[0]&0x3f != ovnOption/4 ||
		binary.BigEndian.Uint16(ask[inner+12:]) != 0x0800 {
		return nil, nil
	}
	return ask[inner:], ask[inner+etherHeader:]
}

// innerTo returns the destination of the IPv4 packet in a tunnel packet.
func innerTo(ask []byte) netip.Addr {
	_, ip := innerIP(ask)
	if ip == nil {
		return netip.Addr{}
	}
	return netip.AddrFrom4([4]byte(ip[16:]))
}

// answer returns the tunnel packet with which a node's kernel would reject a connection to a port
// without a listener. Probes of egress nodes expect that reply. It returns nil for other packets.
func answer(ask []byte) []byte {
	ether, ip := innerIP(ask)
	if len(ip) < ipHeader+tcpHeader || ip[0] != 0x45 || ip[9] != 6 {
		return nil
	}
	tcp := ip[ipHeader:]
	if tcp[13]&(tcpSyn|tcpAck) != tcpSyn {
		return nil
	}
	ports := inner - 4 // of the switch: they are swapped
	tunnel := slices.Concat(ask[:ports], ask[ports+2:inner], ask[ports:ports+2])
	end := func(addr, port []byte) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(addr)), binary.BigEndian.Uint16(port))
	}
	reset := attack.Reset(end(ip[16:20], tcp[2:]), end(ip[12:16], tcp), binary.BigEndian.Uint32(tcp[4:])+1)
	return append(tunnel, attack.Frame(cluster.MAC(ether[:6]), cluster.MAC(ether[6:12]), reset)...)
}
