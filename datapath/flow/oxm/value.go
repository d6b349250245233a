// Package oxm describes the value of one match field of OpenFlow (OXM): its bits and its mask,
// their encoding, and their text in ovs-ofctl's syntax. It does not know which fields there are.
package oxm

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"slices"

	"hairpin/cluster"
	"hairpin/openflow"
)

// Uint128 is the value or the mask of a field, right-aligned.
type Uint128 struct{ High, Low uint64 }

// allBits is the mask of an exact match.
var allBits = Uint128{^uint64(0), ^uint64(0)}

// And returns the bits that both have.
func (x Uint128) And(y Uint128) Uint128 { return Uint128{x.High & y.High, x.Low & y.Low} }

func (x Uint128) bytes() (b [16]byte) {
	binary.BigEndian.PutUint64(b[:8], x.High)
	binary.BigEndian.PutUint64(b[8:], x.Low)
	return b
}

func uint128Of(b []byte) Uint128 {
	var full [16]byte
	copy(full[16-len(b):], b)
	return Uint128{binary.BigEndian.Uint64(full[:8]), binary.BigEndian.Uint64(full[8:])}
}

// prefixMask returns the mask with that many zeros at its end.
func prefixMask(zeros int) Uint128 {
	if zeros >= 64 {
		return Uint128{^uint64(0) << (zeros - 64), 0}
	}
	return Uint128{^uint64(0), ^uint64(0) << zeros}
}

// Value is the value of a field, and the mask with the bits that are compared. It is comparable.
type Value struct {
	Bits, Mask Uint128
	Size       int // of an address, in bytes; 0: that of the field
}

// Exactly returns a number of which all bits are compared.
func Exactly(n uint64) Value { return Value{Bits: Uint128{0, n}, Mask: allBits} }

// Masked returns a number of which only the bits in mask are compared; 0 = all.
func Masked(n, mask uint64) Value {
	if mask == 0 {
		return Exactly(n)
	}
	return Value{Bits: Uint128{0, n}, Mask: Uint128{0, mask}}
}

// Exact reports whether all bits are compared.
func (d Value) Exact() bool { return d.Mask == allBits }

// Fits reports whether a field of width bytes can have the value.
func (d Value) Fits(width int) bool {
	return d.Size == width || d.Size == 0 && d.Bits.High == 0 && (width >= 8 || d.Bits.Low>>(8*width) == 0)
}

// Encode appends the field as an OXM.
func (d Value) Encode(b []byte, f openflow.Field) []byte {
	value, mask := d.Bits.bytes(), d.Mask.bytes()
	from := 16 - f.Width()
	if !slices.ContainsFunc(mask[from:], func(x byte) bool { return x != 0xff }) {
		return f.Append(b, value[from:], nil)
	}
	return f.Append(b, value[from:], mask[from:])
}

// Decode returns the value of an OXM, which may be an address.
func Decode(x openflow.OXM, address bool) Value {
	d := Value{Bits: uint128Of(x.Value), Mask: allBits}
	if x.Mask != nil {
		d.Mask = uint128Of(x.Mask)
	}
	if address {
		above := prefixMask(8 * len(x.Value)) // the bits that the field does not have
		d.Size, d.Mask = len(x.Value), Uint128{d.Mask.High | above.High, d.Mask.Low | above.Low}
	}
	return d
}

// OfMAC returns the value of a MAC.
func OfMAC(a cluster.MAC) Value { return Value{Bits: uint128Of(a[:]), Mask: allBits} }

// MAC returns the MAC of [OfMAC].
func (d Value) MAC() cluster.MAC {
	b := d.Bits.bytes()
	return cluster.MAC(b[10:])
}

// OfAddr returns the value of an address of which the first bits are compared; the zero Value for
// no address.
func OfAddr(a netip.Addr, bits int) Value {
	if a.Is4() {
		b := a.As4()
		return Value{uint128Of(b[:]), prefixMask(32 - bits), 4}
	}
	if !a.IsValid() {
		return Value{}
	}
	b := a.As16()
	return Value{uint128Of(b[:]), prefixMask(128 - bits), 16}
}

// Addr returns the address of [OfAddr].
func (d Value) Addr() netip.Addr {
	b := d.Bits.bytes()
	if d.Size == 4 {
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return netip.AddrFrom16(b)
}

// PrefixLen returns the number of matched bits of the address.
func (d Value) PrefixLen() int {
	zeros := bits.TrailingZeros64(d.Mask.Low)
	if zeros == 64 {
		zeros += bits.TrailingZeros64(d.Mask.High)
	}
	return max(0, 8*d.Size-zeros)
}

// IsPrefix reports whether the mask is that of an address prefix.
func (d Value) IsPrefix() bool { return d.Mask == prefixMask(8*d.Size-d.PrefixLen()) }
