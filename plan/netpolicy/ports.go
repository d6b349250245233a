package netpolicy

import (
	"cmp"
	"math/bits"
	"slices"

	"hairpin/cluster"
)

// PortRange is a range of ports of a protocol. First 0 and Last 65535 are all its ports.
type PortRange struct {
	Protocol    cluster.Protocol
	First, Last uint16
}

const lastPort = 1<<16 - 1

// All reports whether the range has every port of its protocol. No packet has port 0.
func (r PortRange) All() bool { return r.First <= 1 && r.Last == lastPort }

// Masked is the ports that equal Value in the bits of Mask.
type Masked struct{ Value, Mask uint16 }

// Masks returns the fewest Masked that have exactly the ports of the range, at most 30.
func (r PortRange) Masks() (list []Masked) {
	for first, end := uint32(r.First), uint32(r.Last)+1; first < end; {
		size := uint32(1) << bits.TrailingZeros32(first|1<<16)
		for first+size > end {
			size >>= 1
		}
		list = append(list, Masked{uint16(first), uint16(^(size - 1))})
		first += size
	}
	return list
}

// merged returns the same ports as sorted ranges that are neither overlapping nor adjacent.
func merged(list []PortRange) (out []PortRange) {
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b PortRange) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last))
	})
	for _, r := range list {
		if n := len(out) - 1; n >= 0 && out[n].Protocol == r.Protocol && uint32(r.First) <= uint32(out[n].Last)+1 {
			out[n].Last = max(out[n].Last, r.Last)
			continue
		}
		out = append(out, r)
	}
	return out
}
