package cluster

import (
	"fmt"
	"net/netip"
)

// parseAddr reads an address in its plain form. "010.0.0.1", zones and IPv4-mapped addresses are refused: two
// systems could read them as two addresses.
func parseAddr(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" || a.Is4In6() {
		return netip.Addr{}, fmt.Errorf("%q is not an IPv4 or IPv6 address in canonical form", text)
	}
	return a, nil
}

// parseHostAddr reads an address that packets from other machines can have as their destination. The Kubernetes API
// refuses what is refused here for endpoints and externalIPs, but for multicast beyond the link.
func parseHostAddr(text string) (netip.Addr, error) {
	a, err := parseAddr(text)
	if err != nil {
		return a, err
	}
	var kind string
	switch {
	case a.IsUnspecified():
		kind = "the unspecified"
	case a.IsLoopback():
		kind = "a loopback"
	case a.IsMulticast():
		kind = "a multicast"
	case a.IsLinkLocalUnicast():
		kind = "a link-local"
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		kind = "the broadcast"
	case a.Is4() && a.As4()[0] == 0: // RFC 1122, 3.2.1.3
		kind = "a \"this network\" (0.0.0.0/8)"
	case a.Is4() && a.As4()[0] >= 240: // RFC 1112, 4
		kind = "a reserved (240.0.0.0/4)"
	default:
		return a, nil
	}
	return netip.Addr{}, fmt.Errorf("%s is %s address, which other machines cannot reach", a, kind)
}

// parseIngress reads an address of a load balancer. An IPv4 link-local one is accepted: the guard rejects it where the administrator
// has not listed it.
func parseIngress(text string) (netip.Addr, error) {
	if a, err := parseAddr(text); err == nil && a.Is4() && a.IsLinkLocalUnicast() {
		return a, nil
	}
	return parseHostAddr(text)
}

// parsePrefix reads an address with a prefix length.
func parsePrefix(text string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(text)
	return p, err == nil && !p.Addr().Is4In6()
}

// comparePrefix orders prefixes by family, address and length.
func comparePrefix(a, b netip.Prefix) int {
	if c := a.Addr().Compare(b.Addr()); c != 0 {
		return c
	}
	return a.Bits() - b.Bits()
}

func ofFamily(list []netip.Addr, family Family) []netip.Addr {
	var out []netip.Addr
	for _, a := range list {
		if FamilyOf(a) == family {
			out = append(out, a)
		}
	}
	return out
}
