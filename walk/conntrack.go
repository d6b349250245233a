package walk

import (
	"net/netip"
	"strconv"

	"hairpin/cluster"
	"hairpin/datapath/flow"
)

// zone is one conntrack zone. OVN's own zones have names, because ovn-controller chooses their
// numbers. Zone 0 belongs to the kernel's stack and the kernel datapath; Open vSwitch's userspace
// datapath has its own conntrack.
type zone struct {
	node      string
	name      string
	userspace bool
}

// tuple is one direction of a connection.
type tuple struct {
	src, dst     netip.Addr
	sport, dport uint16
	protocol     cluster.Protocol
}

func tupleOf(p *Packet) tuple { return tuple{p.Src, p.Dst, p.SrcPort, p.DstPort, p.Protocol} }

func (t tuple) inverse() tuple { return tuple{t.dst, t.src, t.dport, t.sport, t.protocol} }

// entry is a committed connection. A packet of the original direction leaves as reply.inverse(), a
// packet of the reply direction as orig.inverse().
type entry struct {
	zone        zone
	orig, reply tuple
	mark        uint32
	from        cluster.MAC // source MAC stored with the connection
	answered    bool        // a packet of the reply direction was seen
}

// conntrack holds the entries of all zones of all nodes. A walk makes a dozen, so a list is
// fastest.
type conntrack struct{ entries []*entry }

