package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Sizes of packets on the demo's links, with the IP header.
const (
	wireMTU = 1500
	podMTU  = 1400
	farMTU  = 1300 // on the path to the far address
)

// userspacePTB is what Open vSwitch up to 4.0.0 does to an ICMPv6 error that it translates. It
// writes the checksum difference at the offset of UDP's checksum, where ICMPv6 has the MTU.
const userspacePTB = "Open vSwitch up to 4.0.0 corrupts ICMPv6 errors that it translates"

// mtuTrials returns trials with packets of exact sizes that must not be fragmented.
func mtuTrials() []Trial {
	const a = "NodePort node-a"
	var list []Trial
	add := func(group, protocol string, x way, f family, try func(context.Context, *world) (string, error)) {
		t := Trial{Name: x.name(group, protocol+f.name), try: try}
		translated := x.from == farName && x.to != "keephost" || x.from == "pod-a2" && x.to == farName
		if f.name == "6" && translated {
			t.Not = []Exception{{onUserspace, userspacePTB}}
		}
		list = append(list, t)
	}
	for _, f := range families() {
		for _, x := range []way{{"pod-a2", "pod-c1", "direct"}, {"pod-a2", "podremote", "ClusterIP"},
			{"host-a", "podremote", "ClusterIP"}} {
			add("full packets", "udp", x, f,
				func(ctx context.Context, w *world) (string, error) { return w.fullPackets(ctx, x, f) })
		}
		for _, x := range []way{
			{"client", "podlocal", a}, {"client", "podremote", a}, {"client", "keeppod", a}, {"client", "hostself", a},
			{"client", "hostother", a}, {"client", "keephost", a},
			{"host-a", "hostother", "ClusterIP"}, {"pod-a2", "hostother", "ClusterIP"},
		} {
			add("full segments", "tcp", x, f,
				func(ctx context.Context, w *world) (string, error) { return w.fullSegments(ctx, x, f) })
		}
		for _, x := range []way{{"client", "podlocal", a}, {"client", "podremote", a}, {"client", "keeppod", a}} {
			add("pod mtu, reported to", "udp", x, f, func(ctx context.Context, w *world) (string, error) {
				return w.learn(ctx, x, f, netip.Addr{}, wireMTU, podMTU)
			})
		}
		if f.name == "4" { // the address family of the tunnels
			x := way{"pod-a2", "host-b", "direct"}
			add("pod mtu, not reported to another host by", "udp", x, f,
				func(ctx context.Context, w *world) (string, error) { return w.untold(ctx, x, f) })
			list[len(list)-1].Not = []Exception{{inOthers, reportedByHost}}
		}
		for _, x := range []way{{"pod-a2", farName, "direct"}, {"host-a", farName, "direct"}} {
			add("path mtu, reported to", "udp", x, f, func(ctx context.Context, w *world) (string, error) {
				return w.learn(ctx, x, f, netip.Addr{}, podMTU, farMTU)
			})
		}
		for _, x := range []way{
			{farName, "podlocal", a}, {farName, "podremote", a}, {farName, "keeppod", a}, {farName, "hostself", a},
			{farName, "keephost", a}, {farName, "hostother", a},
			{"pod-a1", farName, "direct"}, {"pod-c1", farName, "direct"}, {"host-b", farName, "direct"},
		} {
			add("path mtu, stream", "tcp", x, f,
				func(ctx context.Context, w *world) (string, error) { return w.stream(ctx, x, f) })
		}
	}
	return list
}

// fullPackets checks that packets of the pods' MTU arrive, also through a tunnel, and that longer
// ones cannot be sent.
func (w *world) fullPackets(ctx context.Context, x way, f family) (string, error) {
	conn, err := w.dialWay(ctx, x, "udp", f, uncut(f))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	full := podMTU - headers(f)
	n, err := w.exchange(conn, full, full)
	if err != nil {
		return "", err
	}
	if _, err := conn.Write(make([]byte, full+1)); !errors.Is(err, unix.EMSGSIZE) {
		return "", fmt.Errorf("one byte more was sent: %w", err)
	}
	return triesNote(n), nil
}

// fullSegments sends segments of the maximum size one by one, so that none is merged with others
// into one packet. Such a packet passes where a single segment is too long. The server echoes them
// at the same size.
func (w *world) fullSegments(ctx context.Context, x way, f family) (string, error) {
	conn, err := w.dialWay(ctx, x, "tcp", f)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if _, err := w.greeting(conn, "tcp"); err != nil {
		return "", err
	}
	mss, err := getsockopt(conn.(*net.TCPConn), unix.IPPROTO_TCP, unix.TCP_MAXSEG)
	if err != nil {
		return "", err
	}
	for range 5 {
		if err := w.echo(conn, bytes.Repeat([]byte("x"), mss)); err != nil {
			return "", fmt.Errorf("segments of %d bytes: %w", mss, err)
		}
	}
	return fmt.Sprintf("segments of %d bytes", mss), nil
}

// uncut makes a socket send no packet above the path MTU, with "don't fragment" set.
func uncut(f family) option {
	if f.name == "4" {
		return option{unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO}
	}
	return option{unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO}
}

