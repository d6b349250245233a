package cni

import (
	"errors"
	"fmt"
	"net/netip"
)

// firstPod is the offset of the first pod address in a node's subnet. .0 is the network, .1 the
// router, .2 the management port.
const firstPod = 3

// errFull means that a subnet has no free address.
var errFull = errors.New("no free address")

// nextAddress returns an unused address of the subnet. It takes the first one after last, so that a
// released address is reused late. It never returns the broadcast address of IPv4.
func nextAddress(subnet netip.Prefix, last netip.Addr, used map[netip.Addr]bool) (netip.Addr, error) {
	first := subnet.Masked().Addr()
	for range firstPod {
		first = first.Next()
	}
	usable := func(a netip.Addr) bool {
		return subnet.Contains(a) && (a.Is6() || subnet.Contains(a.Next()))
	}
	start := first
	if usable(last) && last.Compare(first) >= 0 {
		start = last.Next()
	}
	inUse := 0
	for a := start; usable(a); a = a.Next() {
		if !used[a] {
			return a, nil
		}
		inUse++
	}
	for a := first; a.Compare(start) < 0 && usable(a); a = a.Next() {
		if !used[a] {
			return a, nil
		}
		inUse++
	}
	return netip.Addr{}, fmt.Errorf("%w in %s: its %d are in use", errFull, subnet, inUse)
}