// find returns the entry of a packet, and whether the packet runs in the reply direction.
func (c *conntrack) find(z zone, t tuple) (e *entry, reply bool) {
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
func (c *conntrack) commit(z zone, from, to tuple, source bool, ports portRange) (*entry, tuple) {
	if !ports.holds(to.sport) {
		to.sport = ports.min
	}
	for (source || from.src != to.src) && c.taken(z, to.inverse()) {
		if to.sport++; !ports.holds(to.sport) {
			to.sport = max(ports.min, 1024)
		}
	}
	e := &entry{zone: z, orig: from, reply: to.inverse()}
	c.entries = append(c.entries, e)
	return e, to
}

func (c *conntrack) taken(z zone, t tuple) bool {
	for _, e := range c.entries {
		if e.zone == z && (e.reply == t || e.orig == t) {
			return true
		}
	}
	return false
}

// portRange limits the source port of a translation; the zero range allows all ports.
type portRange struct{ min, max uint16 }

func (r portRange) holds(port uint16) bool { return r == portRange{} || r.min <= port && port <= r.max }

// String returns the entry as conntrack(8) prints it, without its volatile fields.
func (e *entry) String() string {
	b := make([]byte, 0, 160)
	b = append(b, e.orig.protocol.String()...)
	for _, t := range [...]tuple{e.orig, e.reply} {
		b = t.src.AppendTo(append(b, " src="...))
		b = t.dst.AppendTo(append(b, " dst="...))
		b = strconv.AppendUint(append(b, " sport="...), uint64(t.sport), 10)
		b = strconv.AppendUint(append(b, " dport="...), uint64(t.dport), 10)
	}
	if e.mark != 0 {
		b = strconv.AppendUint(append(b, " mark="...), uint64(e.mark), 10)
	}
	if e.zone.name != zone0 {
		b = append(append(b, " zone="...), e.zone.name...)
	}
	return string(b)
}

// tracking is the state that a packet in Open vSwitch keeps from its last pass through conntrack.
type tracking struct {
	zone  zone
	entry *entry      // nil: the connection is not committed
	bits  flow.CTBits // ct_state
}

func (t tracking) is(bit flow.CTBits) bool { return t.bits&bit != 0 }

// translation is what an OpenFlow or OVN action requests from conntrack besides the lookup.
type translation struct {
	commit bool
	nat    flow.NATKind
	addr   netip.Addr // of NATSrc and NATDst
	port   uint16     // of NATDst; 0 = keep
	ports  portRange  // of NATSrc
	mark   uint32
	// markMask has the bits of mark that are written; 0 = all, or none if mark is 0 as well
	markMask uint32
	ethSrc   bool // store the source MAC
	inline   bool // the packet continues in place, without another lookup in the datapath
}

// maxRecirculations limits the recirculations of a packet in the userspace datapath, which then
// drops it ("Max recirculation depth exceeded", MAX_RECIRC_DEPTH since Open vSwitch 3.4).
const maxRecirculations = 8

// track sends the packet through a zone, as Open vSwitch's ct action does. made is the committed
// entry, nil if none.
//
// A packet that returns to the zone of its last pass keeps its connection and is not translated
// again.
func (r *run) track(z zone, t translation) (made *entry) {
	r.cost.Passes++
	if !t.inline {
		r.recirculate()
		defer r.passed()
	}
	if r.ctState.bits != 0 && r.ctState.zone == z {
		if t.commit && r.ctState.entry == nil {
			return r.commit(z, t)
		}
		r.note(r.ctState.entry, t)
		return nil
	}
	e, reply := r.ct.find(z, tupleOf(&r.p))
	r.ctState = tracking{zone: z, entry: e, bits: flow.CTTrk}
	switch {
	case e == nil:
		r.ctState.bits |= flow.CTNew
		if t.commit {
			return r.commit(z, t)
		}
		return nil
	case reply:
		e.answered = true
		r.ctState.bits |= flow.CTEst | flow.CTRpl
	case e.answered:
		r.ctState.bits |= flow.CTEst
	default:
		r.ctState.bits |= flow.CTNew
	}
	if t.nat != flow.NoNAT {
		r.translate(e, reply)
	}
	r.note(e, t)
	return nil
}

// note stores with a connection the mark and the MAC that the action requests.
func (r *run) note(e *entry, t translation) {
	switch {
	case t.commit && t.markMask != 0:
		e.mark = e.mark&^t.markMask | t.mark
	case t.commit && t.mark != 0:
		e.mark = t.mark
	}
	if t.commit && t.ethSrc {
		e.from = r.p.EthSrc
	}
}

// recirculate counts one more lookup in the datapath.
func (r *run) recirculate() {
	r.recirculations++
	r.cost.Lookups++
}

// passed records the state with which the packet is looked up again.
func (r *run) passed() {
	if !r.visiting {
		return
	}
	p := Pass{State: r.ctState.bits, After: r.p}
	if e := r.ctState.entry; e != nil {
		p.Mark, p.From = e.mark, e.from
	}
	v := &r.visits[len(r.visits)-1]
	v.Passes = append(v.Passes, p)
}

func (r *run) commit(z zone, t translation) *entry {
	from := tupleOf(&r.p)
	to := from
	switch t.nat {
	case flow.NATSrc:
		if t.addr.IsValid() {
			to.src = t.addr
		}
	case flow.NATDst:
		to.dst = t.addr
		if t.port != 0 {
			to.dport = t.port
		}
	}
	e, to := r.ct.commit(z, from, to, t.nat == flow.NATSrc && !t.addr.IsValid(), t.ports)
	r.note(e, t)
	r.ctState.entry = e
	r.setTuple(to)
	return e
}

// translate changes the packet as its connection requires.
func (r *run) translate(e *entry, reply bool) {
	if reply {
		r.setTuple(e.orig.inverse())
		return
	}
	r.setTuple(e.reply.inverse())
}

// setTuple writes addresses and ports, and sets the bits of ct_state for what changed.
func (r *run) setTuple(t tuple) {
	if r.p.Src != t.src || r.p.SrcPort != t.sport {
		r.ctState.bits |= flow.CTSnat
	}
	if r.p.Dst != t.dst || r.p.DstPort != t.dport {
		r.ctState.bits |= flow.CTDnat
	}
	r.p.Src, r.p.Dst, r.p.SrcPort, r.p.DstPort = t.src, t.dst, t.sport, t.dport
}

// changed describes how the packet's addresses changed since before; empty if they did not.
func changed(before, after *Packet) string {
	var buffer [160]byte
	b := buffer[:0]
	if before.Src != after.Src || before.SrcPort != after.SrcPort {
		b = appendEndpoint(append(b, "source "...), before.Src, before.SrcPort)
		b = appendEndpoint(append(b, " becomes "...), after.Src, after.SrcPort)
	}
	if before.Dst != after.Dst || before.DstPort != after.DstPort {
		if len(b) > 0 {
			b = append(b, ", "...)
		}
		b = appendEndpoint(append(b, "destination "...), before.Dst, before.DstPort)
		b = appendEndpoint(append(b, " becomes "...), after.Dst, after.DstPort)
	}
	return string(b)
}

func appendEndpoint(b []byte, a netip.Addr, port uint16) []byte {
	return netip.AddrPortFrom(a, port).AppendTo(b)
}
