package knft_test

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"hairpin/apply/inside"
	"hairpin/datapath/nft"
)

// TestNodePortPackets checks that a connection of the host to a NodePort on any of its addresses
// arrives at the cluster IP, of both families. Ports without a Service are not translated.
func TestNodePortPackets(t *testing.T) {
	each(t, func(t *testing.T, s system) {
		s.run(t, "", "sh", "-ec",
			`ip addr add 10.96.0.80/32 dev lo; ip addr add 192.0.2.3/32 dev lo; ip addr add 10.96.0.10/32 dev lo
			ip -6 addr add fd00:10:96::80/128 dev lo nodad; ip -6 addr add 2001:db8::3/128 dev lo nodad`)
		target := s.target(t)
		if err := target.Apply(t.Context(), nft.Diff(example(t), nft.State{})); err != nil {
			t.Logf("without eth0: %v", err)
		}
		for _, c := range []struct{ network, to, at string }{
			{"tcp", "192.0.2.3:30080", "10.96.0.80:80"},
			{"tcp", "[2001:db8::3]:30080", "[fd00:10:96::80]:80"},
			{"udp", "192.0.2.3:30053", "10.96.0.10:53"},
			{"tcp", "192.0.2.3:30081", "192.0.2.3:30081"},
			{"udp", "192.0.2.3:30080", "192.0.2.3:30080"},
		} {
			if err := inside.Do(s.ns, func() error { return reaches(c.network, c.to, c.at) }); err != nil {
				t.Errorf("%s %s: %v", c.network, c.to, err)
			}
		}
	})
}

// reaches sends to an address and expects arrival at another.
func reaches(network, to, at string) error {
	if network == "tcp" {
		l, err := net.Listen("tcp", at)
		if err != nil {
			return err
		}
		defer func() { _ = l.Close() }()
		c, err := net.DialTimeout("tcp", to, 5*time.Second)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		peer, err := l.Accept()
		if err != nil {
			return err
		}
		return peer.Close()
	}
	l, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(at)))
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	c, err := net.Dial("udp", to)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Write([]byte("hello")); err != nil {
		return err
	}
	if err := l.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	b := make([]byte, 16)
	if n, err := l.Read(b); err != nil || string(b[:n]) != "hello" {
		return fmt.Errorf("got %q: %w", b[:n], err)
	}
	return nil
}
