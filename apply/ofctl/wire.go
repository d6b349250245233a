package ofctl

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/flow"
)

// This file writes OpenFlow 1.5 messages, with the fields and actions of Open vSwitch (its openflow/nicira-ext.h and lib/ofp-actions.c).

// be appends to messages.
var be = binary.BigEndian

// Types of messages, and those of multipart messages.
const (
	typeHello, typeError, typeEchoRequest, typeEchoReply = 0, 1, 2, 3
	typeFlowMod, typeGroupMod                            = 14, 15
	typeMultipart, typeMultipartReply                    = 18, 19
	typeBarrierRequest, typeBarrierReply                 = 20, 21
	typeSetAsync, typeRequestForward                     = 28, 32
	typeBundle, typeBundleAdd                            = 33, 34
	tableStats, flowMonitor                              = 3, 16
)

// openFlow15 is the version in each message.
const openFlow15 = 6

// Sizes of messages.
const (
	headerSize = 8
	maxMessage = 1<<16 - 1
)

// message writes a message with its header.
func message(b []byte, kind uint8, xid uint32, parts ...[]byte) []byte {
	start := len(b)
	b = be.AppendUint32(append(b, openFlow15, kind, 0, 0), xid)
	for _, p := range parts {
		b = append(b, p...)
	}
	return sized(b, start+2, start)
}

// receive reads a message.
func receive(r io.Reader) (kind uint8, xid uint32, body []byte, err error) {
	var head [headerSize]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, 0, nil, err
	}
	body = make([]byte, max(0, int(be.Uint16(head[2:]))-headerSize))
	_, err = io.ReadFull(r, body)
	return head[1], be.Uint32(head[4:]), body, err
}

// refusal is an error that the switch tells.
type refusal struct {
	xid        uint32 // of the message that it refuses
	kind, code uint16
}

// Error gives the numbers that OpenFlow has for the reason.
func (r *refusal) Error() string {
	return fmt.Sprintf("ovs-vswitchd refuses it (OpenFlow 1.5: type %d, code %d)", r.kind, r.code)
}

// refused reads such a message.
func refused(xid uint32, body []byte) *refusal {
	body = append(slices.Clone(body), 0, 0, 0, 0) // it has both, or less than it should
	return &refusal{xid, be.Uint16(body), be.Uint16(body[2:])}
}

// padded adds zeros until the bytes from start on are a multiple of 8.
func padded(b []byte, start int) []byte {
	return append(b, make([]byte, (8-(len(b)-start)%8)%8)...)
}

// sized writes into the two bytes at place how many bytes there are from start on.
func sized(b []byte, place, start int) []byte {
	be.PutUint16(b[place:], uint16(len(b)-start))
	return b
}

// A field is the header of its OXM without mask: class, number, size.
const (
	oxmInPort    = 0x80000004
	oxmEthDst    = 0x80000606
	oxmEthSrc    = 0x80000806
	oxmEthType   = 0x80000a02
	oxmVLAN      = 0x80000c02
	oxmProtocol  = 0x80001401
	oxmIPSrc     = 0x80001604
	oxmIPDst     = 0x80001804
	oxmTCPSrc    = 0x80001a02
	oxmTCPDst    = 0x80001c02
	oxmUDPSrc    = 0x80001e02
	oxmUDPDst    = 0x80002002
	oxmSCTPSrc   = 0x80002202
	oxmSCTPDst   = 0x80002402
	oxmICMPType  = 0x80002601
	oxmICMPCode  = 0x80002801
	oxmARPSrc    = 0x80002c04
	oxmARPDst    = 0x80002e04
	oxmARPSHA    = 0x80003006
	oxmIPv6Src   = 0x80003410
	oxmIPv6Dst   = 0x80003610
	oxmICMP6Type = 0x80003a01
	oxmICMP6Code = 0x80003c01
	oxmNDTarget  = 0x80003e10
	oxmNDSLL     = 0x80004006
	oxmNDTLL     = 0x80004206
	nxmTunKey    = 0x00012008
	nxmTunSrc    = 0x00013e04
	nxmTunDst    = 0x00014004
	nxmTunOption = 0x00015004 // tun_metadata0, with the size that flow.TunnelOption says
	nxmTun6Src   = 0x0001da10
	nxmTun6Dst   = 0x0001dc10
	nxmReg6      = 0x00010c04
	nxmReg7      = 0x00010e04
	nxmFragment  = 0x00013401
	nxmTTL       = 0x00013a01
	nxmTCPFlags  = 0x00014402
	nxmPktMark   = 0x00014204
	nxmCTState   = 0x0001d204
	nxmCTMark    = 0x0001d604
	nxmCTProto   = 0x0001ee01
	nxmCTDstPort = 0x0001fa02
	nxmCTLabel   = 0x0001d810
)

