package plan

import (
	"net/netip"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/datapath/nft"
)

// vocabulary is what differs between the families in the words of OVN, OpenFlow and nft.
type vocabulary struct {
	match      string // OVN match: ip4.dst, ip6.dst
	ip         flow.Protocol
	l4         map[cluster.Protocol]flow.Protocol
	dst, src   nft.KeyField
	slot       nft.KeyField // of clients' addresses
	digit      string       // at the end of names
	tcpHeaders int          // bytes of the headers of IP and TCP
	loopback   netip.Prefix
	localhost  netip.Addr
	any        netip.Prefix
	linkLocal  netip.Prefix // of IPv6
	multicast  netip.Prefix
	ping       string // OVN match
	dhcp       uint16 // UDP port of DHCP clients
	icmp       flow.Protocol
	errors     []uint16   // types of ICMP that are about another packet
	tooBig     flow.Match // one of them: a packet is longer than the MTU of the way on (RFC 1191; RFC 4443)
}

var vocabularies = map[cluster.Family]vocabulary{
	cluster.IPv4: {
		match: "ip4", ip: flow.IP, dst: nft.KeyIPDst, src: nft.KeyIPSrc, slot: nft.KeyIPSlot, digit: "4", tcpHeaders: 40,
		l4:       map[cluster.Protocol]flow.Protocol{cluster.TCP: flow.TCP, cluster.UDP: flow.UDP, cluster.SCTP: flow.SCTP},
		loopback: netip.MustParsePrefix("127.0.0.0/8"), localhost: netip.MustParseAddr("127.0.0.1"),
		any: netip.MustParsePrefix("0.0.0.0/0"), multicast: netip.MustParsePrefix("224.0.0.0/4"), ping: "icmp4.type == 8", dhcp: 68,
		icmp: flow.ICMP, errors: []uint16{3, 11, 12}, tooBig: flow.Match{Protocol: flow.ICMP, ICMPType: 3 + 1, ICMPCode: 4 + 1},
	},
	cluster.IPv6: {
		match: "ip6", ip: flow.IPv6, dst: nft.KeyIP6Dst, src: nft.KeyIP6Src, slot: nft.KeyIP6Slot, digit: "6", tcpHeaders: 60,
		l4:       map[cluster.Protocol]flow.Protocol{cluster.TCP: flow.TCP6, cluster.UDP: flow.UDP6, cluster.SCTP: flow.SCTP6},
		loopback: netip.MustParsePrefix("::1/128"), localhost: netip.IPv6Loopback(),
		any: netip.MustParsePrefix("::/0"), linkLocal: netip.MustParsePrefix("fe80::/10"), multicast: netip.MustParsePrefix("ff00::/8"), ping: "icmp6.type == 128", dhcp: 546,
		icmp: flow.ICMP6, errors: []uint16{1, 2, 3, 4}, tooBig: flow.Match{Protocol: flow.ICMP6, ICMPType: 2 + 1},
	},
}

func words(f cluster.Family) vocabulary { return vocabularies[f] }

// everything is the default route's destination.
func everything(f cluster.Family) netip.Prefix { return vocabularies[f].any }

// masqMAC is claims.MasqMAC as a value.
func masqMAC() cluster.MAC {
	m, err := cluster.ParseMAC(claims.MasqMAC)
	if err != nil {
		panic(err) // a constant
	}
	return m
}
