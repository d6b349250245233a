// Package nft describes the wanted or found content of Hairpin's nft tables.
//
// Tables, chains and rules are those of nft, in the few forms that Hairpin uses. A rule is a list
// of matches and one statement, each a type of this package. So a rule can be printed, parsed and
// walked without a parser for all of nft. A Service has elements of maps and sets, and no rules of
// its own: the number of rules does not depend on Services.
package nft

import (
	"net/netip"

	"hairpin/cluster"
	"hairpin/delta"
)

// State holds Hairpin's tables by family. All of them are named claims.NFTTable.
type State map[Family]*Table

// Family is an nft table family.
type Family string

// The families in use.
const (
	Inet   Family = "inet"
	Netdev Family = "netdev"
	IP     Family = "ip" // IP and IP6 have statements that inet lacks: see Dup
	IP6    Family = "ip6"
)

// Families returns all families.
func Families() []Family { return []Family{Inet, Netdev, IP, IP6} }

// Table is one table: base chains with rules, and maps and sets.
type Table struct {
	Chains map[string]*Chain
	Maps   map[string]*Map
	Sets   map[string]*Set
	// Unknown lists parts of a found table for which this package has no type, in nft's syntax. No
	// wanted table has any: Diff deletes the whole table and creates it again, in one transaction.
	Unknown []string
}

// Chain is a chain; a base chain has a Hook.
type Chain struct {
	Name     string
	Type     string // "nat" or "filter"; empty = not a base chain
	Hook     string // "prerouting", "input", "output", "postrouting", "ingress"
	Device   string // of netdev chains; apply adds the chain when the device exists
	Priority int    // -100 is nft's dstnat, 0 its filter, 100 its srcnat
	Rules    []Rule
	Owner    cluster.Owner
}

// Rule is one rule: if all matches hold, the statement is executed. The order of the rules of a
// chain matters.
type Rule struct {
	Matches []Match
	Do      Statement
	Comment string
	Owner   cluster.Owner
}

// Match is one condition of a rule: one of the types below.
type Match interface{ match() }

// AddrIn is "ip saddr/daddr PREFIX" or the same for ip6.
type AddrIn struct {
	Dst    bool // daddr, else saddr
	Not    bool
	Prefix netip.Prefix
}

// DstIsLocal is "fib daddr type local": the destination is an address of this host.
type DstIsLocal struct{}

// L4Proto is "meta l4proto tcp", "meta l4proto udp" …
type L4Proto struct{ Protocol cluster.Protocol }

// DstPort is "tcp dport N", "udp dport N" …; it implies the protocol.
type DstPort struct {
	Protocol cluster.Protocol
	Port     uint16
}

// OutInterface is "oifname NAME". A * at the end of NAME matches any rest of a name.
type OutInterface struct {
	Name string
	Not  bool
}

// InInterface is "iifname NAME", with the same *.
type InInterface struct {
	Name string
	Not  bool
}

// MarkIs is "meta mark & Mask == Value".
type MarkIs struct{ Value, Mask uint32 }

// InSet is "ip daddr . meta l4proto . th dport @NAME" and the like: the packet's values of the
// set's key fields are an element of the set.
type InSet struct{ Set string }

// EtherSrc is "ether saddr MAC": the source MAC of the frame.
type EtherSrc struct{ MAC cluster.MAC }

// NoSYN is "tcp flags ! syn": any packet of a TCP connection except those that open it.
type NoSYN struct{}

// CTMarkIs is "ct mark Value": the mark of the packet's connection.
type CTMarkIs struct{ Value uint32 }

// CTState is "ct state related" and the like: the state of the packet in connection tracking.
type CTState string

// The states in use.
const (
	CTRelated      CTState = "related"     // about a known connection, such as an ICMP error
	CTEstablished  CTState = "established" // of a connection with packets in both directions
	CTNewOrInvalid CTState = "invalid,new" // of no known connection
)

