package agent_test

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/lab/probe"
)

// TestLinksComeAndGo: NodePorts are served on links that appear while the agent runs, under policy
// Cluster (30001) and Local (30020), for clients there and for pods. One link was off at boot, one
// comes back with another name and address, and one is a point-to-point tunnel without Ethernet.
func TestLinksComeAndGo(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{cluster.ModeDetached, cluster.ModeShared} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			l := startDemoIn(t, mode)
			a, client, p := l.Node("node-a"), l.Host("client"), netip.MustParsePrefix
			var pod lab.Place
			for _, x := range a.Pods() {
				if x.Name() == "pod-a2" {
					pod = x
				}
			}
			serves := func(when string, from lab.Place, addresses ...string) {
				t.Helper()
				for _, address := range addresses {
					for _, port := range []uint16{30001, 30020} {
						for _, protocol := range []string{"tcp", "udp"} {
							to := netip.AddrPortFrom(netip.MustParseAddr(address), port)
							eventually(t, 10*time.Second, when+": "+from.Name()+" reaches "+protocol+" "+to.String(),
								func() (bool, string) {
									x := lab.Get(t.Context(), from,
										probe.Request{Protocol: protocol, To: to, Timeout: time.Second})
									return x.Error == "", x.Error
								})
						}
					}
				}
			}
			noError(t, client.Join(t.Context(), "wire2", "eth1", p("10.10.10.100/24"), p("fd10::64/64")))
			noError(t, a.Join(t.Context(), "wire2", "wlan0", p("10.10.10.3/24"), p("fd10::3/64")))
			serves("a link comes", client, "10.10.10.3", "fd10::3")
			serves("a link comes", pod, "10.10.10.3", "fd10::3")
			sh(t, a, "ip link delete wlan0")
			noError(t, a.Join(t.Context(), "wire2", "usb0", p("10.10.10.7/24"), p("fd10::7/64")))
			serves("a link comes back", client, "10.10.10.7", "fd10::7")
			serves("a link comes back", pod, "10.10.10.7", "fd10::7")

			tunnel(t, a.Host, client)
			serves("a tunnel comes", client, "10.20.0.1")
			serves("a tunnel comes", pod, "10.20.0.1")
		})
	}
}

// tunnel connects two hosts by a point-to-point link without Ethernet, as a VPN does: the first has
// 10.20.0.1, the second 10.20.0.2.
func tunnel(t *testing.T, first, second *lab.Host) {
	t.Helper()
	open := func(h *lab.Host, own, peer string) (end *os.File) {
		noError(t, h.Do(func() error {
			tun := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "tun0"}, Mode: netlink.TUNTAP_MODE_TUN,
				Flags: netlink.TUNTAP_NO_PI, Queues: 1}
			if err := netlink.LinkAdd(tun); err != nil {
				return fmt.Errorf("tun0 of %s: %w", h.Name(), err)
			}
			end = tun.Fds[0]
			host := func(a string) *net.IPNet {
				return &net.IPNet{IP: net.ParseIP(a).To4(),
					Mask: net.CIDRMask(32, 32)}
			}
			if err := netlink.AddrAdd(tun, &netlink.Addr{IPNet: host(own), Peer: host(peer)}); err != nil {
				return fmt.Errorf("tun0 of %s: %w", h.Name(), err)
			}
			return netlink.LinkSetUp(tun)
		}))
		t.Cleanup(func() { _ = end.Close() })
		return end
	}
	a, b := open(first, "10.20.0.1", "10.20.0.2"), open(second, "10.20.0.2", "10.20.0.1")
	carry := func(to io.Writer, from io.Reader) {
		for packet := make([]byte, 65536); ; {
			n, err := from.Read(packet)
			if err != nil {
				return // the test is over
			}
			_, _ = to.Write(packet[:n]) // a packet may be lost
		}
	}
	go carry(a, b)
	go carry(b, a)
}
