package ofctl

import (
	"slices"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/flow"
)

const vlanPresent = 0x1000 // in vlan_vid: there is a tag

// Actions of OpenFlow, and of Open vSwitch.
const (
	actionOutput, actionPushVLAN, actionPopVLAN, actionGroup = 0, 17, 18, 22
	actionSetField, actionCopyField                          = 25, 28
	actionNone, actionVendor                                 = 0xfffe, 0xffff
	vendorNicira                                             = 0x2320
	nicResubmit, nicCT, nicNAT, nicLearn, nicLonger          = 14, 35, 36, 45, 49
)

// action writes an action of OpenFlow.
func action(b []byte, kind uint16, body []byte) []byte {
	start := len(b)
	b = append(append(be.AppendUint16(b, kind), 0, 0), body...)
	b = padded(b, start)
	return sized(b, start+2, start)
}

// nicira writes an action of Open vSwitch.
func nicira(b []byte, subtype uint16, body []byte) []byte {
	return action(b, actionVendor, slices.Concat(u32(vendorNicira), u16(subtype), body))
}

func setField(b []byte, field uint32, value []byte) []byte {
	return action(b, actionSetField, oxm(nil, field, value, nil))
}

func appendActions(b []byte, actions []flow.Action) []byte {
	for _, a := range actions {
		b = appendAction(b, a)
	}
	return b
}

// appendAction knows every Action that flow.Flow.Check lets through.
func appendAction(b []byte, a flow.Action) []byte {
	switch a := a.(type) {
	case flow.Output:
		return output(b, portNumber(a.Port))
	case flow.InPort:
		return output(b, portInPort)
	case flow.Normal:
		return output(b, portNormal)
	case flow.SetEthDst:
		return setField(b, oxmEthDst, a.MAC[:])
	case flow.SetEthSrc:
		return setField(b, oxmEthSrc, a.MAC[:])
	case flow.SetSrc:
		if a.Addr.Is4() {
			return setField(b, oxmIPSrc, a.Addr.AsSlice())
		}
		return setField(b, oxmIPv6Src, a.Addr.AsSlice())
	case flow.SetTTL:
		return setField(b, nxmTTL, []byte{a.TTL})
	case flow.MoveEthDstToSrc:
		return move(b, oxmEthDst, oxmEthSrc)
	case flow.SetEthDstByCT:
		return move(b, nxmCTLabel, oxmEthDst)
	case flow.MarkLonger: // at bit 0 of the field
		return nicira(b, nicLonger, slices.Concat(u16(a.Length), u16(0), u32(nxmPktMark), make([]byte, 6)))
	case flow.SetPktMark:
		return setField(b, nxmPktMark, u32(a.Mark))
	case flow.SetTunnel:
		b = setField(setField(b, nxmTunKey, u64(a.Key)), nxmTunOption, u32(a.Ports))
		return setField(b, tunnelEnd(a.Tunnel, nxmTunDst, nxmTun6Dst), a.Peer.AsSlice())
	case flow.Resubmit:
		return appendResubmit(b, a.Table)
	case flow.PushVLAN:
		return setField(action(b, actionPushVLAN, []byte{0x81, 0, 0, 0}), oxmVLAN, u16(vlanPresent|a.ID))
	case flow.PopVLAN:
		return action(b, actionPopVLAN, nil)
	case flow.ToGroup:
		return action(b, actionGroup, u32(a.ID))
	case flow.SetGroup:
		return setField(b, nxmReg6, u32(a.ID))
	case flow.Learn:
		return appendLearn(b, a)
	case flow.CT:
		return appendCT(b, a)
	case flow.Drop:
		return b // no action
	}
	return action(b, actionNone, nil) // the switch refuses it, and the error names the flow
}

func output(b []byte, port uint32) []byte {
	return action(b, actionOutput, append(u32(port), make([]byte, 8)...))
}

// move copies the 48 bits of a MAC.
func move(b []byte, from, to uint32) []byte {
	return action(b, actionCopyField, slices.Concat(u16(48), u16(0), u16(0), u16(0), u32(from), u32(to)))
}

func appendResubmit(b []byte, table uint8) []byte {
	return nicira(b, nicResubmit, []byte{portInPort >> 8 & 0xff, portInPort & 0xff, table, 0, 0, 0})
}

func appendCT(b []byte, c flow.CT) []byte {
	const commit, nowhere = 1, 0xff
	var flags uint16
	if c.Commit {
		flags = commit
	}
	table := c.Table
	if table == 0 {
		table = nowhere
	}
	body := slices.Concat(u16(flags), u32(0), u16(c.Zone), []byte{table, 0, 0, 0}, u16(0))
	if c.NAT.Kind != flow.NoNAT {
		body = appendNAT(body, c.NAT)
	}
	if c.Mark != 0 {
		body = setField(body, nxmCTMark, u32(c.Mark))
	}
	if c.EthSrc {
		body = move(body, oxmEthSrc, nxmCTLabel)
	}
	return nicira(b, nicCT, body)
}

func appendNAT(b []byte, n flow.NAT) []byte {
	const source, destination = 1, 2                     // flags
	const min4, min6, firstPort, lastPort = 1, 4, 16, 32 // what is there
	flags := map[flow.NATKind]uint16{flow.NATSrc: source, flow.NATDst: destination}[n.Kind]
	var there uint16
	var values []byte
	if n.Addr.IsValid() {
		there, values = min4, n.Addr.AsSlice()
		if n.Addr.Is6() {
			there = min6
		}
	}
	if n.PortMin != 0 {
		there, values = there|firstPort, append(values, u16(n.PortMin)...)
	}
	if n.PortMax > n.PortMin {
		there, values = there|lastPort, append(values, u16(n.PortMax)...)
	}
	return nicira(b, nicNAT, slices.Concat(u16(0), u16(flags), u16(there), values))
}

func appendLearn(b []byte, l flow.Learn) []byte {
	const deleteLearned, defaultPriority = 2, 32768
	const immediate, load = 1 << 13, 1 << 11 // of a part: its source is a value; it is an action
	body := slices.Concat(u16(l.Timeout), u16(0), u16(defaultPriority),
		be.AppendUint64(nil, uint64(l.Client)<<32|claims.CookieLearned|uint64(l.Timeout)), u16(deleteLearned), []byte{l.Table, 0}, u16(0), u16(0),
		u32(l.Limit), u16(0), u16(0))
	part := func(how, bits, first uint16, field uint32) {
		place := append(u32(field), u16(first)...)
		body = slices.Concat(body, u16(how|bits), place, place)
	}
	etherType, source := wireProtocols[flow.IP].etherType, uint32(oxmIPSrc)
	if l.Family == cluster.IPv6 {
		etherType, source = wireProtocols[flow.IPv6].etherType, oxmIPv6Src
	}
	body = slices.Concat(body, u16(immediate|16), u16(etherType), u32(oxmEthType), u16(0))
	part(0, 32-uint16(l.Ways), uint16(l.Ways), nxmReg6)
	part(0, uint16(source&0xff)*8, 0, source)
	part(load, 32, 0, nxmReg7)
	return nicira(b, nicLearn, body)
}
