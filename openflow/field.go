package openflow

import "iter"

// Field is the header of an OXM without mask: class, number, mask bit and size in bytes.
type Field uint32

const (
	oxm Field = 0x8000 << 16 // OFPXMC_OPENFLOW_BASIC
	nxm Field = 0x0001 << 16 // NXM_NX of Open vSwitch
)

// The fields that Hairpin matches or writes.
const (
	InPort     = oxm + 0<<9 + 4
	EthDst     = oxm + 3<<9 + 6
	EthSrc     = oxm + 4<<9 + 6
	EthType    = oxm + 5<<9 + 2
	VLAN       = oxm + 6<<9 + 2
	IPProto    = oxm + 10<<9 + 1
	IPSrc      = oxm + 11<<9 + 4
	IPDst      = oxm + 12<<9 + 4
	TCPSrc     = oxm + 13<<9 + 2
	TCPDst     = oxm + 14<<9 + 2
	UDPSrc     = oxm + 15<<9 + 2
	UDPDst     = oxm + 16<<9 + 2
	SCTPSrc    = oxm + 17<<9 + 2
	SCTPDst    = oxm + 18<<9 + 2
	ICMPType   = oxm + 19<<9 + 1
	ICMPCode   = oxm + 20<<9 + 1
	ARPSPA     = oxm + 22<<9 + 4
	ARPTPA     = oxm + 23<<9 + 4
	ARPSHA     = oxm + 24<<9 + 6
	IPv6Src    = oxm + 26<<9 + 16
	IPv6Dst    = oxm + 27<<9 + 16
	ICMPv6Type = oxm + 29<<9 + 1
	ICMPv6Code = oxm + 30<<9 + 1
	NDTarget   = oxm + 31<<9 + 16
	NDSLL      = oxm + 32<<9 + 6
	NDTLL      = oxm + 33<<9 + 6
	TunID      = oxm + 38<<9 + 8
	TCPFlags   = oxm + 42<<9 + 2

	Reg5         = nxm + 5<<9 + 4
	Reg6         = nxm + 6<<9 + 4
	Reg7         = nxm + 7<<9 + 4
	IPFrag       = nxm + 26<<9 + 1
	IPTTL        = nxm + 29<<9 + 1
	TunSrc       = nxm + 31<<9 + 4
	TunDst       = nxm + 32<<9 + 4
	PktMark      = nxm + 33<<9 + 4
	ConjID       = nxm + 37<<9 + 4
	TunMetadata0 = nxm + 40<<9 + 4 // the size is that of the option mapped to it
	CTState      = nxm + 105<<9 + 4
	CTMark       = nxm + 107<<9 + 4
	CTLabel      = nxm + 108<<9 + 16
	TunIPv6Src   = nxm + 109<<9 + 16
	TunIPv6Dst   = nxm + 110<<9 + 16
	CTIPProto    = nxm + 119<<9 + 1
	CTTPDst      = nxm + 125<<9 + 2
)

// The fields of the parts of a learn action: Open vSwitch returns these headers there.
const (
	learnEthType       = 3<<9 + 2 // NXM_OF_ETH_TYPE
	LearnIPSrc   Field = 7<<9 + 4 // NXM_OF_IP_SRC
	LearnIPv6Src       = nxm + 19<<9 + 16
)

// VLANPresent is the bit of VLAN that is set in a frame with a tag.
const VLANPresent = 0x1000

// Width returns the size of the field in bytes.
func (f Field) Width() int { return int(f & 0xff) }

// Append appends the field with its value, and with a mask if that is not nil.
func (f Field) Append(b []byte, value, mask []byte) []byte {
	if mask != nil {
		f = f&^0xff | 1<<8 | f&0xff<<1
	}
	return append(append(be.AppendUint32(b, uint32(f)), value...), mask...)
}

// OXM is a field with its value and its mask (nil: none).
type OXM struct {
	Field       Field
	Value, Mask []byte
}

// Fields yields the fields of a list. Open vSwitch returns two registers as one field of twice
// their size: Fields yields those of which the mask is not 0.
func Fields(list []byte) iter.Seq[OXM] {
	const pairs, all = 0x8001 << 16, 0xffffffff // OFPXMC_PACKET_REGS
	return func(yield func(OXM) bool) {
		for len(list) > 0 {
			var x OXM
			if x, list = cutField(list); x.Field&^0xffff != pairs || len(x.Value) != 8 {
				if !yield(x) {
					return
				}
				continue
			}
			for i := range 2 {
				reg := OXM{Field: nxm + (x.Field>>9&0x7f*2+Field(i))<<9 + 4, Value: x.Value[4*i:][:4]}
				if x.Mask != nil && be.Uint32(x.Mask[4*i:]) != all {
					reg.Mask = x.Mask[4*i:][:4]
				}
				if (reg.Mask == nil || be.Uint32(reg.Mask) != 0) && !yield(reg) {
					return
				}
			}
		}
	}
}

// cutField returns the field that a list begins with and the rest of the list. The field of a
// damaged list is 0.
func cutField(list []byte) (x OXM, rest []byte) {
	const head, hasMask = 4, 1 << 8
	if len(list) < head || len(list) < head+int(list[3]) {
		return OXM{}, nil
	}
	x.Field = Field(be.Uint32(list))
	x.Value, rest = list[head:head+x.Field.Width()], list[head+x.Field.Width():]
	if half := len(x.Value) / 2; x.Field&hasMask != 0 {
		if 2*half != len(x.Value) {
			return OXM{}, rest
		}
		x = OXM{x.Field&^(hasMask|0xff) | Field(half), x.Value[:half], x.Value[half:]}
	}
	return x, rest
}

// Content returns what follows the kind and the size at the beginning of a match, of statistics or
// of a property. It is nil if the size is wrong.
func Content(part []byte) []byte {
	const head = 4
	if len(part) < head || int(be.Uint16(part[2:])) < head || int(be.Uint16(part[2:])) > len(part) {
		return nil
	}
	return part[head:be.Uint16(part[2:])]
}

// AppendMatch appends a match (ofp_match), whose fields the function appends.
func AppendMatch(b []byte, fields func([]byte) []byte) []byte {
	const typeOXM = 1
	start := len(b)
	b = fields(append(b, 0, typeOXM, 0, 0))
	return padded(putSize(b, start+2, start), start)
}
