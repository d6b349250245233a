package openflow

import (
	"bytes"
	"slices"
)

// Reserved numbers of ports (OFPP_*) and groups (OFPG_*).
const (
	PortInPort = 0xfffffff8
	PortNormal = 0xfffffffa
	PortLocal  = 0xfffffffe

	anyPort, anyGroup, allGroups = 0xffffffff, 0xffffffff, 0xfffffffc
)

// Types of actions, and subtypes of those of Open vSwitch (NXAST_*).
const (
	actionOutput, actionGroup          = 0, 22
	actionSetField, actionCopyField    = 25, 28
	actionNone, actionVendor           = 0xfffe, 0xffff
	vendorNicira                       = 0x2320
	nicResubmit, nicConjunction, nicCT = 14, 34, 35
	nicNAT, nicLearn, nicLarger        = 36, 45, 49
)

// Action describes an action, or several in sequence, that differ only in numbers.
type Action struct {
	bytes   []byte // with zeros in place of the numbers
	numbers []number
}

// number describes where an action has one of its numbers. Places are offsets in the action.
type number struct {
	at, size  int
	add       uint64 // what to add to the number
	copies    []int  // places of copies, of two bytes each
	remaining int    // the place of two bytes with 32 minus the number (a register's bits from the number on); 0: none
}

// The actions of fixed size.
var (
	Output   = Action{action(nil, actionOutput, make([]byte, 12)), []number{{at: 4, size: 4}}}
	ToInPort = Action{bytes: Output.Append(nil, PortInPort)}
	ToNormal = Action{bytes: Output.Append(nil, PortNormal)}
	ToGroup  = Action{action(nil, actionGroup, make([]byte, 4)), []number{{at: 4, size: 4}}}
	// MoveEthDstToSrc and MoveCTToEthDst copy a MAC. MoveEthSrcToCT is for CT.Nested.
	MoveEthDstToSrc = Action{bytes: copyMAC(EthDst, EthSrc)}
	MoveCTToEthDst  = Action{bytes: copyMAC(CTLabel, EthDst)}
	MoveEthSrcToCT  = Action{bytes: copyMAC(EthSrc, CTLabel)}
	// CheckLarger is check_pkt_larger(number)->pkt_mark[0].
	CheckLarger = Action{nicira(nil, nicLarger, slices.Concat(u32(0), u32(uint32(PktMark)), make([]byte, 6))),
		[]number{{at: 10, size: 2}}}
	// Resubmit is resubmit(,number).
	Resubmit = Action{nicira(nil, nicResubmit, []byte{PortInPort >> 8 & 0xff, PortInPort & 0xff, 0, 0, 0, 0}),
		[]number{{at: 12, size: 1}}}
	// Conjunction is conjunction(id,clause/clauses), with clauses from 1 on.
	Conjunction = Action{nicira(nil, nicConjunction, make([]byte, 6)),
		[]number{{at: 12, size: 4}, {at: 10, size: 1, add: ^uint64(0)}, {at: 11, size: 1}}}
)

// Learn describes learn(…) with delete_learned. The learned flow matches the Ethernet type, the
// packet's source in the field and its Reg6, and writes the packet's Reg7. The numbers are table,
// idle timeout in seconds, cookie, the maximum number of flows with the cookie, and the first bit
// of Reg6.
func Learn(etherType uint16, source Field) Action {
	const deleteLearned, defaultPriority, immediate, load = 2, 32768, 1 << 13, 1 << 11
	part := func(kind uint16, f Field) []byte {
		place := append(u32(uint32(f)), 0, 0)
		return slices.Concat(u16(kind|uint16(f.Width())*8), place, place)
	}
	head := slices.Concat(make([]byte, 4), u16(defaultPriority), make([]byte, 8), u16(deleteLearned), make([]byte, 14))
	etherTypes := slices.Concat(u16(immediate|16), u16(etherType), u32(learnEthType), u16(0))
	first := niciraHead + len(head) + len(etherTypes) // the match of Reg6
	a := Action{numbers: []number{                    // places as in struct nx_action_learn2
		{at: 26, size: 1}, {at: 10, size: 2}, {at: 16, size: 8}, {at: 32, size: 4},
		{at: first + 6, size: 2, copies: []int{first + 12}, remaining: first}}}
	a.bytes = nicira(nil, nicLearn,
		slices.Concat(head, etherTypes, part(0, Reg6), part(0, source), part(load, Reg7)))
	return a
}

// Append appends the action with its numbers.
func (a *Action) Append(b []byte, numbers ...uint64) []byte {
	start := len(b)
	b = append(b, a.bytes...)
	for i, n := range a.numbers {
		v := numbers[i] + n.add
		for k := range n.size {
			b[start+n.at+k] = byte(v >> (8 * (n.size - 1 - k)))
		}
		for _, at := range n.copies {
			be.PutUint16(b[start+at:], uint16(v))
		}
		if n.remaining > 0 {
			be.PutUint16(b[start+n.remaining:], uint16(32-v))
		}
	}
	return b
}

// Cut returns the numbers of the action if b begins with it, and the rest of b.
func (a *Action) Cut(b []byte) (numbers []uint64, rest []byte, ok bool) {
	if len(a.bytes) == 0 || len(b) < len(a.bytes) || !bytes.Equal(b[:actionHead], a.bytes[:actionHead]) {
		return nil, b, false
	}
	for _, n := range a.numbers {
		var v uint64
		for _, x := range b[n.at : n.at+n.size] {
			v = v<<8 | uint64(x)
		}
		numbers = append(numbers, v-n.add)
	}
	return numbers, b[len(a.bytes):], bytes.Equal(a.Append(nil, numbers...), b[:len(a.bytes)])
}

