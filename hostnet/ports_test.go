package hostnet

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"hairpin/apply/inside"
	"hairpin/apply/inside/insidetest"
	"hairpin/cluster"
)

// TestPorts: sockets that listen at the node's addresses are found, and counted until some time
// after their end.
func TestPorts(t *testing.T) {
	if err := inside.Do(insidetest.NetNS(t), func() error { return findsPorts(t) }); err != nil {
		t.Fatal(err)
	}
}

func findsPorts(t *testing.T) error {
	var open []interface{ Close() error }
	listen := func(network, address string) error {
		if strings.HasPrefix(network, "udp") {
			c, err := net.ListenPacket(network, address)
			open = append(open, c)
			return err
		}
		l, err := net.Listen(network, address)
		open = append(open, l)
		return err
	}
	defer func() {
		for _, c := range open {
			c.Close()
		}
	}()
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("32768 60999"), 0o644); err != nil {
		return err
	}
	for _, x := range [][2]string{
		{"tcp", ":80"}, {"tcp4", ":81"}, {"tcp6", "[::]:82"}, {"tcp", "127.0.0.1:83"}, {"tcp", "[::1]:84"},
		{"udp", ":80"}, {"udp4", ":50000"}, {"tcp4", ":50000"}, {"tcp", ":90"},
	} {
		if err := listen(x[0], x[1]); err != nil {
			return err
		}
	}
	client, err := (&net.Dialer{LocalAddr: &net.UDPAddr{Port: 87}}).Dial("udp4", "127.0.0.1:80") // has a peer
	if err != nil {
		return err
	}
	open = append(open, client)
	query := portQuery{ranges: cluster.PortRanges{{First: 80, Last: 89}, {First: 50000, Last: 50000}},
		addresses: []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("fc00::3")},
		published: []cluster.HostPort{{Address: netip.MustParseAddr("127.0.0.1"),
			LoadBalancerPort: cluster.LoadBalancerPort{Protocol: cluster.TCP, Port: 89}}}}
	pods := []cluster.HostPort{
		{LoadBalancerPort: cluster.LoadBalancerPort{Protocol: cluster.SCTP, Port: 85},
			Pod: cluster.Owner{Kind: "Pod", Namespace: "default", Name: "web"}},
		{Address: netip.MustParseAddr("127.0.0.2"),
			LoadBalancerPort: cluster.LoadBalancerPort{Protocol: cluster.TCP, Port: 86}},
	}
	var uses portUses
	finds := func(what, want string) {
		t.Helper()
		found, err := uses.poll(&query, func() []cluster.HostPort { return pods })
		if err != nil {
			t.Errorf("%s: %v", what, err) // Fatal would end the goroutine of inside.Do, which waits for a result
		}
		var words []string
		for _, u := range found.Used {
			words = append(words, fmt.Sprintf("%s/%d@%s%s", u.Protocol, u.Port, u.Address, u.Pod.Name))
		}
		if got := strings.Join(words, " "); got != want || len(found.Checked) != 2 {
			t.Errorf("%s: found %s, checked %v\nnot   %s", what, got, found.Checked, want)
		}
	}
	const first, last = "tcp/80@127.0.0.1 tcp/81@127.0.0.1 tcp/83@127.0.0.1 tcp/89@127.0.0.1 tcp/50000@127.0.0.1 " +
		"udp/80@127.0.0.1", " sctp/85@127.0.0.1web tcp/80@fc00::3 tcp/82@fc00::3 udp/80@fc00::3 sctp/85@fc00::3web"
	finds("at first", first+last)
	for range ephemeralPolls - 2 {
		finds("a UDP socket at a port of clients, for a moment", first+last)
	}
	const later = first + " udp/50000@127.0.0.1" + last
	finds("for longer", later)
	for _, c := range open {
		c.Close()
	}
	pods = nil
	finds("a moment after their end", later)
	for _, x := range uses {
		x.last = x.last.Add(-portHoldTime)
	}
	finds("long after their end", "")
	finds("and while the Node still has them", "")
	return nil
}
