// Package nft describes the wanted or found content of our nft tables.
//
// Tables, chains and rules are those of nft, in the few forms that Hairpin uses. A rule is a list
// of matches and one verdict, each a type of this package. So a rule can be printed, read back and
// walked without a parser for all of nft. What changes with every Service is in map and set
// elements, never in rules: the number of rules is constant.
package nft

import (
	"net/netip"

	"hairpin/cluster"
	"hairpin/delta"
)

// State holds our tables by family. All of them are named claims.NFTTable.
type State map[Family]*Table

// Family is an nft table family.
type Family string

// The families in use.
const (
	Inet   Family = "inet"
	Netdev Family = "netdev"
	IP     Family = "ip" // IP and IP6 are for statements that inet lacks: see Dup
	IP6    Family = "ip6"
)

// Families returns all families.
func Families() []Family { return []Family{Inet, Netdev, IP, IP6} }

// Table is one table: base chains with rules, and maps and sets.
type Table struct {
	Chains map[string]*Chain
	Maps   map[string]*Map
	Sets   map[string]*Set
	// Unknown lists what was found in the table and has no type here, in nft's syntax. It is never
	// wanted: Diff deletes the whole table and creates it again, in one transaction.
	Unknown []string
}

// Chain is a chain; a base chain has a Hook.
type Chain struct {
	Name     string
	Type     string // "nat", "filter"; empty = not a base chain
	Hook     string // "prerouting", "input", "output", "postrouting", "ingress"
	Device   string // of netdev chains. apply omits a chain whose device does not exist, and waits for the device
	Priority int    // number: -100 is dstnat, 100 srcnat, 0 filter
	Rules    []Rule
	Owner    cluster.Owner
}

// Rule is one rule: if all matches hold, the statement runs. Rules are compared in order.
type Rule struct {
	Matches []Match
	Do      Statement
	Comment string
	Owner   cluster.Owner
}

// Match is one condition, of a closed set: the types below.
type Match interface{ match() }

// AddrIn is "ip saddr/daddr PREFIX" or the same for ip6.
type AddrIn struct {
	Dst    bool // daddr, else saddr
	Not    bool
	Prefix netip.Prefix
}

// DstIsLocal is "fib daddr type local": the destination is an address of this host.
type DstIsLocal struct{}

// L4Proto is "meta l4proto tcp".
type L4Proto struct{ Protocol cluster.Protocol }

// DstPort is "tcp dport N", "udp dport N" …; it implies the protocol.
type DstPort struct {
	Protocol cluster.Protocol
	Port     uint16
}

// OutInterface is "oifname NAME"; InInterface is "iifname NAME". A * at the end of a name matches
// any rest.
type OutInterface struct {
	Name string
	Not  bool
}

// InInterface is "iifname NAME".
type InInterface struct {
	Name string
	Not  bool
}

// MarkIs is "meta mark & Mask == Value".
type MarkIs struct{ Value, Mask uint32 }

// InSet is "ip daddr . meta l4proto . th dport @NAME" and the like: the key fields are those of the
// set.
type InSet struct{ Set string }

// EtherSrc is "ether saddr MAC": the source MAC of the frame.
type EtherSrc struct{ MAC cluster.MAC }

// NoSYN is "tcp flags ! syn": a later packet of a TCP connection.
type NoSYN struct{}

// CTMarkIs is "ct mark Value": the mark of the packet's connection.
type CTMarkIs struct{ Value uint32 }

// CTState is the state of a packet's connection: "ct state related".
type CTState string

// States of connections.
const (
	CTRelated     CTState = "related"     // belongs to a known connection, such as an ICMP error
	CTEstablished CTState = "established" // both sides have sent
	CTUnknown     CTState = "invalid,new" // belongs to no known connection
)

// CTDirection is "ct direction original" or "ct direction reply": whether the packet goes in the
// direction in which its connection began. A packet without a connection matches neither.
type CTDirection string

// Directions of packets.
const (
	CTOriginal CTDirection = "original"
	CTReply    CTDirection = "reply"
)

// Statement is the effect of a rule, of a closed set: the types below.
type Statement interface{ statement() }

// Accept, Drop, Return are verdicts.
type (
	// Accept ends the hook for this packet.
	Accept struct{}
	// Drop ends the packet.
	Drop struct{}
	// Return goes back to the calling chain.
	Return struct{}
)

// Reject drops the packet and informs its sender: "reject with icmpx port-unreachable", or with a
// TCP reset, which requires a preceding match on TCP.
type Reject struct{ TCPReset bool }

// Masquerade translates the source to the address of the egress interface.
type Masquerade struct{}

// SNAT translates the source to an address.
type SNAT struct{ Addr netip.Addr }

// Forward sends the frame out of a device immediately; only in the family netdev.
type Forward struct{ Device string }

