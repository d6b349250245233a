package conntrack

import "hairpin/walk/packet"

// Connection is a packet's connection in the kernel's own conntrack (zone 0), while the packet is
// in the host.
type Connection struct {
	entry *Entry // nil: the connection is new
	reply bool
	first Tuple  // as the packet arrived
	mark  uint32 // of a new connection
	// Source and Destination are set when no nat chain may translate that address any more.
	Source, Destination bool
	// refusal is set for a reset that nft sends. It belongs to the connection that it rejects, and
	// ends it.
	refusal bool
}

// Enter looks up the connection of a packet that enters a node's kernel.
func (c *Table) Enter(node string, p *packet.Packet) *Connection {
	t := &Connection{first: TupleOf(p)}
	if t.entry, t.reply = c.Find(kernelZone(node), t.first); t.entry != nil && t.reply {
		t.entry.answered = true
	}
	return t
}

// Replies returns the entry of a packet that is a reply in a node's kernel, or nil.
func (c *Table) Replies(node string, p *packet.Packet) *Entry {
	if e, reply := c.Find(kernelZone(node), TupleOf(p)); reply {
		return e
	}
	return nil
}

// Refuse makes a packet the refusal of another connection.
func (t *Connection) Refuse(node string, rejected *Connection, p *packet.Packet) {
	t.refusal, t.reply = true, true
	t.entry = &Entry{zone: kernelZone(node), orig: rejected.first, reply: TupleOf(p)}
}

// Refusal reports whether the packet is a reset that nft sends.
func (t *Connection) Refusal() bool { return t.refusal }

// Again returns the connection of a packet that the host sent to itself. nat chains do not see it a
// second time.
func (t *Connection) Again() *Connection {
	return &Connection{entry: t.entry, reply: t.reply, first: t.first, Source: true, Destination: true}
}

// MayTranslate reports whether nat chains of a hook see the packet.
func (t *Connection) MayTranslate(hook string) bool {
	switch hook {
	case "prerouting", "output":
		return t.entry == nil && !t.Destination
	}
	return t.entry == nil && !t.Source
}

// TranslateDestination translates the destination of a packet of a known connection, as the kernel
// does before routing.
func (t *Connection) TranslateDestination(p *packet.Packet) {
	if t.entry != nil {
		to := t.entry.translated(t.reply)
		p.Dst, p.DstPort = to.Dst, to.DstPort
	}
}

// TranslateSource translates the source, as the kernel does last.
func (t *Connection) TranslateSource(p *packet.Packet) {
	if t.entry != nil {
		to := t.entry.translated(t.reply)
		p.Src, p.SrcPort = to.Src, to.SrcPort
	}
}

// Entry returns the entry of a known connection, or nil.
func (t *Connection) Entry() *Entry { return t.entry }

// Reply reports whether the packet runs in the reply direction.
func (t *Connection) Reply() bool { return t.reply }

// Established reports whether both sides have sent packets.
func (t *Connection) Established() bool { return t.entry != nil && (t.reply || t.entry.answered) }

// Mark returns the mark of the connection.
func (t *Connection) Mark() *uint32 {
	if t.entry != nil {
		return &t.entry.Mark
	}
	return &t.mark
}

// Confirm commits a new connection when its first packet leaves the kernel. It returns the entry,
// nil if the connection is known.
func (c *Table) Confirm(node string, t *Connection, p *packet.Packet) *Entry {
	if t.entry != nil || t.refusal {
		return nil
	}
	e, to := c.commit(kernelZone(node), t.first, TupleOf(p), false, PortRange{})
	e.Mark = t.mark
	p.SrcPort = to.SrcPort
	return e
}
