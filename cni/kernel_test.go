package cni_test

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hairpin/lab"
)

// tap sends and receives frames on a sandbox's eth0.
type tap struct {
	t     *testing.T
	fd    int
	index int
	mac   net.HardwareAddr
}

func newTap(t *testing.T, s *sandbox) *tap {
	t.Helper()
	p := &tap{t: t}
	must(t, inside(s.path(), func() error {
		eth0, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		p.index, p.mac = eth0.Index, eth0.HardwareAddr
		all := int(binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL}))
		if p.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all); err != nil {
			return err
		}
		return unix.Bind(p.fd, &unix.SockaddrLinklayer{Protocol: uint16(all), Ifindex: p.index})
	}))
	t.Cleanup(func() { _ = unix.Close(p.fd) })
	return p
}

// send sends a frame from the sandbox's own Ethernet address.
func (p *tap) send(to net.HardwareAddr, ethertype uint16, payload []byte) {
	p.t.Helper()
	frame := append(append(append([]byte{}, to...), p.mac...), byte(ethertype>>8), byte(ethertype))
	must(p.t, unix.Sendto(p.fd, append(frame, payload...), 0, &unix.SockaddrLinklayer{Ifindex: p.index}))
}

// received returns the frames that arrive within a time, without the sandbox's own.
func (p *tap) received(wait time.Duration) [][]byte {
	p.t.Helper()
	var list [][]byte
	for end := time.Now().Add(wait); ; {
		left := time.Until(end)
		if left <= 0 {
			return list
		}
		tv := unix.NsecToTimeval(left.Nanoseconds())
		must(p.t, unix.SetsockoptTimeval(p.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv))
		buf := make([]byte, 2000)
		n, _, err := unix.Recvfrom(p.fd, buf, 0)
		if err == nil && string(buf[6:12]) != string(p.mac) {
			list = append(list, buf[:n])
		}
	}
}

func arpRequest(mac net.HardwareAddr, from, to netip.Addr) []byte {
	b := []byte{0, 1, 8, 0, 6, 4, 0, 1}
	b = append(append(b, mac...), from.AsSlice()...)
	return append(append(b, make([]byte, 6)...), to.AsSlice()...)
}

func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(b[i])<<8 | uint32(b[i+1])
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// ipv4 returns an IPv4 packet; its payload has an even length.
func ipv4(proto byte, from, to netip.Addr, payload []byte) []byte {
	h := []byte{0x45, 0, 0, byte(20 + len(payload)), 0, 1, 0, 0, 64, proto, 0, 0}
	h = append(append(h, from.AsSlice()...), to.AsSlice()...)
	binary.BigEndian.PutUint16(h[10:], checksum(h))
	return append(h, payload...)
}

// echoRequest returns a ping with an identifier.
func echoRequest(id byte) []byte {
	b := []byte{8, 0, 0, 0, 0, id, 0, 1}
	binary.BigEndian.PutUint16(b[2:], checksum(b))
	return b
}

// datagram returns a UDP packet with an identifier.
func datagram(port uint16, id byte) []byte {
	b := []byte{0x30, 0x39, 0, 0, 0, 12, 0, 0, 'p', 'o', 'd', id} // no checksum
	binary.BigEndian.PutUint16(b[2:], port)
	return b
}