// oxm writes a field with its value, and a mask where that is not all of it.
func oxm(b []byte, field uint32, value, mask []byte) []byte {
	if mask == nil {
		return append(be.AppendUint32(b, field), value...)
	}
	field = field&^0xff | 1<<8 | field&0xff<<1
	return append(append(be.AppendUint32(b, field), value...), mask...)
}

func u16(v uint16) []byte { return be.AppendUint16(nil, v) }
func u32(v uint32) []byte { return be.AppendUint32(nil, v) }
func u64(v uint32) []byte { return be.AppendUint64(nil, uint64(v)) }

// wireProtocol is how packets of a protocol are told, and where they have addresses and ports.
type wireProtocol struct {
	etherType        uint16
	protocol         uint8
	src, dst         uint32
	srcPort, dstPort uint32
	icmpType         uint32
	icmpCode         uint32
}

// wireProtocols is the table of what differs by protocol and family. It is read-only.
var wireProtocols = map[flow.Protocol]wireProtocol{
	flow.ARP:   {etherType: 0x806, src: oxmARPSrc, dst: oxmARPDst},
	flow.IP:    {etherType: 0x800, src: oxmIPSrc, dst: oxmIPDst},
	flow.IPv6:  {etherType: 0x86dd, src: oxmIPv6Src, dst: oxmIPv6Dst},
	flow.TCP:   {0x800, 6, oxmIPSrc, oxmIPDst, oxmTCPSrc, oxmTCPDst, 0, 0},
	flow.TCP6:  {0x86dd, 6, oxmIPv6Src, oxmIPv6Dst, oxmTCPSrc, oxmTCPDst, 0, 0},
	flow.UDP:   {0x800, 17, oxmIPSrc, oxmIPDst, oxmUDPSrc, oxmUDPDst, 0, 0},
	flow.UDP6:  {0x86dd, 17, oxmIPv6Src, oxmIPv6Dst, oxmUDPSrc, oxmUDPDst, 0, 0},
	flow.SCTP:  {0x800, 132, oxmIPSrc, oxmIPDst, oxmSCTPSrc, oxmSCTPDst, 0, 0},
	flow.SCTP6: {0x86dd, 132, oxmIPv6Src, oxmIPv6Dst, oxmSCTPSrc, oxmSCTPDst, 0, 0},
	flow.ICMP:  {0x800, 1, oxmIPSrc, oxmIPDst, 0, 0, oxmICMPType, oxmICMPCode},
	flow.ICMP6: {0x86dd, 58, oxmIPv6Src, oxmIPv6Dst, 0, 0, oxmICMP6Type, oxmICMP6Code},
}

// fragments are value and mask of ip_frag, whose bits are "a fragment" and "not the first". It is read-only.
var fragments = map[string][2]byte{"no": {0, 3}, "first": {1, 3}, "later": {3, 3}, "yes": {1, 1}, "not_later": {0, 2}}

// Numbers of ports that are none (OFPP_*), and of any group.
const (
	portInPort, portNormal, portLocal, anyPort = 0xfffffff8, 0xfffffffa, 0xfffffffe, 0xffffffff
	anyGroup                                   = 0xffffffff
)

func portNumber(port string) uint32 {
	if port == flow.Local {
		return portLocal
	}
	n, _ := strconv.ParseUint(port, 10, 16) // bundle.number has looked
	return uint32(n)
}

