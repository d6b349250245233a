package flow

import (
	"slices"

	"hairpin/cluster"
)

// protocol describes the packets of a Protocol.
type protocol struct {
	name      string         // ovs-ofctl's
	family    cluster.Family // of addresses; 0: none
	etherType uint16
	number    uint8 // of the IP protocol; 0: any
}

// protocols is indexed by Protocol. It is read-only.
var protocols = [...]protocol{
	Any:   {},
	ARP:   {"arp", cluster.IPv4, 0x806, 0},
	IP:    {"ip", cluster.IPv4, 0x800, 0},
	IPv6:  {"ipv6", cluster.IPv6, 0x86dd, 0},
	TCP:   {"tcp", cluster.IPv4, 0x800, 6},
	TCP6:  {"tcp6", cluster.IPv6, 0x86dd, 6},
	UDP:   {"udp", cluster.IPv4, 0x800, 17},
	UDP6:  {"udp6", cluster.IPv6, 0x86dd, 17},
	SCTP:  {"sctp", cluster.IPv4, 0x800, 132},
	SCTP6: {"sctp6", cluster.IPv6, 0x86dd, 132},
	ICMP:  {"icmp", cluster.IPv4, 0x800, 1},
	ICMP6: {"icmp6", cluster.IPv6, 0x86dd, 58},
}

func (p Protocol) row() protocol {
	if int(p) < len(protocols) {
		return protocols[p]
	}
	return protocol{}
}

// String returns ovs-ofctl's name, "" for Any.
func (p Protocol) String() string { return p.row().name }

// Family returns the family of the protocol's addresses, 0 for Any.
func (p Protocol) Family() cluster.Family { return p.row().family }

// ip returns the protocol of all packets of a family.
func ip(f cluster.Family) Protocol {
	if f == cluster.IPv6 {
		return IPv6
	}
	return IP
}

// ProtocolOf returns the protocol of packets of a family with a transport protocol. It returns IP
// or IPv6 for one that no flow matches.
func ProtocolOf(f cluster.Family, transport cluster.Protocol) Protocol {
	for p, row := range protocols {
		if row.family == f && row.number == uint8(transport) && Protocol(p) != ARP {
			return Protocol(p)
		}
	}
	return ip(f)
}

// protocolWith returns the protocol with an Ethernet type and an IP protocol; Any if there is none.
func protocolWith(etherType uint16, number uint8) Protocol {
	return Protocol(max(0, slices.IndexFunc(protocols[:],
		func(p protocol) bool { return p.etherType == etherType && p.number == number })))
}

// protocolNamed returns the protocol with a name. It also accepts the name that ovs-ofctl reads but
// does not print.
func protocolNamed(name string) (Protocol, bool) {
	if name == "icmpv6" {
		return ICMP6, true
	}
	for p := range protocols {
		if protocols[p].name == name && p != 0 {
			return Protocol(p), true
		}
	}
	return Any, false
}

// ctBits are the names of the bits of ct_state, in the order of the bits. It is read-only.
var ctBits = [...]string{"new", "est", "rel", "rpl", "inv", "trk", "snat", "dnat"}

func ctBit(name string) (CTBits, bool) {
	for i, w := range ctBits {
		if w == name {
			return 1 << i, true
		}
	}
	return 0, false
}