// TestKernelIgnoresFrames sends packets that the host's kernel could receive on the pod's
// interface, although the interface is only for the switch: the kernel sees every frame of a
// userspace switch's ports. The host replies to pings of broadcasts here, and has a server on all
// its addresses. Broadcasts reach it through the switch and the management port, once.
func TestKernelIgnoresFrames(t *testing.T) {
	w, n := single(t)
	if n.Datapath() != "netdev" {
		t.Skip("the kernel datapath takes the frames away from the kernel's stack")
	}
	s := w.sandbox(n, "web")
	s.add()
	sh(t, n, "sysctl -qw net.ipv4.icmp_echo_ignore_broadcasts=0")
	const listens = 9999
	received := countDatagrams(t, n, listens)
	p := newTap(t, s)
	own := hardware(sh(t, n, "cat /sys/class/net/"+s.host+"/address"))
	broadcast, ip := hardware("ff:ff:ff:ff:ff:ff"), netip.MustParseAddr
	host, pod := n.Addresses()[0].Addr(), s.ips[0]

	for _, a := range []netip.Addr{host, ip("10.244.1.1"), ip("10.244.1.2")} {
		p.send(broadcast, unix.ETH_P_ARP, arpRequest(p.mac, pod, a))
		p.send(own, unix.ETH_P_ARP, arpRequest(p.mac, pod, a))
	}
	packets := []struct {
		name string
		mac  net.HardwareAddr
		ip   netip.Addr
		most int // how often the host may receive it: through the management port
	}{
		{"broadcast", broadcast, ip("255.255.255.255"), 1}, {"subnet's broadcast", broadcast, ip("10.244.1.255"), 1},
		{"broadcast to the host", broadcast, host, 1}, {"multicast", hardware("01:00:5e:00:00:01"), ip("224.0.0.1"), 1},
		{"to the device, for the host", own, host, 0},
		{"to the device, for the management port", own, ip("10.244.1.2"), 0},
		{"to the device, broadcast", own, ip("255.255.255.255"), 0},
	}
	for i, to := range packets {
		p.send(to.mac, unix.ETH_P_IP, ipv4(unix.IPPROTO_ICMP, pod, to.ip, echoRequest(byte(i))))
		p.send(to.mac, unix.ETH_P_IP, ipv4(unix.IPPROTO_UDP, pod, to.ip, datagram(listens, byte(i))))
		p.send(to.mac, unix.ETH_P_IP, ipv4(unix.IPPROTO_UDP, ip("0.0.0.0"), to.ip, datagram(listens, byte(i+100))))
	}
	arp, pings := answers(t, p.received(2*time.Second), own)
	// OVN's router replies for itself and for the management port. The host itself replies for the
	// host, there.
	mp0 := "0a:58:0a:f4:01:02"
	want := map[string]string{"10.244.1.1": "0a:58:0a:f4:01:01", "10.244.1.2": mp0, host.String(): mp0}
	if fmt.Sprint(arp) != fmt.Sprint(want) {
		t.Errorf("ARP was answered %v, want %v", arp, want)
	}
	udp := received()
	for i, to := range packets {
		if a, b, c := pings[byte(i)], udp[byte(i)], udp[byte(i+100)]; a > to.most || b > to.most || c > to.most {
			t.Errorf("%s: the host answered %d pings, received %d datagrams, %d from 0.0.0.0; want at most %d", to.name, a,
				b, c, to.most)
		}
	}
}

// answers sorts the received frames: the senders of ARP replies by address, and pings by
// identifier. Nothing may come from the host's end.
func answers(t *testing.T, frames [][]byte, own net.HardwareAddr) (arp map[string]string, pings map[byte]int) {
	t.Helper()
	arp, pings = map[string]string{}, map[byte]int{}
	for _, f := range frames {
		if string(f[6:12]) == string(own) {
			t.Errorf("the kernel sent a frame: %s", hex.EncodeToString(f))
		}
		switch kind := binary.BigEndian.Uint16(f[12:]); {
		case kind == unix.ETH_P_ARP && f[21] == 2:
			arp[netip.AddrFrom4([4]byte(f[28:32])).String()] = net.HardwareAddr(f[22:28]).String()
		case kind == unix.ETH_P_IP && f[14+9] == unix.IPPROTO_ICMP && f[34] == 0:
			pings[f[34+5]]++
		case kind == unix.ETH_P_IP:
			t.Errorf("unexpected packet: %s", hex.EncodeToString(f))
		}
	}
	return arp, pings
}

// countDatagrams starts a server on all addresses of a node, and counts each identifier it
// receives.
func countDatagrams(t *testing.T, n *lab.Node, port int) func() map[byte]int {
	t.Helper()
	var c net.PacketConn
	must(t, n.Do(func() (err error) {
		c, err = net.ListenPacket("udp4", fmt.Sprintf(":%d", port))
		return err
	}))
	t.Cleanup(func() { _ = c.Close() })
	return func() map[byte]int {
		times := map[byte]int{}
		must(t, c.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
		for {
			buf := make([]byte, 100)
			_, _, err := c.ReadFrom(buf)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return times
			}
			must(t, err)
			times[buf[3]]++
		}
	}
}

func hardware(text string) net.HardwareAddr {
	a, err := net.ParseMAC(strings.TrimSpace(text))
	if err != nil {
		panic(err) // a constant, or the kernel's
	}
	return a
}
