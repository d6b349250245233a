package ovn

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"hairpin/cluster"
)

// securityEntry is one entry of a port's port security: a MAC and the IP addresses allowed with it.
// Without addresses, all are allowed. Otherwise a family without an address is not allowed.
type securityEntry struct {
	mac cluster.MAC
	ips []netip.Addr
}

// addSecurity reads the port's port security. It adds the addresses to the switch's otherIPs:
// machines behind the port may answer for them.
func (p *Port) addSecurity() error {
	for _, text := range p.row.PortSecurity {
		words := strings.Fields(text)
		if len(words) == 0 {
			return fmt.Errorf("port security %q has no MAC", text)
		}
		s := securityEntry{}
		var err error
		if s.mac, err = cluster.ParseMAC(words[0]); err != nil {
			return fmt.Errorf("port security %q: %w", text, err)
		}
		for _, w := range words[1:] {
			ip, err := netip.ParseAddr(w)
			if err != nil { // OVN also accepts prefixes
				return fmt.Errorf("port security %q: %w", text, err)
			}
			s.ips = append(s.ips, ip)
			if other, ok := p.sw.otherIPs[ip]; ok && other != s.mac {
				p.sw.otherIPs[ip] = cluster.MAC{} // several ports: which one uses it is not known
			} else {
				p.sw.otherIPs[ip] = s.mac
			}
		}
		p.security = append(p.security, s)
	}
	return nil
}

// allows reports whether port security allows a MAC with an IP address. For packets from the port
// these are the source (check_in_port_sec), for packets to it the destination (check_out_port_sec).
func (p *Port) allows(mac cluster.MAC, ip netip.Addr) bool {
	return len(p.security) == 0 || slices.ContainsFunc(p.security, func(s securityEntry) bool {
		return s.mac == mac && (len(s.ips) == 0 || slices.Contains(s.ips, ip) || ip == linkLocal(mac) &&
			slices.ContainsFunc(s.ips, netip.Addr.Is6))
	})
}

// linkLocal returns the link-local address that a machine derives from its MAC (RFC 4291, appendix
// A).
func linkLocal(m cluster.MAC) netip.Addr {
	return netip.AddrFrom16([16]byte{0xfe, 0x80, 8: m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]})
}
