package cluster

import (
	"cmp"
	"fmt"
	"net/netip"
)

// ParseAddr reads an address in its plain form. It rejects "010.0.0.1", zones and IPv4-mapped
// addresses: two systems could read them as different addresses.
func ParseAddr(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" || a.Is4In6() {
		return netip.Addr{}, fmt.Errorf("%q is not an IPv4 or IPv6 address in canonical form", text)
	}
	return a, nil
}

// ParseHostAddr reads an address that packets from other machines can have as their destination.
// The Kubernetes API rejects the same addresses for endpoints and externalIPs, except multicast
// addresses that routers forward.
func ParseHostAddr(text string) (netip.Addr, error) {
	a, err := ParseAddr(text)
	if err != nil {
		return a, err
	}
	for _, r := range unreachable {
		if r.prefix.Contains(a) {
			return netip.Addr{}, fmt.Errorf("%s is %s address, which other machines cannot reach", a, r.kind)
		}
	}
	return a, nil
}

// unreachable lists ranges without an address that other machines can reach, the most specific
// first.
var unreachable = []struct {
	prefix netip.Prefix
	kind   string
}{
	{netip.MustParsePrefix("0.0.0.0/32"), "the unspecified"}, {netip.MustParsePrefix("::/128"), "the unspecified"},
	{netip.MustParsePrefix("0.0.0.0/8"), "a \"this network\" (0.0.0.0/8)"}, // RFC 1122, 3.2.1.3
	{netip.MustParsePrefix("127.0.0.0/8"), "a loopback"}, {netip.MustParsePrefix("::1/128"), "a loopback"},
	{netip.MustParsePrefix("169.254.0.0/16"), "a link-local"}, {netip.MustParsePrefix("fe80::/10"), "a link-local"},
	{netip.MustParsePrefix("224.0.0.0/4"), "a multicast"}, {netip.MustParsePrefix("ff00::/8"), "a multicast"},
	{netip.MustParsePrefix("255.255.255.255/32"), "the broadcast"},
	{netip.MustParsePrefix("240.0.0.0/4"), "a reserved (240.0.0.0/4)"}, // RFC 1112, 4
}

// CheckRange returns an error if pods or Services cannot have the addresses of a range.
func CheckRange(p netip.Prefix) error {
	for _, r := range unreachable {
		if r.prefix.Overlaps(p) {
			return fmt.Errorf("%s overlaps %s: pods and Services cannot have %s address", p, r.prefix, r.kind)
		}
	}
	return nil
}

// ParsePrefix reads an address with a prefix length.
func ParsePrefix(text string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(text)
	return p, err == nil && !p.Addr().Is4In6()
}

// ComparePrefixes orders prefixes by family, address and length.
func ComparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), a.Bits()-b.Bits())
}

// Halves splits a prefix into the two of half its size. It must not be a single address.
func Halves(p netip.Prefix) (lower, upper netip.Prefix) {
	bytes := p.Addr().AsSlice()
	bytes[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	second, _ := netip.AddrFromSlice(bytes)
	return netip.PrefixFrom(p.Addr(), p.Bits()+1), netip.PrefixFrom(second, p.Bits()+1)
}
