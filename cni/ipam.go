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

// usable reports whether a pod may have an address of a subnet. The broadcast address of IPv4 is
// not usable.
func usable(subnet netip.Prefix, a netip.Addr) bool {
	return subnet.Contains(a) && a.Compare(firstAddress(subnet)) >= 0 && (a.Is6() || subnet.Contains(a.Next()))
}

// firstAddress returns the first address of a subnet that a pod may have.
func firstAddress(subnet netip.Prefix) netip.Addr {
	a := subnet.Masked().Addr()
	for range firstPod {
		a = a.Next()
	}
	return a
}

// nextAddress returns an unused address of the subnet. It takes the first one after last, so that a
// released address is reused late.
func nextAddress(subnet netip.Prefix, last netip.Addr, used map[netip.Addr]bool) (netip.Addr, error) {
	first := firstAddress(subnet)
	start := first
	if usable(subnet, last) {
		start = last.Next()
	}
	inUse := 0
	for a := start; usable(subnet, a); a = a.Next() {
		if !used[a] {
			return a, nil
		}
		inUse++
	}
	for a := first; a.Compare(start) < 0 && usable(subnet, a); a = a.Next() {
		if !used[a] {
			return a, nil
		}
		inUse++
	}
	return netip.Addr{}, fmt.Errorf("%w in %s: its %d are in use", errFull, subnet, inUse)
}
