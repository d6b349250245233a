package oxm

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"hairpin/cluster"
)

// Word is a value with a mask for which Open vSwitch has a special text, or that is the only value
// of its field.
type Word struct {
	Text        string
	Value, Mask uint64
}

// Full returns the value and mask of a word as a Value.
func (w Word) Full() Value { return Value{Bits: Uint128{0, w.Value}, Mask: Uint128{0, w.Mask}} }

// Notation converts values from and to text.
type Notation interface {
	Append(b []byte, d Value) []byte
	// Parse parses a value of at most this many bits.
	Parse(s string, bits int) (Value, error)
}

// digits writes a value in a base.
type digits int

// The bases of numbers.
const Decimal, Hexadecimal = digits(10), digits(16)

func (n digits) Append(b []byte, d Value) []byte {
	if n == Hexadecimal {
		b = append(b, "0x"...)
	}
	return strconv.AppendUint(b, d.Bits.Low, int(n))
}

func (n digits) Parse(s string, bits int) (Value, error) {
	v, err := strconv.ParseUint(s, 0, bits)
	if err != nil {
		return Value{}, fmt.Errorf("not a number of %d bits", bits)
	}
	return Exactly(v), nil
}

// Maskable writes an exact number in the base, and one with a mask in hexadecimal, with the mask
// after a slash.
type Maskable digits

func (n Maskable) Append(b []byte, d Value) []byte {
	if d.Exact() {
		return digits(n).Append(b, d)
	}
	b = Hexadecimal.Append(b, d)
	return strconv.AppendUint(append(b, "/0x"...), d.Mask.Low, 16)
}

func (n Maskable) Parse(s string, bits int) (Value, error) {
	value, mask, masked := strings.Cut(s, "/")
	d, err := digits(n).Parse(value, bits)
	if err != nil || !masked {
		return d, err
	}
	m, err := Hexadecimal.Parse(mask, bits)
	if err == nil && (m.Bits.Low == 0 || d.Bits.Low&^m.Bits.Low != 0) {
		err = errors.New("not a value within its mask")
	}
	return Masked(d.Bits.Low, m.Bits.Low), err
}

// MACText writes a MAC.
type MACText struct{}

func (MACText) Append(b []byte, d Value) []byte { return d.MAC().AppendTo(b) }

func (MACText) Parse(s string, _ int) (Value, error) {
	a, err := cluster.ParseMAC(s)
	return OfMAC(a), err
}

// IPText writes an address, or a prefix.
type IPText struct{}

func (IPText) Append(b []byte, d Value) []byte {
	b = d.Addr().AppendTo(b)
	if d.Exact() {
		return b
	}
	return strconv.AppendInt(append(b, '/'), int64(d.PrefixLen()), 10)
}

func (IPText) Parse(s string, _ int) (Value, error) {
	a, bits, err := parsePrefix(s)
	return OfAddr(a, bits), err
}

// Words lists all values of a field.
type Words []Word

func (list Words) Append(b []byte, d Value) []byte {
	for _, w := range list {
		if w.Full() == d {
			return append(b, w.Text...)
		}
	}
	return b
}

// errWord is the error for a text that is none of the words. It is made once, because most packets
// and matches that are compared have no word.
var errWord = errors.New("not a value known here")

func (list Words) Parse(s string, _ int) (Value, error) {
	for _, w := range list {
		if w.Text == s {
			return w.Full(), nil
		}
	}
	return Value{}, errWord
}

// ParseAddr parses an address without a zone.
func ParseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err == nil && a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%s has a zone", a)
	}
	return a, err
}

// parsePrefix parses an address with or without a prefix length, and masks it as the switch does.
func parsePrefix(s string) (a netip.Addr, bits int, err error) {
	if !strings.Contains(s, "/") {
		a, err = ParseAddr(s)
		return a, a.BitLen(), err
	}
	p, err := netip.ParsePrefix(s)
	return p.Masked().Addr(), p.Bits(), err
}
