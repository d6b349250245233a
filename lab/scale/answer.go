package scale

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"hairpin/cluster"
	"hairpin/lab/attack"
)

// What an answer needs to know of RFC 8926 (Geneve), OVN's option in it, and of Ethernet, IPv4 and
// TCP: lengths and places, in bytes.
const (
	geneveHeader = 8
	// class, type, length; then where the packet came into the switch, and where it leaves it, 16
	// bits each
	ovnOption      = 8
	etherHeader    = 14
	ipHeader       = 20
	tcpHeader      = 20
	tcpSyn, tcpAck = 0x02, 0x10
)

// inner is where a tunnel packet has its frame.
const inner = geneveHeader + ovnOption

// innerIP gives the frame in a tunnel packet, and the IPv4 packet in that; nil: there is none.
func innerIP(ask []byte) (ether, ip []byte) {
	if len(ask) < inner+etherHeader+ipHeader || ask[0]&0x3f != ovnOption/4 ||
		binary.BigEndian.Uint16(ask[inner+12:]) != 0x0800 {
		return nil, nil
	}
	return ask[inner:], ask[inner+etherHeader:]
}

// innerTo is whom the IPv4 packet in a tunnel packet is for.
func innerTo(ask []byte) netip.Addr {
	_, ip := innerIP(ask)
	if ip == nil {
		return netip.Addr{}
	}
	return netip.AddrFrom4([4]byte(ip[16:]))
}

// answer gives the tunnel packet by which a node's kernel would refuse a connection to a port
// without a listener, which is what probes of egress nodes want to hear. Nil: the packet asks for
// none.
func answer(ask []byte) []byte {
	ether, ip := innerIP(ask)
	if len(ip) < ipHeader+tcpHeader || ip[0] != 0x45 || ip[9] != 6 {
		return nil
	}
	tcp := ip[ipHeader:]
	if tcp[13]&(tcpSyn|tcpAck) != tcpSyn {
		return nil
	}
	ports := inner - 4 // of the switch: they change places
	tunnel := slices.Concat(ask[:ports], ask[ports+2:inner], ask[ports:ports+2])
	end := func(addr, port []byte) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(addr)), binary.BigEndian.Uint16(port))
	}
	reset := attack.Reset(end(ip[16:20], tcp[2:]), end(ip[12:16], tcp), binary.BigEndian.Uint32(tcp[4:])+1)
	return append(tunnel, attack.Frame(cluster.MAC(ether[:6]), cluster.MAC(ether[6:12]), reset)...)
}