// learn sends packets of one length until the kernel has learned a smaller MTU. Packets of that
// size must then arrive.
func (w *world) learn(ctx context.Context, x way, f family, from netip.Addr, first, want int) (string, error) {
	to, err := w.farWay(ctx, x, f)
	if err != nil {
		return "", err
	}
	conn, err := w.dial(ctx, x.from, "udp", f, netip.AddrPortFrom(from, 0), to, uncut(f))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	first -= headers(f)
	request := append(fmt.Appendf(nil, "want %d", 10), make([]byte, first)...)[:first]
	end := time.Now().Add(w.longer(5 * time.Second))
	for {
		_, err := w.once(conn, request)
		mtu, err2 := pathMTU(conn.(*net.UDPConn), f)
		if err2 != nil {
			return "", err2
		}
		if mtu == want {
			break
		}
		if err == nil {
			return "", fmt.Errorf("a packet of %d bytes was answered, though the MTU is %d", first+headers(f), want)
		}
		if time.Now().After(end) {
			return "", fmt.Errorf("the client was never told: it knows of an MTU of %d, not of %d: %w", mtu, want, err)
		}
	}
	full := want - headers(f)
	n, err := w.exchange(conn, full, full)
	return triesNote(n), err
}

// untold makes another node's host reply with more than the pods' MTU, and then with less. The host
// must not learn the pods' MTU for the path to the pod's node, because tunnel packets would no
// longer fit. MTUs learned in earlier trials are deleted first.
func (w *world) untold(ctx context.Context, x way, f family) (string, error) {
	if _, err := w.lab.Node(strings.Replace(x.to, "host-", "node-", 1)).Exec(ctx, "ip", "route", "flush",
		"cache"); err != nil {
		return "", err
	}
	conn, err := w.dialWay(ctx, x, "udp", f)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	for range 3 {
		if _, err := fmt.Fprintf(conn, "want %d", wireMTU-headers(f)); err != nil {
			return "", err
		}
		if _, err := w.exchange(conn, 10, 10); err != nil {
			return "", err
		}
	}
	back, err := w.dialWay(ctx, way{x.to, "podlocal", "NodePort node-a"}, "udp", f)
	if err != nil {
		return "", err
	}
	defer back.Close()
	mtu, err := pathMTU(back.(*net.UDPConn), f)
	if err == nil && mtu != wireMTU {
		err = fmt.Errorf("%s was told an MTU of %d", x.to, mtu)
	}
	return "", err
}

func pathMTU(conn *net.UDPConn, f family) (int, error) {
	if f.name == "4" {
		return getsockopt(conn, unix.IPPROTO_IP, unix.IP_MTU)
	}
	return getsockopt(conn, unix.IPPROTO_IPV6, unix.IPV6_MTU)
}

func getsockopt(conn syscall.Conn, level, name int) (value int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	outer := raw.Control(func(fd uintptr) { value, err = unix.GetsockoptInt(int(fd), level, name) })
	return value, errors.Join(outer, err)
}

// stream sends 96 kB over TCP and expects them back. The path to the far address has a smaller MTU
// than the links of both ends, so the sender to it must learn that.
func (w *world) stream(ctx context.Context, x way, f family) (string, error) {
	to, err := w.farWay(ctx, x, f)
	if err != nil {
		return "", err
	}
	from, local := x.from, netip.AddrPort{}
	if from == farName {
		from, local = clientName, netip.AddrPortFrom(far(f).Addr(), 0)
	}
	conn, err := w.dial(ctx, from, "tcp", f, local, to)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if _, err := w.greeting(conn, "tcp"); err != nil {
		return "", err
	}
	begin := time.Now()
	if err := w.echo(conn, bytes.Repeat([]byte("0123456789abcdef"), 6000)); err != nil {
		return "", err
	}
	return fmt.Sprintf("96 kB there and back in %d ms", time.Since(begin).Milliseconds()), nil
}

// farName is the external client at an address behind a router with a smaller MTU towards it.
const farName = "far"

func far(f family) netip.Prefix {
	if f.name == "4" {
		return netip.MustParsePrefix("198.51.100.100/24")
	}
	return netip.MustParsePrefix("2001:db8:100::64/64")
}

// farWay returns the destination of a path that may begin or end at the far address.
func (w *world) farWay(ctx context.Context, x way, f family) (netip.AddrPort, error) {
	if x.from == farName || x.to == farName {
		if err := w.makeFar(ctx); err != nil {
			return netip.AddrPort{}, fmt.Errorf("make the way to the far address: %w", err)
		}
	}
	if x.to == farName {
		return netip.AddrPortFrom(far(f).Addr(), clientPort), nil
	}
	return w.wayTo(x, f)
}

// makeFar adds a second link, to the underlay's router, to the external client if it has none.
func (w *world) makeFar(ctx context.Context) error {
	client, router := w.lab.Host(clientName), w.lab.Host("underlay")
	ns, err := netns.GetFromPath(client.Netns())
	if err != nil {
		return err
	}
	defer ns.Close()
	err = router.Do(func() error {
		if _, err := netlink.LinkByName(farName); err == nil {
			return nil
		}
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: farName}, PeerName: farName,
			PeerNamespace: netlink.NsFd(ns)})
	})
	if err != nil {
		return err
	}
	var here, there string
	for _, f := range families() {
		p, words := far(f), "-"+f.name
		gateway := p.Masked().Addr().Next()
		here += fmt.Sprintf("ip %s address replace %s/%d dev far nodad; ip %s route replace %s dev far mtu lock %d; ",
			words, gateway, p.Bits(), words, p.Addr(), farMTU)
		there += fmt.Sprintf("ip %s address replace %s dev far nodad; ip %s route replace default via %s dev far "+
			"table 77; ip %s rule show | grep -q %s || ip %s rule add from %s lookup 77; ",
			words, p, words, gateway, words, p.Addr(), words, p.Addr())
	}
	_, err = router.Exec(ctx, "sh", "-ec",
		"ip link set far up; sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1; "+here)
	if err != nil {
		return err
	}
	_, err = client.Exec(ctx, "sh", "-ec", "ip link set far up; "+there)
	return err
}
