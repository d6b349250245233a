package flow

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"hairpin/cluster"
	"hairpin/openflow"
)

// uint128 is the value or the mask of a field, right-aligned.
type uint128 struct{ high, low uint64 }

// allBits is the mask of an exact match.
var allBits = uint128{^uint64(0), ^uint64(0)}

func (x uint128) and(y uint128) uint128 { return uint128{x.high & y.high, x.low & y.low} }

func (x uint128) bytes() (b [16]byte) {
	binary.BigEndian.PutUint64(b[:8], x.high)
	binary.BigEndian.PutUint64(b[8:], x.low)
	return b
}

func uint128Of(b []byte) uint128 {
	var full [16]byte
	copy(full[16-len(b):], b)
	return uint128{binary.BigEndian.Uint64(full[:8]), binary.BigEndian.Uint64(full[8:])}
}

// prefixMask returns the mask whose lowest zeros bits are 0.
func prefixMask(zeros int) uint128 {
	if zeros >= 64 {
		return uint128{^uint64(0) << (zeros - 64), 0}
	}
	return uint128{^uint64(0), ^uint64(0) << zeros}
}

// datum is the value and the mask of a field in a match.
type datum struct {
	value, mask uint128
	size        int // of an address, in bytes; 0: that of the field
}

func exactly(n uint64) datum { return datum{value: uint128{0, n}, mask: allBits} }

// maskedNumber is a number of which only the bits in mask are compared; 0 = all.
func maskedNumber(n, mask uint64) datum {
	if mask == 0 {
		return exactly(n)
	}
	return datum{value: uint128{0, n}, mask: uint128{0, mask}}
}

func (d datum) exact() bool { return d.mask == allBits }

// fits reports whether a field of width bytes can have the value.
func (d datum) fits(width int) bool {
	return d.size == width || d.size == 0 && d.value.high == 0 && (width >= 8 || d.value.low>>(8*width) == 0)
}

// encode appends the field as an OXM.
func (d datum) encode(b []byte, oxm openflow.Field) []byte {
	value, mask := d.value.bytes(), d.mask.bytes()
	from := 16 - oxm.Width()
	if !slices.ContainsFunc(mask[from:], func(x byte) bool { return x != 0xff }) {
		return oxm.Append(b, value[from:], nil)
	}
	return oxm.Append(b, value[from:], mask[from:])
}

// decode returns the value and the mask of the field.
func (f *field) decode(x openflow.OXM) datum {
	d := datum{value: uint128Of(x.Value), mask: allBits}
	if x.Mask != nil {
		d.mask = uint128Of(x.Mask)
	}
	switch f.notation.(type) {
	case ipText:
		above := prefixMask(8 * len(x.Value))
		d.size, d.mask = len(x.Value), uint128{d.mask.high | above.high, d.mask.low | above.low}
	}
	return d
}

// Types for fields that have the same type in a Match.
type (
	etherType Protocol
	ipProto   Protocol
	oneWord   string // a text of words; empty: any
	linkAddr  Match  // covers LinkAddr, and NoLinkAddr, which matches 0
	dstPort   Match  // covers DstPort and DstMask
	ctMark    Match  // covers CTMark and CTMarkMask
)

