package openflow

import "slices"

// Reserved numbers of ports (OFPP_*) and groups (OFPG_*).
const (
	PortInPort = 0xfffffff8
	PortNormal = 0xfffffffa
	PortLocal  = 0xfffffffe

	anyPort, anyGroup = 0xffffffff, 0xffffffff
)

// Types of actions, and subtypes of those of Open vSwitch (NXAST_*).
const (
	actionOutput, actionPushVLAN, actionPopVLAN, actionGroup = 0, 17, 18, 22
	actionSetField, actionCopyField                          = 25, 28
	actionNone, actionVendor                                 = 0xfffe, 0xffff
	vendorNicira                                             = 0x2320
	nicResubmit, nicConjunction, nicCT                       = 14, 34, 35
	nicNAT, nicLearn, nicLarger                              = 36, 45, 49
)

func action(b []byte, kind uint16, body []byte) []byte {
	start := len(b)
	b = append(append(be.AppendUint16(b, kind), 0, 0), body...)
	b = padded(b, start)
	return sized(b, start+2, start)
}

func nicira(b []byte, subtype uint16, body []byte) []byte {
	return action(b, actionVendor, slices.Concat(u32(vendorNicira), u16(subtype), body))
}

// Invalid appends an action that every switch refuses.
func Invalid(b []byte) []byte { return action(b, actionNone, nil) }

// Output appends output to a port.
func Output(b []byte, port uint32) []byte {
	return action(b, actionOutput, append(u32(port), make([]byte, 8)...))
}

// Group appends group:id.
func Group(b []byte, id uint32) []byte { return action(b, actionGroup, u32(id)) }

// PushVLAN appends push_vlan:0x8100.
func PushVLAN(b []byte) []byte { return action(b, actionPushVLAN, []byte{0x81, 0, 0, 0}) }

// PopVLAN appends pop_vlan.
func PopVLAN(b []byte) []byte { return action(b, actionPopVLAN, nil) }

// SetField appends set_field:value/mask->field; a nil mask writes the whole field.
func SetField(b []byte, field Field, value, mask []byte) []byte {
	return action(b, actionSetField, field.Append(nil, value, mask))
}

// Copy appends a copy of the lowest bits of a field to those of another.
func Copy(b []byte, bits uint16, from, to Field) []byte {
	return action(b, actionCopyField,
		slices.Concat(u16(bits), u16(0), u16(0), u16(0), u32(uint32(from)), u32(uint32(to))))
}

// CheckLarger appends check_pkt_larger(length)->field[0].
func CheckLarger(b []byte, length uint16, field Field) []byte {
	return nicira(b, nicLarger, slices.Concat(u16(length), u16(0), u32(uint32(field)), make([]byte, 6)))
}

// Resubmit appends resubmit(,table).
func Resubmit(b []byte, table uint8) []byte {
	return nicira(b, nicResubmit, []byte{PortInPort >> 8 & 0xff, PortInPort & 0xff, table, 0, 0, 0})
}

// Conjunction appends conjunction(id,clause/clauses): the flow is one alternative of a clause, from
// 1 on, of the flow that matches conj_id=id.
func Conjunction(b []byte, id uint32, clause, clauses uint8) []byte {
	return nicira(b, nicConjunction, slices.Concat([]byte{clause - 1, clauses}, u32(id)))
}

// CT appends ct(…): the packet continues in the table, or ends if table is 0. nested holds the
// actions nat and exec(…).
func CT(b []byte, commit bool, zone uint16, table uint8, nested []byte) []byte {
	const flagCommit, nowhere = 1, 0xff
	var flags uint16
	if commit {
		flags = flagCommit
	}
	if table == 0 {
		table = nowhere
	}
	return nicira(b, nicCT, slices.Concat(u16(flags), u32(0), u16(zone), []byte{table, 0, 0, 0}, u16(0), nested))
}

// Flags of NAT; 0 is nat without arguments.
const (
	NATSrc = 1
	NATDst = 2
)

// NAT appends nat(…) to the actions nested in CT. It omits an empty address, a port of 0, and a
// last port that is not above the first.
func NAT(b []byte, flags uint16, addr []byte, first, last uint16) []byte {
	const min4, min6, firstPort, lastPort = 1, 4, 16, 32
	present := map[int]uint16{4: min4, 16: min6}[len(addr)]
	values := slices.Clone(addr)
	if first != 0 {
		present, values = present|firstPort, append(values, u16(first)...)
	}
	if last > first {
		present, values = present|lastPort, append(values, u16(last)...)
	}
	return nicira(b, nicNAT, slices.Concat(u16(0), u16(flags), u16(present), values))
}

// Learned is the flow that a learn action adds, without its match and actions.
type Learned struct {
	Table       uint8
	Cookie      uint64
	IdleTimeout uint16 // seconds
	Limit       uint32 // maximum number of flows with the cookie
}

// Learn appends learn(…) with delete_learned. The parts are the match and the actions of the flow.
func Learn(b []byte, l Learned, parts ...[]byte) []byte {
	const deleteLearned, defaultPriority = 2, 32768
	body := slices.Concat(u16(l.IdleTimeout), u16(0), u16(defaultPriority), be.AppendUint64(nil, l.Cookie),
		u16(deleteLearned), []byte{l.Table, 0}, u16(0), u16(0), u32(l.Limit), u16(0), u16(0))
	return nicira(b, nicLearn, append(body, slices.Concat(parts...)...))
}

// LearnEthType is a part of Learn: the flow matches the Ethernet type.
func LearnEthType(etherType uint16) []byte {
	const immediate = 1 << 13
	return slices.Concat(u16(immediate|16), u16(etherType), u32(uint32(EthType)), u16(0))
}

// LearnMatch is a part of Learn: the flow matches the packet's value of the field, from bit first
// on.
func LearnMatch(field Field, first uint16) []byte { return learnPart(0, field, first) }

// LearnLoad is a part of Learn: the flow writes the packet's value of the field.
func LearnLoad(field Field) []byte {
	const load = 1 << 11
	return learnPart(load, field, 0)
}

func learnPart(kind uint16, field Field, first uint16) []byte {
	place := append(u32(uint32(field)), u16(first)...)
	return slices.Concat(u16(kind|(uint16(field.Width())*8-first)), place, place)
}
