// Package stablehash has hash functions whose values are the same on every node and in every
// version: what is derived from them (proxy ports, group and bucket numbers, slots of clients) is
// compared with what a node already has.
package stablehash

import (
	"hash/fnv"
	"net/netip"
)

// String returns the 64-bit FNV-1a hash of s.
func String(s string) uint64 { return sum([]byte(s)) }

func sum(b []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(b) // never fails
	return h.Sum64()
}

// String32 returns the 32-bit FNV-1a hash of s.
func String32(s string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(s)) // never fails
	return h.Sum32()
}

// AddrPort returns the 64-bit FNV-1a hash of a.
func AddrPort(a netip.AddrPort) uint64 {
	b, _ := a.MarshalBinary() // cannot fail
	return sum(b)
}

// Mix makes every bit of the result depend on every bit of x (the last steps of MurmurHash3).
func Mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// Nth returns the i-th of a sequence of values that starts from x.
func Nth(x uint64, i int) uint64 { return Mix(x + uint64(i)*0x9e3779b97f4a7c15) }