// appendMatch writes a match whose ports are numbers.
func appendMatch(b []byte, m *flow.Match) []byte {
	start := len(b)
	b = append(b, 0, 1, 0, 0) // a list of OXMs
	w := wireProtocols[m.Protocol]
	number := func(field uint32, v uint32) {
		if v != 0 {
			b = oxm(b, field, u32(v), nil)
		}
	}
	short := func(field uint32, v uint16) {
		if v != 0 {
			b = oxm(b, field, u16(v), nil)
		}
	}
	mac := func(field uint32, v cluster.MAC) {
		if v != (cluster.MAC{}) {
			b = oxm(b, field, v[:], nil)
		}
	}
	if m.InPort != "" {
		b = oxm(b, oxmInPort, u32(portNumber(m.InPort)), nil)
	}
	mac(oxmEthDst, m.EthDst)
	mac(oxmEthSrc, m.EthSrc)
	short(oxmEthType, w.etherType)
	if m.Tagged {
		b = oxm(b, oxmVLAN, u16(vlanPresent), u16(vlanPresent))
	}
	if m.VLAN != 0 {
		short(oxmVLAN, vlanPresent|m.VLAN)
	}
	if m.Fragment != "" {
		f := fragments[m.Fragment]
		b = oxm(b, nxmFragment, f[:1], f[1:])
	}
	if w.protocol != 0 {
		b = oxm(b, oxmProtocol, []byte{w.protocol}, nil)
	}
	b = appendPrefix(appendPrefix(b, w.src, m.Src), w.dst, m.Dst)
	short(w.srcPort, m.SrcPort)
	short(w.dstPort, m.DstPort)
	if m.TTL != 0 {
		b = oxm(b, nxmTTL, []byte{m.TTL}, nil)
	}
	if m.ICMPType != 0 {
		b = oxm(b, w.icmpType, []byte{uint8(m.ICMPType - 1)}, nil)
	}
	if m.ICMPCode != 0 {
		b = oxm(b, w.icmpCode, []byte{uint8(m.ICMPCode - 1)}, nil)
	}
	b = appendNeighbor(appendSYN(b, m), m)
	if t := m.Tunnel; t != (flow.Tunnel{}) {
		b = oxm(oxm(b, nxmTunKey, u64(t.Key), nil), nxmTunOption, u32(t.Ports), nil)
		b = oxm(b, tunnelEnd(t, nxmTunSrc, nxmTun6Src), t.Peer.AsSlice(), nil)
	}
	number(nxmPktMark, m.PktMark)
	number(nxmReg6, m.Group)
	number(nxmReg7, m.Bucket)
	if s := m.CTState; s != (flow.CTState{}) {
		b = oxm(b, nxmCTState, u32(uint32(s.Set)), u32(uint32(s.Set|s.Clear)))
	}
	number(nxmCTMark, m.CTMark)
	if m.CTProtocol != 0 {
		b = oxm(b, nxmCTProto, []byte{m.CTProtocol}, nil)
	}
	short(nxmCTDstPort, m.CTDstPort)
	return padded(sized(b, start+2, start), start)
}

// appendNeighbor writes what is matched in ARP and neighbor discovery besides addresses.
func appendNeighbor(b []byte, m *flow.Match) []byte {
	if m.Target.IsValid() {
		b = oxm(b, oxmNDTarget, m.Target.AsSlice(), nil)
	}
	if m.NoLinkAddr || m.LinkAddr != (cluster.MAC{}) {
		b = oxm(b, linkAddr(m), m.LinkAddr[:], nil)
	}
	return b
}

// linkAddr is the field of a match's LinkAddr.
func linkAddr(m *flow.Match) uint32 {
	switch m.ICMPType {
	case 135 + 1:
		return oxmNDSLL
	case 136 + 1:
		return oxmNDTLL
	}
	return oxmARPSHA
}

// appendSYN writes the flags of the first packet of a TCP connection.
func appendSYN(b []byte, m *flow.Match) []byte {
	if !m.SYN {
		return b
	}
	const syn, ack = 1 << 1, 1 << 4 // RFC 9293, 3.1
	return oxm(b, nxmTCPFlags, u16(syn), u16(syn|ack))
}

