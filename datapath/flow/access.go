package flow

import (
	"cmp"
	"net/netip"
	"strconv"

	"hairpin/cluster"
	"hairpin/datapath/flow/oxm"
	"hairpin/openflow"
)

// decode returns the value and the mask of the field in a match.
func (f *field) decode(x openflow.OXM) oxm.Value {
	_, address := f.notation.(oxm.IPText)
	return oxm.Decode(x, address)
}

// Types that field.at returns pointers to, for fields that are converted in another way than fields
// of the same Go type.
type (
	etherType Protocol
	ipProto   Protocol
	oneWord   string // one of the words of the notation; empty: any
	linkAddr  Match  // covers LinkAddr, and NoLinkAddr, which matches 0
	dstPort   Match  // covers DstPort and DstMask
	ctMark    Match  // covers CTMark and CTMarkMask
)

// isSet reports whether the match has the field.
func (f *field) isSet(m *Match) bool {
	switch p := f.at(m).(type) {
	case *uint32:
		return *p != 0
	case *uint16:
		return *p != 0
	case *uint8:
		return *p != 0
	case *netip.Prefix:
		return p.IsValid()
	case *cluster.MAC:
		return *p != cluster.MAC{}
	case *bool:
		return *p
	case *netip.Addr:
		return p.IsValid()
	case *CTState:
		return *p != CTState{}
	case *etherType:
		return Protocol(*p).row().etherType != 0
	case *ipProto:
		return Protocol(*p).row().number != 0
	case *linkAddr:
		return p.NoLinkAddr || p.LinkAddr != cluster.MAC{}
	case *dstPort:
		return p.DstPort|p.DstMask != 0
	case *ctMark:
		return p.CTMark|p.CTMarkMask != 0
	case *oneWord:
		return *p != ""
	case *string:
		return *p != ""
	}
	return false
}

// get returns the field's value and mask in the match.
func (f *field) get(m *Match) (d oxm.Value) {
	switch p := f.at(m).(type) {
	case *uint32:
		return oxm.Exactly(uint64(*p))
	case *uint16:
		return oxm.Exactly(uint64(int(*p) + f.add))
	case *uint8:
		return oxm.Exactly(uint64(*p))
	case *netip.Prefix:
		return oxm.OfAddr(p.Addr(), p.Bits())
	case *cluster.MAC:
		return oxm.OfMAC(*p)
	case *bool:
		if *p { // the only word of the notation
			return f.notation.(oxm.Words)[0].Full()
		}
	case *netip.Addr:
		return oxm.OfAddr(*p, p.BitLen())
	case *CTState:
		return oxm.Value{Bits: oxm.Uint128{Low: uint64(p.Set)}, Mask: oxm.Uint128{Low: uint64(p.Set | p.Clear)}}
	case *etherType:
		return oxm.Exactly(uint64(Protocol(*p).row().etherType))
	case *ipProto:
		return oxm.Exactly(uint64(Protocol(*p).row().number))
	case *linkAddr:
		if p.NoLinkAddr || p.LinkAddr != (cluster.MAC{}) {
			d = oxm.OfMAC(p.LinkAddr)
			d.Size = len(p.LinkAddr) // distinguishes MAC 0 from a packet without the option, see Matches
		}
	case *dstPort:
		return oxm.Masked(uint64(p.DstPort), uint64(p.DstMask))
	case *ctMark:
		return oxm.Masked(uint64(p.CTMark), uint64(p.CTMarkMask))
	case *oneWord:
		d, _ = f.notation.Parse(string(*p), 0)
	case *string:
		if *p != "" {
			return oxm.Exactly(uint64(portNumber(*p)))
		}
	}
	return d
}

