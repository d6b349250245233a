package flow

import "hairpin/cluster"

// words are what ovs-ofctl calls a protocol and the fields that it brings.
type words struct {
	protocol string
	family   cluster.Family // of src and dst; 0: the protocol has no addresses that we match
	src, dst string
	ports    bool // has tp_src and tp_dst
	icmp     bool // has icmp_type
}

// protocols is the one table of words that differ by protocol and family, indexed by Protocol. It is read-only.
var protocols = [...]words{
	Any:   {},
	ARP:   {"arp", cluster.IPv4, "arp_spa", "arp_tpa", false, false},
	IP:    {"ip", cluster.IPv4, "nw_src", "nw_dst", false, false},
	IPv6:  {"ipv6", cluster.IPv6, "ipv6_src", "ipv6_dst", false, false},
	TCP:   {"tcp", cluster.IPv4, "nw_src", "nw_dst", true, false},
	TCP6:  {"tcp6", cluster.IPv6, "ipv6_src", "ipv6_dst", true, false},
	UDP:   {"udp", cluster.IPv4, "nw_src", "nw_dst", true, false},
	UDP6:  {"udp6", cluster.IPv6, "ipv6_src", "ipv6_dst", true, false},
	SCTP:  {"sctp", cluster.IPv4, "nw_src", "nw_dst", true, false},
	SCTP6: {"sctp6", cluster.IPv6, "ipv6_src", "ipv6_dst", true, false},
	ICMP:  {"icmp", cluster.IPv4, "nw_src", "nw_dst", false, true},
	ICMP6: {"icmp6", cluster.IPv6, "ipv6_src", "ipv6_dst", false, true},
}

func (p Protocol) words() words {
	if int(p) < len(protocols) {
		return protocols[p]
	}
	return words{}
}

// String returns ovs-ofctl's word, "" for Any.
func (p Protocol) String() string { return p.words().protocol }

// Family tells the family of the protocol's addresses, 0 for Any.
func (p Protocol) Family() cluster.Family { return p.words().family }

// linkField is the field of LinkAddr.
func (m Match) linkField() (name string, ok bool) {
	switch {
	case m.Protocol == ARP:
		return "arp_sha", true
	case m.Protocol == ICMP6 && m.ICMPType == 135+1:
		return "nd_sll", true
	case m.Protocol == ICMP6 && m.ICMPType == 136+1:
		return "nd_tll", true
	}
	return "", false
}

// protocolOf finds the protocol of a word, also of the one spelling that ovs-ofctl reads but does not print.
func protocolOf(word string) (Protocol, bool) {
	if word == "icmpv6" {
		return ICMP6, true
	}
	for p := range protocols {
		if protocols[p].protocol == word && p != 0 {
			return Protocol(p), true
		}
	}
	return Any, false
}

// fieldName leads from the spellings that ovs-ofctl reads (ovs-fields(7)) to the one that it prints.
func fieldName(word string) string {
	switch word {
	case "eth_src":
		return "dl_src"
	case "eth_dst":
		return "dl_dst"
	case "ip_src":
		return "nw_src"
	case "ip_dst":
		return "nw_dst"
	case "ip_frag":
		return "nw_frag"
	case "icmpv6_type":
		return "icmp_type"
	case "tcp_src", "udp_src", "sctp_src":
		return "tp_src"
	case "tcp_dst", "udp_dst", "sctp_dst":
		return "tp_dst"
	}
	return word
}

// ctBits are the names of the bits of ct_state, in the order of the bits. It is read-only.
var ctBits = [...]string{"new", "est", "rel", "rpl", "inv", "trk", "snat", "dnat"}

func ctBit(word string) (CTBits, bool) {
	for i, w := range ctBits {
		if w == word {
			return 1 << i, true
		}
	}
	return 0, false
}
