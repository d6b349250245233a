// Package conntrack models connection tracking: the entries of all zones of all nodes, with lookup,
// commit and address translation.
//
// Input: a packet, a zone, and what an action of OpenFlow or OVN requests. Output: the translated
// packet, its ct_state, and the committed entry. Connection is the same for the kernel's own
// stack, which looks a packet up once and commits it when it leaves.
//
// Invariants: a connection has one entry per zone. Two entries of a zone never share a tuple: a
// translated source gets another port, as in nf_nat. Entries do not expire.
package conntrack

import (
	"net/netip"
	"strconv"

	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/walk/packet"
)

// Zone is one conntrack zone. OVN's own zones have names, because ovn-controller chooses their
// numbers. Zone 0 belongs to the kernel's stack and the kernel datapath; Open vSwitch's userspace
// datapath has its own conntrack.
type Zone struct {
	Node      string
	Name      string
	Userspace bool
}

// zone0 is the name of the zone of the kernel's own stack.
const zone0 = "0"

// kernelZone returns the zone of a node's own stack.
func kernelZone(node string) Zone { return Zone{Node: node, Name: zone0} }

// Tuple is one direction of a connection.
type Tuple struct {
	Src, Dst         netip.Addr
	SrcPort, DstPort uint16
	Protocol         cluster.Protocol
}

// TupleOf returns the tuple of a packet.
func TupleOf(p *packet.Packet) Tuple { return Tuple{p.Src, p.Dst, p.SrcPort, p.DstPort, p.Protocol} }

func (t Tuple) inverse() Tuple { return Tuple{t.Dst, t.Src, t.DstPort, t.SrcPort, t.Protocol} }

// Entry is a committed connection. A packet of the original direction leaves as reply.inverse(), a
// packet of the reply direction as orig.inverse().
type Entry struct {
	zone        Zone
	orig, reply Tuple
	Mark        uint32
	From        cluster.MAC // source MAC stored with the connection
	answered    bool        // a packet of the reply direction was seen
}

// Table holds the entries of all zones of all nodes. A walk makes a dozen, so a list is fastest.
type Table struct{ entries []*Entry }

// Find returns the entry of a packet, and whether the packet runs in the reply direction.
func (c *Table) Find(z Zone, t Tuple) (e *Entry, reply bool) {
	for _, e := range c.entries {
		switch {
		case e.zone != z:
		case e.orig == t:
			return e, false
		case e.reply == t:
			return e, true
		}
	}
	return nil, false
}

// commit creates an entry for a connection that arrives as from and leaves as to. If the source is
// or may be translated, and another connection has the same reply tuple, to gets another source
// port, as in nf_nat. commit returns the final to.
func (c *Table) commit(z Zone, from, to Tuple, source bool, ports PortRange) (*Entry, Tuple) {
	if !ports.holds(to.SrcPort) {
		to.SrcPort = ports.Min
	}
	for (source || from.Src != to.Src) && c.taken(z, to.inverse()) {
		if to.SrcPort++; !ports.holds(to.SrcPort) {
			to.SrcPort = ports.Min
		}
	}
	e := &Entry{zone: z, orig: from, reply: to.inverse()}
	c.entries = append(c.entries, e)
	return e, to
}

func (c *Table) taken(z Zone, t Tuple) bool {
	for _, e := range c.entries {
		if e.zone == z && (e.reply == t || e.orig == t) {
			return true
		}
	}
	return false
}

// PortRange limits the source port of a translation; the zero range allows all ports.
type PortRange struct{ Min, Max uint16 }

func (r PortRange) holds(port uint16) bool { return r == PortRange{} || r.Min <= port && port <= r.Max }

// String returns the entry as conntrack(8) prints it, without its volatile fields.
func (e *Entry) String() string {
	b := make([]byte, 0, 160)
	b = append(b, e.orig.Protocol.String()...)
	for _, t := range [...]Tuple{e.orig, e.reply} {
		b = t.Src.AppendTo(append(b, " src="...))
		b = t.Dst.AppendTo(append(b, " dst="...))
		b = strconv.AppendUint(append(b, " sport="...), uint64(t.SrcPort), 10)
		b = strconv.AppendUint(append(b, " dport="...), uint64(t.DstPort), 10)
	}
	if e.Mark != 0 {
		b = strconv.AppendUint(append(b, " mark="...), uint64(e.Mark), 10)
	}
	if e.zone.Name != zone0 {
		b = append(append(b, " zone="...), e.zone.Name...)
	}
	return string(b)
}

