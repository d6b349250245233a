// Package packet holds the values that a walk works with: a packet, the steps that it took, what
// the steps cost, and the cause if it did not arrive.
//
// Input: none; the interpreters of package walk fill the values in. Output: their text, as
// `hairpin explain` and the documents show it.
//
// Invariants: a Packet is a plain comparable value, so a step keeps a copy of it. Equal values have
// equal text.
package packet

import (
	"net/netip"
	"strconv"

	"hairpin/cluster"
	"hairpin/datapath/flow"
)

// Packet is the part of a packet that rules look at.
type Packet struct {
	Protocol         cluster.Protocol
	Src, Dst         netip.Addr
	SrcPort, DstPort uint16
	EthSrc, EthDst   cluster.MAC // zero: of a machine outside the cluster
	VLAN             uint16      // of the 802.1Q tag; 0: none
	Mark             uint32      // pkt_mark, skb mark
}

// Step is one rule that the packet met.
type Step struct {
	Node  string
	Stage string // "br-ex Classifier", "GR_node-a lr_in_dnat", "nft inet hairpin output", "ip route" …
	Rule  string // in the syntax of the real tool
	Did   string // in a few words
	Why   cluster.Owner
	After Packet
	// Entry is the conntrack entry that the step created, empty if none, as conntrack(8) prints it
	// without its volatile fields: "tcp src=… dst=… sport=… dport=… src=… dst=… sport=… dport=…
	// mark=2 zone=64001". Zone 0 is not written. OVN's own zones have names, such as GR_node-a_dnat
	// or default_web-1, because ovn-controller chooses their numbers.
	Entry string
	// Choices are the endpoints or next hops of which the step chose one; nil if there was no
	// choice.
	Choices []netip.AddrPort
}

// Pass is one pass through a conntrack zone, followed by another lookup (recirculation).
type Pass struct {
	State flow.CTBits
	Mark  uint32
	From  cluster.MAC // stored with the connection
	After Packet
}

// Source returns the packet's source address and port.
func (p *Packet) Source() netip.AddrPort { return netip.AddrPortFrom(p.Src, p.SrcPort) }

// Destination returns the packet's destination address and port.
func (p *Packet) Destination() netip.AddrPort { return netip.AddrPortFrom(p.Dst, p.DstPort) }

// Reply returns an answer to the packet, before a link gives it MACs.
func (p *Packet) Reply() Packet {
	return Packet{Protocol: p.Protocol, Src: p.Dst, Dst: p.Src, SrcPort: p.DstPort, DstPort: p.SrcPort}
}

// String returns "tcp 172.18.0.3:32768 > 10.96.0.11:80", and the mark if there is one.
func (p Packet) String() string {
	if p.Protocol == 0 {
		return ""
	}
	s := p.Protocol.String() + " " + p.addresses()
	if p.Mark != 0 {
		s += " mark 0x" + strconv.FormatUint(uint64(p.Mark), 16)
	}
	return s
}

// addresses returns the addresses and ports. WriteSteps writes a packet if they changed; changed
// MACs are in the text of the step.
func (p *Packet) addresses() string {
	switch {
	case !p.Dst.IsValid():
		return ""
	case !p.Src.IsValid():
		return "> " + p.Destination().String()
	}
	return p.Source().String() + " > " + p.Destination().String()
}

// Changed describes how the packet's addresses changed since before; empty if they did not.
func (p *Packet) Changed(before *Packet) string {
	var buffer [160]byte
	b := buffer[:0]
	if before.Src != p.Src || before.SrcPort != p.SrcPort {
		b = before.Source().AppendTo(append(b, "source "...))
		b = p.Source().AppendTo(append(b, " becomes "...))
	}
	if before.Dst != p.Dst || before.DstPort != p.DstPort {
		if len(b) > 0 {
			b = append(b, ", "...)
		}
		b = before.Destination().AppendTo(append(b, "destination "...))
		b = p.Destination().AppendTo(append(b, " becomes "...))
	}
	return string(b)
}

// MACText returns a MAC as text, or that it is not known.
func MACText(m cluster.MAC) string {
	if m == (cluster.MAC{}) {
		return "of a machine outside"
	}
	const hex = "0123456789abcdef"
	var b [17]byte
	for i, x := range m {
		b[3*i], b[3*i+1] = hex[x>>4], hex[x&15]
		if i > 0 {
			b[3*i-1] = ':'
		}
	}
	return string(b[:])
}

// RejectionOf names the packet with which a packet of a protocol is rejected.
func RejectionOf(p cluster.Protocol) string {
	switch p {
	case cluster.TCP:
		return "a TCP reset"
	case cluster.SCTP:
		return "an SCTP abort"
	}
	return "an ICMP port unreachable"
}