// CTDirection is "ct direction original" or "ct direction reply": whether the packet goes in the
// direction in which its connection began. A packet without a connection matches neither.
type CTDirection string

// The directions.
const (
	CTOriginal CTDirection = "original"
	CTReply    CTDirection = "reply"
)

// Statement is what a rule does: one of the types below.
type Statement interface{ statement() }

// Accept, Drop and Return are verdicts.
type (
	Accept struct{} // the packet passes this base chain
	Drop   struct{} // the packet is dropped
	Return struct{} // the evaluation of the calling chain continues
)

// Reject drops the packet and informs its sender: "reject with icmpx port-unreachable", or with a
// TCP reset, which requires a preceding match on TCP.
type Reject struct{ TCPReset bool }

// Masquerade translates the source to the address of the output interface.
type Masquerade struct{}

// SNAT translates the source to Addr.
type SNAT struct{ Addr netip.Addr }

// Forward sends the frame out of a device immediately; only in the family netdev.
type Forward struct{ Device string }

// Dup sends an unchanged copy of the packet to another machine: "dup to ADDRESS device NAME"; only
// in the families ip and ip6. The device must exist. The original continues with the next rule.
type Dup struct {
	To     netip.Addr
	Device string
}

// SetMark is "meta mark set".
type SetMark struct{ Value uint32 }

// AddMark is "meta mark set meta mark | Bits": it sets these bits and keeps the others.
type AddMark struct{ Bits uint32 }

// SaveMark is "ct mark set meta mark": it copies the packet's mark to the connection.
type SaveMark struct{}

// RestoreMark is "meta mark set ct mark": it copies the connection's mark to the packet.
type RestoreMark struct{}

// SNATMap is "snat ip to ip saddr . oifname map @NAME": it looks up the packet's source and output
// interface in a map of the table and translates the source to the result. A packet without an
// element continues with the next rule.
type SNATMap struct{ Map string }

// DNATMap is "dnat ip to meta l4proto . th dport map @NAME": it looks up the packet's values of the
// map's key fields in a map of the table and translates the destination to the result. A packet
// without an element continues with the next rule. nft requires the protocol and the port in the
// map's key.
type DNATMap struct{ Map string }

// KeyField is a field of the key of a map or set.
type KeyField string

// The key fields, in nft's syntax.
const (
	KeyIPDst  KeyField = "ip daddr"
	KeyIP6Dst KeyField = "ip6 daddr"
	KeyProto  KeyField = "meta l4proto"
	KeyPort   KeyField = "th dport"
	// The source. As the last field of a set's key, it is a range of addresses (flags interval);
	// ranges of a set must not overlap. Before KeyOut, it is one address.
	KeyIPSrc  KeyField = "ip saddr"
	KeyIP6Src KeyField = "ip6 saddr"
	KeyOut    KeyField = "oifname" // the last field, after a source
	// A slot: four bits of the client's port or address, by which a map distributes clients over
	// endpoints. Only the last field of a map's key, after a port. A port's lowest bit is not used,
	// because Linux prefers even ports for connections.
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

// Map maps each key to an address of one family and a port. With KeyOut in the key, it maps each
// key to an address only.
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

// Element is the key of one element of a Map or Set. It has only the fields of the Map's or Set's
// Key; the others are zero.
type Element struct {
	Addr     netip.Addr
	Protocol cluster.Protocol
	Port     uint16
	Src      netip.Prefix
	Out      string // name of the output interface
	Slot     uint8  // see SlotOf
}

// Target is the value of a Map's element.
type Target struct {
	Addr  netip.AddrPort // port 0 if the map has none
	Owner cluster.Owner  // read from the kernel: zero if longer than MaxComment
}

// Holds reports whether the set has an element for a packet with this key and source. Of a set with
// ranges, it is an element with a range that contains src.
func (s *Set) Holds(key Element, src netip.Addr) bool {
	if !s.HasRanges() {
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