// tunnelEnd is the field of the other end.
func tunnelEnd(t flow.Tunnel, v4, v6 uint32) uint32 {
	if t.Peer.Is6() {
		return v6
	}
	return v4
}

func appendPrefix(b []byte, field uint32, p netip.Prefix) []byte {
	switch {
	case !p.IsValid():
		return b
	case p.IsSingleIP():
		return oxm(b, field, p.Addr().AsSlice(), nil)
	}
	ones := slices.Repeat([]byte{0xff}, p.Addr().BitLen()/8)
	all, _ := netip.AddrFromSlice(ones)
	mask, _ := all.Prefix(p.Bits()) // p has so many
	return oxm(b, field, p.Addr().AsSlice(), mask.Addr().AsSlice())
}

// Commands of flow mods.
const (
	flowAdd          = 0
	flowDeleteStrict = 4
)

// flowMod adds a flow with that cookie, or deletes one of ours with the same key.
func flowMod(command uint8, cookie uint64, f *flow.Flow) []byte {
	mask := uint64(0)
	if command == flowDeleteStrict {
		mask = claims.CookieMask
	}
	b := be.AppendUint64(be.AppendUint64(nil, cookie), mask)
	b = append(b, f.Table, command, 0, 0, 0, 0) // without timeouts
	b = be.AppendUint16(b, f.Priority)
	b = be.AppendUint32(b, 0xffffffff) // no packet
	b = be.AppendUint32(be.AppendUint32(b, anyPort), anyGroup)
	b = append(b, 0, 0, 0, 0) // no flags, no importance
	b = appendMatch(b, &f.Match)
	if command == flowDeleteStrict {
		return b
	}
	start := len(b)
	b = append(b, 0, 4, 0, 0, 0, 0, 0, 0) // apply actions
	b = appendActions(b, f.Actions)
	if len(b) == start+8 {
		return b[:start]
	}
	return sized(b, start+2, start)
}

// Commands of group mods.
const (
	groupAddOrModify = 0x8000
	groupDelete      = 2
)

// groupMod makes a group what it must be, or deletes the one of that number.
func groupMod(command uint16, g *flow.Group) ([]byte, error) {
	const typeSelect, allBuckets = 1, 0xffffffff
	b := append(be.AppendUint16(nil, command), typeSelect, 0)
	b = append(be.AppendUint32(b, g.ID), 0, 0, 0, 0)
	b = be.AppendUint32(b, allBuckets)
	if command == groupDelete {
		return b, nil
	}
	start := len(b)
	for _, x := range g.Buckets {
		b = appendBucket(b, x)
	}
	if len(b) > maxMessage-1024 { // for what goes around it
		return nil, fmt.Errorf("group %d: its %d buckets are too long for one message", g.ID, len(g.Buckets))
	}
	b = sized(b, 8, start)
	// The property that says how a bucket is chosen: ntr_group_property.
	const experimenter, selectionMethod = 0x154d, 1
	start = len(b)
	b = append(b, 0xff, 0xff, 0, 0)
	b = be.AppendUint32(be.AppendUint32(b, experimenter), selectionMethod)
	b = append(b, 0, 0, 0, 0)
	name, w := "dp_hash", wireProtocols[g.Hashed]
	if g.Hashed != flow.Any {
		name = "hash"
	}
	b = append(append(b, name...), make([]byte, 16-len(name)+8)...) // and its parameter
	if g.Hashed != flow.Any {
		for _, field := range []uint32{w.src, w.srcPort} {
			b = oxm(b, field, slices.Repeat([]byte{0xff}, int(field&0xff)), nil)
		}
	}
	return padded(sized(b, start+2, start), start), nil
}

func appendBucket(b []byte, x flow.Bucket) []byte {
	start := len(b)
	b = be.AppendUint32(append(b, 0, 0, 0, 0), x.ID)
	if x.Next == 0 {
		b = appendCT(b, x.CT)
	} else {
		b = appendResubmit(setField(b, nxmReg7, u32(x.ID)), x.Next)
	}
	b = sized(b, start+2, start+8)
	b = append(b, 0, 0, 0, 8, 0, 1, 0, 0) // its weight is 1
	return sized(b, start, start)
}