// Dup sends an unchanged copy of the packet to another machine: "dup to ADDRESS device NAME"; only
// in the families ip and ip6. The copy leaves by an existing device, and the original continues
// with the next rule.
type Dup struct {
	To     netip.Addr
	Device string
}

// SetMark is "meta mark set".
type SetMark struct{ Value uint32 }

// AddMark is "meta mark set meta mark | Bits".
type AddMark struct{ Bits uint32 }

// SaveMark is "ct mark set meta mark": it copies the packet's mark to the connection. RestoreMark
// is the reverse.
type SaveMark struct{}

// RestoreMark is "meta mark set ct mark".
type RestoreMark struct{}

// SNATMap looks up the packet's source and egress interface in a map of the table and translates
// the source to the result. A packet without an element continues with the next rule. "snat ip to
// ip saddr . oifname map @NAME".
type SNATMap struct{ Map string }

// DNATMap looks up the packet's key in a map of the table and translates the destination to the
// result. A packet without an element continues with the next rule. "dnat ip to meta l4proto . th
// dport map @NAME". nft requires the protocol and the port in the map's key.
type DNATMap struct{ Map string }

// KeyField is a part of the key of a map or set.
type KeyField string

// The key fields, in nft's syntax.
const (
	KeyIPDst  KeyField = "ip daddr"
	KeyIP6Dst KeyField = "ip6 daddr"
	KeyProto  KeyField = "meta l4proto"
	KeyPort   KeyField = "th dport"
	// As the last field, of sets only: the source is within a range (flags interval). Ranges must
	// not overlap. Before KeyOut: the source is that address.
	KeyIPSrc  KeyField = "ip saddr"
	KeyIP6Src KeyField = "ip6 saddr"
	KeyOut    KeyField = "oifname" // after a source, and then the last field
	// As the last field, after a port, of maps only: a slot, which is some bits of the client's
	// port or address. A port's lowest bit is not used: Linux gives connections even ports.
	KeyPortSlot KeyField = "(th sport & 30)"
	KeyIPSlot   KeyField = "(ip saddr & 0.0.0.15)"
	KeyIP6Slot  KeyField = "(ip6 saddr & ::f)"
)

// Slots is the number of slots.
const Slots = 16

// SlotOf returns the slot of a client's port or address.
func SlotOf(k KeyField, client netip.AddrPort) uint8 {
	if k == KeyPortSlot {
		return uint8(client.Port() >> 1 % Slots)
	}
	b := client.Addr().AsSlice()
	return b[len(b)-1] % Slots
}

// Map maps keys to an address and a port of one family; keys with KeyOut to an address only.
type Map struct {
	Name     string
	Family   cluster.Family // of the value
	Key      []KeyField
	Elements delta.Map[Element, Target]
}

// Set is a set of keys.
type Set struct {
	Name     string
	Key      []KeyField
	Elements delta.Map[Element, cluster.Owner]
}

// Element is a key of a Map or Set; only the fields in its Key are set. It is comparable.
type Element struct {
	Addr     netip.Addr
	Protocol cluster.Protocol
	Port     uint16
	Src      netip.Prefix
	Out      string // interface
	Slot     uint8
}

// Target is the value of a Map's element.
type Target struct {
	Addr  netip.AddrPort // port 0 if the map has none
	Owner cluster.Owner  // in the kernel a comment of the element; zero if too long for one (see MaxComment)
}

// Holds reports whether the set has a key. If its key has a source, it reports whether one of its
// ranges contains src.
func (s *Set) Holds(key Element, src netip.Addr) bool {
	if !s.Ranges() {
		_, held := s.Elements.Get(key)
		return held
	}
	for bits := range src.BitLen() + 1 {
		var err error
		if key.Src, err = src.Prefix(bits); err != nil {
			return false
		}
		if _, held := s.Elements.Get(key); held {
			return true
		}
	}
	return false
}

func (AddrIn) match()       {}
func (DstIsLocal) match()   {}
func (L4Proto) match()      {}
func (DstPort) match()      {}
func (OutInterface) match() {}
func (InInterface) match()  {}
func (MarkIs) match()       {}
func (InSet) match()        {}
func (CTState) match()      {}
func (CTMarkIs) match()     {}
func (CTDirection) match()  {}
func (EtherSrc) match()     {}
func (NoSYN) match()        {}

func (Accept) statement()      {}
func (Drop) statement()        {}
func (Return) statement()      {}
func (Reject) statement()      {}
func (Masquerade) statement()  {}
func (SNAT) statement()        {}
func (SetMark) statement()     {}
func (AddMark) statement()     {}
func (Forward) statement()     {}
func (Dup) statement()         {}
func (DNATMap) statement()     {}
func (SNATMap) statement()     {}
func (SaveMark) statement()    {}
func (RestoreMark) statement() {}
