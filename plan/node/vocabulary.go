package node

import (
	"net/netip"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/datapath/nft"
)

// Vocabulary holds the terms of OVN, OpenFlow and nft that differ between the IP families.
type Vocabulary struct {
	Match      string // OVN match: ip4.dst, ip6.dst
	IP         flow.Protocol
	L4         map[cluster.Protocol]flow.Protocol
	Dst, Src   nft.KeyField
	Slot       nft.KeyField // bits of the client's address, for session affinity
	digit      string       // 4 or 6, at the end of names
	tcpHeaders int          // bytes of the headers of IP and TCP
	Loopback   netip.Prefix
	Localhost  netip.Addr
	all        netip.Prefix
	LinkLocal  netip.Prefix // of IPv6
	Multicast  netip.Prefix
	Ping       string // OVN match
	DHCP       uint16 // UDP port of DHCP clients
	ICMP       flow.Protocol
	Errors     []uint16 // types of ICMP that are about another packet
	// TooBig is one of Errors: a packet is longer than the MTU of the path (RFC 1191; RFC 4443). A
	// flow.Match has type and code plus 1.
	TooBig flow.Match
}

var vocabularies = map[cluster.Family]Vocabulary{
	cluster.IPv4: {
		Match: "ip4", IP: flow.IP, Dst: nft.KeyIPDst, Src: nft.KeyIPSrc, Slot: nft.KeyIPSlot, digit: "4",
		tcpHeaders: 40,
		L4: map[cluster.Protocol]flow.Protocol{cluster.TCP: flow.TCP, cluster.UDP: flow.UDP,
			cluster.SCTP: flow.SCTP},
		Loopback: netip.MustParsePrefix("127.0.0.0/8"), Localhost: netip.MustParseAddr("127.0.0.1"),
		all: netip.MustParsePrefix("0.0.0.0/0"), Multicast: netip.MustParsePrefix("224.0.0.0/4"),
		Ping: "icmp4.type == 8", DHCP: 68,
		ICMP: flow.ICMP, Errors: []uint16{3, 11, 12},
		TooBig: flow.Match{Protocol: flow.ICMP, ICMPType: 3 + 1, ICMPCode: 4 + 1},
	},
	cluster.IPv6: {
		Match: "ip6", IP: flow.IPv6, Dst: nft.KeyIP6Dst, Src: nft.KeyIP6Src, Slot: nft.KeyIP6Slot, digit: "6",
		tcpHeaders: 60,
		L4: map[cluster.Protocol]flow.Protocol{cluster.TCP: flow.TCP6, cluster.UDP: flow.UDP6,
			cluster.SCTP: flow.SCTP6},
		Loopback: netip.MustParsePrefix("::1/128"), Localhost: netip.IPv6Loopback(),
		all: netip.MustParsePrefix("::/0"), LinkLocal: netip.MustParsePrefix("fe80::/10"),
		Multicast: netip.MustParsePrefix("ff00::/8"), Ping: "icmp6.type == 128", DHCP: 546,
		ICMP: flow.ICMP6, Errors: []uint16{1, 2, 3, 4}, TooBig: flow.Match{Protocol: flow.ICMP6, ICMPType: 2 + 1},
	},
}

// Vocab returns the Vocabulary of a family.
func Vocab(f cluster.Family) Vocabulary { return vocabularies[f] }

// AllAddresses returns the destination of the default route.
func AllAddresses(f cluster.Family) netip.Prefix { return vocabularies[f].all }

// MasqMAC returns claims.MasqMAC as a value.
func MasqMAC() cluster.MAC {
	m, err := cluster.ParseMAC(claims.MasqMAC)
	if err != nil {
		panic(err) // a constant
	}
	return m
}