// set sets the field in the match, and reports whether the match can represent d. Most fields have
// no mask in a Match.
func (f *field) set(m *Match, d oxm.Value) bool {
	n, exact := int(d.Bits.Low)-f.add, d.Exact()
	switch p := f.at(m).(type) {
	case *uint32:
		*p = uint32(n)
		return exact && n>>cmp.Or(f.bits, 32) == 0
	case *uint16:
		*p = uint16(n)
		return exact && n>>cmp.Or(f.bits, 16) == 0
	case *uint8:
		*p = uint8(n)
	case *netip.Prefix:
		*p = netip.Prefix{}
		if bits := d.PrefixLen(); bits > 0 {
			*p, _ = d.Addr().Prefix(bits) // the address has that many bits
		}
		return d.IsPrefix()
	case *cluster.MAC:
		*p = d.MAC()
	case *bool:
		*p = d == f.notation.(oxm.Words)[0].Full()
		return *p
	case *netip.Addr:
		*p = d.Addr()
	case *CTState:
		*p = ctStateOf(d)
		return d.Mask.Low>>8 == 0
	case *dstPort:
		p.DstPort, p.DstMask = uint16(n), 0
		if !exact {
			p.DstMask = uint16(d.Mask.Low)
		}
		return d.Mask.Low != 0
	case *ctMark:
		p.CTMark, p.CTMarkMask = uint32(n), 0
		if !exact {
			p.CTMarkMask = uint32(d.Mask.Low)
		}
		return d.Mask.Low != 0
	case *etherType:
		*p = etherType(protocolWith(uint16(n), 0))
		return *p != 0
	case *ipProto:
		*p = ipProto(protocolWith(Protocol(*p).row().etherType, uint8(n)))
		return *p != 0
	case *string:
		*p = portName(uint32(n))
		return *p != ""
	case *linkAddr:
		p.LinkAddr = d.MAC()
		p.NoLinkAddr = p.LinkAddr == cluster.MAC{}
	case *oneWord:
		if exact {
			d = oxm.Masked(d.Bits.Low, 3) // all bits of ip_frag; tcp_flags has no exact word
		}
		*p = oneWord(f.notation.Append(nil, d))
		return *p != ""
	}
	return exact
}

// portNumber returns the number in a port name.
func portNumber(port string) uint32 {
	if port == Local {
		return openflow.PortLocal
	}
	n, _ := strconv.ParseUint(port, 10, 16) // the caller has replaced names by numbers
	return uint32(n)
}

// portName returns the name or the number of a port, "" for another reserved number than that of
// Local.
func portName(n uint32) string {
	switch {
	case n == openflow.PortLocal:
		return Local
	case n > 0xffff:
		return ""
	}
	return strconv.FormatUint(uint64(n), 10)
}

func ctStateOf(d oxm.Value) CTState {
	return CTState{CTBits(d.Bits.Low), CTBits(d.Mask.Low &^ d.Bits.Low)}
}

var (
	// tagged is the only supported value of vlan_tci: the frame has a tag.
	tagged = oxm.Word{Text: "0x1000/0x1000", Value: openflow.VLANPresent, Mask: openflow.VLANPresent}
	// tcpFlags lists the supported values of tcp_flags (RFC 9293, 3.1). It is read-only.
	tcpFlags = oxm.Words{{Text: SYN, Value: 1 << 1, Mask: 1<<1 | 1<<4}, {Text: NoSYN, Value: 0, Mask: 1 << 1}}
	// fragments lists the values of ip_frag. Bit 0 means that the packet is a fragment, and bit 1
	// that it is not the first one. The list is read-only.
	fragments = oxm.Words{
		{Text: "no", Value: 0, Mask: 3}, {Text: "first", Value: 1, Mask: 3}, {Text: "later", Value: 3, Mask: 3},
		{Text: "yes", Value: 1, Mask: 1}, {Text: "not_later", Value: 0, Mask: 2},
	}
)

// ctStateText writes a CTState.
type ctStateText struct{}

func (ctStateText) Append(b []byte, d oxm.Value) []byte {
	return ctStateOf(d).append(b)
}

func (ctStateText) Parse(s string, _ int) (oxm.Value, error) {
	c, err := parseCTState(s)
	return byName["ct_state"].get(&Match{CTState: c}), err
}