// in reports whether the match has the field.
func (f *field) in(m *Match) bool {
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
func (f *field) get(m *Match) (d datum) {
	switch p := f.at(m).(type) {
	case *uint32:
		return exactly(uint64(*p))
	case *uint16:
		return exactly(uint64(int(*p) + f.add))
	case *uint8:
		return exactly(uint64(*p))
	case *netip.Prefix:
		return addrDatum(p.Addr(), p.Bits())
	case *cluster.MAC:
		return macDatum(*p)
	case *bool:
		if *p {
			return f.notation.(words)[0].datum()
		}
	case *netip.Addr:
		return addrDatum(*p, p.BitLen())
	case *CTState:
		return datum{value: uint128{0, uint64(p.Set)}, mask: uint128{0, uint64(p.Set | p.Clear)}}
	case *etherType:
		return exactly(uint64(Protocol(*p).row().etherType))
	case *ipProto:
		return exactly(uint64(Protocol(*p).row().number))
	case *linkAddr:
		if p.NoLinkAddr || p.LinkAddr != (cluster.MAC{}) {
			d = macDatum(p.LinkAddr)
			d.size = len(p.LinkAddr)
		}
	case *dstPort:
		return maskedNumber(uint64(p.DstPort), uint64(p.DstMask))
	case *ctMark:
		return maskedNumber(uint64(p.CTMark), uint64(p.CTMarkMask))
	case *oneWord:
		d, _ = f.notation.parse(string(*p), 0)
	case *string:
		if *p != "" {
			return exactly(uint64(portNumber(*p)))
		}
	}
	return d
}

// put sets the field in the match, and reports whether the match can represent d.
func (f *field) put(m *Match, d datum) bool {
	n, can := int(d.value.low)-f.add, d.mask == allBits
	switch p := f.at(m).(type) {
	case *uint32:
		*p = uint32(n)
		return can && n>>cmp.Or(f.bits, 32) == 0
	case *uint16:
		*p = uint16(n)
		return can && n>>cmp.Or(f.bits, 16) == 0
	case *uint8:
		*p = uint8(n)
	case *netip.Prefix:
		*p = netip.Prefix{}
		if bits := d.prefixLen(); bits > 0 {
			*p, _ = d.addr().Prefix(bits) // the address has that many bits
		}
		return d.mask == prefixMask(8*d.size-d.prefixLen())
	case *cluster.MAC:
		*p = d.mac()
	case *bool:
		*p = d == f.notation.(words)[0].datum()
		return *p
	case *netip.Addr:
		*p = d.addr()
	case *CTState:
		*p = d.ctState()
		return d.mask.low>>8 == 0
	case *dstPort:
		p.DstPort, p.DstMask = uint16(n), 0
		if !can {
			p.DstMask = uint16(d.mask.low)
		}
		return d.mask.low != 0
	case *ctMark:
		p.CTMark, p.CTMarkMask = uint32(n), 0
		if !can {
			p.CTMarkMask = uint32(d.mask.low)
		}
		return d.mask.low != 0
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
		p.LinkAddr = d.mac()
		p.NoLinkAddr = p.LinkAddr == cluster.MAC{}
	case *oneWord:
		if can {
			d.mask = uint128{0, 3} // all bits of ip_frag
		}
		*p = oneWord(f.notation.append(nil, d))
		return *p != ""
	}
	return can
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

func macDatum(a cluster.MAC) datum { return datum{value: uint128Of(a[:]), mask: allBits} }

func (d datum) mac() cluster.MAC {
	b := d.value.bytes()
	return cluster.MAC(b[10:])
}

func (d datum) ctState() CTState {
	return CTState{CTBits(d.value.low), CTBits(d.mask.low &^ d.value.low)}
}

func addrDatum(a netip.Addr, bits int) datum {
	if a.Is4() {
		b := a.As4()
		return datum{uint128Of(b[:]), prefixMask(32 - bits), 4}
	}
	if !a.IsValid() {
		return datum{}
	}
	b := a.As16()
	return datum{uint128Of(b[:]), prefixMask(128 - bits), 16}
}

func (d datum) addr() netip.Addr {
	b := d.value.bytes()
	if d.size == 4 {
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return netip.AddrFrom16(b)
}

// prefixLen returns the number of matched bits of the address.
func (d datum) prefixLen() int {
	zeros := bits.TrailingZeros64(d.mask.low)
	if zeros == 64 {
		zeros += bits.TrailingZeros64(d.mask.high)
	}
	return max(0, 8*d.size-zeros)
}

// word is a value with a mask for which Open vSwitch has a special text, or that is the only value
// of its field.
type word struct {
	text        string
	value, mask uint64
}

func (w word) datum() datum { return datum{value: uint128{0, w.value}, mask: uint128{0, w.mask}} }

var (
	tagged = word{"0x1000/0x1000", openflow.VLANPresent, openflow.VLANPresent}
	// tcpFlags lists the supported values of tcp_flags (RFC 9293, 3.1). It is read-only.
	tcpFlags = words{{SYN, 1 << 1, 1<<1 | 1<<4}, {NoSYN, 0, 1 << 1}}
	// fragments lists the values of ip_frag, whose bits are "a fragment" and "not the first". It is
	// read-only.
	fragments = words{{"no", 0, 3}, {"first", 1, 3}, {"later", 3, 3}, {"yes", 1, 1}, {"not_later", 0, 2}}
)

// notation is the text form of a value.
type notation interface {
	append(b []byte, d datum) []byte
	parse(s string, bits int) (datum, error)
}

// digits writes a value in a base.
type digits int

const decimal, hexadecimal = digits(10), digits(16)

func (n digits) append(b []byte, d datum) []byte {
	if n == hexadecimal {
		b = append(b, "0x"...)
	}
	return strconv.AppendUint(b, d.value.low, int(n))
}

func (n digits) parse(s string, bits int) (datum, error) {
	v, err := strconv.ParseUint(s, 0, bits)
	if err != nil {
		return datum{}, fmt.Errorf("not a number of %d bits", bits)
	}
	return exactly(v), nil
}

// maskable writes an exact number in the base, and one with a mask in hexadecimal, with the mask
// after a slash.
type maskable digits

func (n maskable) append(b []byte, d datum) []byte {
	if d.exact() {
		return digits(n).append(b, d)
	}
	b = hexadecimal.append(b, d)
	return strconv.AppendUint(append(b, "/0x"...), d.mask.low, 16)
}

func (n maskable) parse(s string, bits int) (datum, error) {
	value, mask, masked := strings.Cut(s, "/")
	d, err := digits(n).parse(value, bits)
	if err != nil || !masked {
		return d, err
	}
	m, err := hexadecimal.parse(mask, bits)
	if err == nil && (m.value.low == 0 || d.value.low&^m.value.low != 0) {
		err = errors.New("not a value within its mask")
	}
	return maskedNumber(d.value.low, m.value.low), err
}

type macText struct{}

func (macText) append(b []byte, d datum) []byte {
	return appendMAC(b, d.mac())
}

func (macText) parse(s string, _ int) (datum, error) {
	a, err := cluster.ParseMAC(s)
	return macDatum(a), err
}

type ipText struct{}

func (ipText) append(b []byte, d datum) []byte {
	b = d.addr().AppendTo(b)
	if d.exact() {
		return b
	}
	return strconv.AppendInt(append(b, '/'), int64(d.prefixLen()), 10)
}

func (ipText) parse(s string, _ int) (datum, error) {
	a, bits, err := parsePrefix(s)
	return addrDatum(a, bits), err
}

type ctStateText struct{}

func (ctStateText) append(b []byte, d datum) []byte {
	return d.ctState().append(b)
}

func (ctStateText) parse(s string, _ int) (datum, error) {
	c, err := parseCTState(s)
	return byName["ct_state"].get(&Match{CTState: c}), err
}

// words lists all values of a field.
type words []word

func (list words) append(b []byte, d datum) []byte {
	for _, w := range list {
		if w.datum() == d {
			return append(b, w.text...)
		}
	}
	return b
}

// errWord is the error for a text that is none of the words. It is made once, because every match
// is asked for its words.
var errWord = errors.New("not a value known here")

func (list words) parse(s string, _ int) (datum, error) {
	for _, w := range list {
		if w.text == s {
			return w.datum(), nil
		}
	}
	return datum{}, errWord
}