// CT is ct(…). The packet continues in the table, or ends if table is 0. Nested are the actions
// nat and exec(…).
type CT struct {
	Commit bool
	Zone   uint16
	Table  uint8
	Nested []byte
}

// noTable is the table of a CT without recirculation.
const noTable = 0xff

// Append appends the action.
func (c CT) Append(b []byte) []byte {
	const flagCommit = 1
	var flags uint16
	if c.Commit {
		flags = flagCommit
	}
	if c.Table == 0 {
		c.Table = noTable
	}
	return nicira(b, nicCT,
		slices.Concat(u16(flags), u32(0), u16(c.Zone), []byte{c.Table, 0, 0, 0}, u16(0), c.Nested))
}

// CutCT returns the ct action that b begins with, and the rest of b.
func CutCT(b []byte) (c CT, rest []byte, ok bool) {
	const fixed = 24
	a, rest := CutAction(b)
	if len(a) < fixed {
		return c, b, false
	}
	c = CT{Commit: a[11] != 0, Zone: be.Uint16(a[16:]), Table: a[18], Nested: a[fixed:]}
	if c.Table == noTable {
		c.Table = 0
	}
	return c, rest, bytes.Equal(c.Append(nil), a)
}

// Flags of NAT; 0 is nat without arguments.
const (
	NATSrc = 1
	NATDst = 2
)

// NAT is nat(…) in CT.Nested. An empty address, a port of 0 and a last port that is not above the
// first are omitted.
type NAT struct {
	Flags       uint16
	Addr        []byte
	First, Last uint16
}

// Bits of the values that a NAT has.
const natMin4, natMin6, natFirst, natLast = 1, 4, 16, 32

// Append appends the action.
func (n NAT) Append(b []byte) []byte {
	present := map[int]uint16{4: natMin4, 16: natMin6}[len(n.Addr)]
	values := slices.Clone(n.Addr)
	if n.First != 0 {
		present, values = present|natFirst, append(values, u16(n.First)...)
	}
	if n.Last > n.First {
		present, values = present|natLast, append(values, u16(n.Last)...)
	}
	return nicira(b, nicNAT, slices.Concat(u16(0), u16(n.Flags), u16(present), values))
}

// CutNAT returns the nat action that b begins with, and the rest of b. Without a last port, Last is
// First.
func CutNAT(b []byte) (n NAT, rest []byte, ok bool) {
	const fixed = 16
	a, rest := CutAction(b)
	if len(a) < fixed {
		return n, b, false
	}
	present, values := be.Uint16(a[14:]), append(slices.Clone(a[fixed:]), make([]byte, 24)...)
	take := func(bit uint16, size int) (v []byte) {
		if present&bit != 0 {
			v, values = values[:size], values[size:]
		}
		return v
	}
	n = NAT{Flags: be.Uint16(a[12:]), Addr: slices.Concat(take(natMin4, 4), take(natMin6, 16))}
	if port := take(natFirst, 2); port != nil {
		n.First = be.Uint16(port)
		n.Last = n.First
	}
	if port := take(natLast, 2); port != nil {
		n.Last = be.Uint16(port)
	}
	return n, rest, bytes.Equal(n.Append(nil), a)
}

// SetField appends set_field:value/mask->field; without a mask, it writes the whole field.
func SetField(b, oxm []byte) []byte { return action(b, actionSetField, oxm) }

// CutSetField returns the field, value and mask of the set_field that b begins with, and the rest
// of b.
func CutSetField(b []byte) (x OXM, rest []byte, ok bool) {
	a, rest := CutAction(b)
	if len(a) < actionHead || be.Uint16(a) != actionSetField {
		return x, b, false
	}
	x, _ = cutField(a[actionHead:])
	ok = bytes.Equal(SetField(nil, x.Field.Append(nil, x.Value, x.Mask)), a)
	if x.Field&^0xff == TunMetadata0&^0xff && len(x.Value) < TunMetadata0.Width() {
		x.Field = TunMetadata0 // Open vSwitch returns it without leading zeros
	}
	return x, rest, ok
}

// Sizes of the header of an action, and of that of an action of Open vSwitch.
const actionHead, niciraHead = 4, 10

// CutAction cuts the first action off a list. It returns all of a list that begins with none.
func CutAction(list []byte) (a, rest []byte) {
	if len(list) < actionHead {
		return list, nil
	}
	if size := int(be.Uint16(list[2:])); size >= actionHead && size <= len(list) {
		return list[:size], list[size:]
	}
	return list, nil
}

// Invalid appends an action that every switch rejects.
func Invalid(b []byte) []byte { return action(b, actionNone, nil) }

func action(b []byte, kind uint16, body []byte) []byte {
	start := len(b)
	b = append(append(be.AppendUint16(b, kind), 0, 0), body...)
	b = padded(b, start)
	return putSize(b, start+2, start)
}

func nicira(b []byte, subtype uint16, body []byte) []byte {
	return action(b, actionVendor, slices.Concat(u32(vendorNicira), u16(subtype), body))
}

// copyMAC returns a copy of the lowest bits of a field to those of another.
func copyMAC(from, to Field) []byte {
	return action(nil, actionCopyField,
		slices.Concat(u16(48), u16(0), u16(0), u16(0), u32(uint32(from)), u32(uint32(to))))
}