// State is what a packet in Open vSwitch keeps from its last pass through conntrack.
type State struct {
	zone  Zone
	Entry *Entry      // nil: the connection is not committed
	Bits  flow.CTBits // ct_state
}

// Is reports whether a bit of ct_state is set.
func (s State) Is(bit flow.CTBits) bool { return s.Bits&bit != 0 }

// Mark returns ct_mark.
func (s State) Mark() uint32 {
	if s.Entry == nil {
		return 0
	}
	return s.Entry.Mark
}

// Translation is what an OpenFlow or OVN action requests from conntrack besides the lookup.
type Translation struct {
	Commit bool
	NAT    flow.NATKind
	Addr   netip.Addr // of NATSrc and NATDst
	Port   uint16     // of NATDst; 0 = keep
	Ports  PortRange  // of NATSrc
	Mark   uint32
	// MarkMask has the bits of Mark that are written; 0 = all, or none if Mark is 0 as well
	MarkMask uint32
	EthSrc   bool // store the source MAC
	Inline   bool // the packet continues in place, without another lookup in the datapath
}

// Track sends a packet through a zone, as Open vSwitch's ct action does. s is the packet's state.
// made is the committed entry, nil if none.
//
// A packet that returns to the zone of its last pass keeps its connection and is not translated
// again.
func (c *Table) Track(p *packet.Packet, s *State, z Zone, t Translation) (made *Entry) {
	if s.Bits != 0 && s.zone == z {
		if t.Commit && s.Entry == nil {
			return c.commitPacket(p, s, z, t)
		}
		s.Entry.note(p, t)
		return nil
	}
	e, reply := c.Find(z, TupleOf(p))
	*s = State{zone: z, Entry: e, Bits: flow.CTTrk}
	switch {
	case e == nil:
		s.Bits |= flow.CTNew
		if t.Commit {
			return c.commitPacket(p, s, z, t)
		}
		return nil
	case reply:
		e.answered = true
		s.Bits |= flow.CTEst | flow.CTRpl
	case e.answered:
		s.Bits |= flow.CTEst
	default:
		s.Bits |= flow.CTNew
	}
	if t.NAT != flow.NoNAT {
		s.setTuple(p, e.translated(reply))
	}
	e.note(p, t)
	return nil
}

// note stores with a connection the mark and the MAC that the action requests.
func (e *Entry) note(p *packet.Packet, t Translation) {
	switch {
	case t.Commit && t.MarkMask != 0:
		e.Mark = e.Mark&^t.MarkMask | t.Mark
	case t.Commit && t.Mark != 0:
		e.Mark = t.Mark
	}
	if t.Commit && t.EthSrc {
		e.From = p.EthSrc
	}
}

func (c *Table) commitPacket(p *packet.Packet, s *State, z Zone, t Translation) *Entry {
	from := TupleOf(p)
	to := from
	switch t.NAT {
	case flow.NATSrc:
		if t.Addr.IsValid() {
			to.Src = t.Addr
		}
	case flow.NATDst:
		to.Dst = t.Addr
		if t.Port != 0 {
			to.DstPort = t.Port
		}
	}
	e, to := c.commit(z, from, to, t.NAT == flow.NATSrc && !t.Addr.IsValid(), t.Ports)
	e.note(p, t)
	s.Entry = e
	s.setTuple(p, to)
	return e
}

// translated returns the tuple of a packet of the connection after translation.
func (e *Entry) translated(reply bool) Tuple {
	if reply {
		return e.orig.inverse()
	}
	return e.reply.inverse()
}

// setTuple writes addresses and ports, and sets the bits of ct_state for what changed.
func (s *State) setTuple(p *packet.Packet, t Tuple) {
	if p.Src != t.Src || p.SrcPort != t.SrcPort {
		s.Bits |= flow.CTSnat
	}
	if p.Dst != t.Dst || p.DstPort != t.DstPort {
		s.Bits |= flow.CTDnat
	}
	p.Src, p.Dst, p.SrcPort, p.DstPort = t.Src, t.Dst, t.SrcPort, t.DstPort
}
