package scale

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/ipv4"

	"hairpin/cluster"
	"hairpin/lab"
)

// others is the host that has the addresses of all nodes that do not run. It answers there,
// receives the tunnels' packets, and rejects the connections in them.
type others struct {
	host      *lab.Host
	mac       cluster.MAC
	userspace bool // datapath of the nodes
	conn      net.PacketConn
	listeners []net.Listener // of kubelets

	mu    sync.Mutex
	heard map[heardKey]time.Time // the last packet of a tunnel
	inner map[netip.Addr]int     // packets in tunnels, by the destination pod's address
}

// heardKey is the sender and the receiver of tunnel packets.
type heardKey struct{ from, to netip.Addr }

const geneve = 6081

// startOthers starts the host.
func startOthers(ctx context.Context, l *lab.Lab) (*others, error) {
	h, err := l.StartHost(ctx, lab.HostConfig{Name: "others",
		Addresses: []netip.Prefix{netip.MustParsePrefix("172.18.127.1/16")}})
	if err != nil {
		return nil, err
	}
	// A whole range is local, without a single address for each node: the kernel answers ARP and
	// TCP for it.
	if _, err := h.Exec(ctx, "ip", "route", "add", "local", "172.18.128.0/17", "dev", "lo"); err != nil {
		return nil, err
	}
	o := &others{host: h, heard: map[heardKey]time.Time{}, inner: map[netip.Addr]int{}}
	err = h.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err != nil {
			return fmt.Errorf("find eth0: %w", err)
		}
		copy(o.mac[:], link.Attrs().HardwareAddr)
		o.conn, err = net.ListenPacket("udp4", fmt.Sprintf(":%d", geneve))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("host of the other nodes: %w", err)
	}
	p := ipv4.NewPacketConn(o.conn)
	if err := p.SetControlMessage(ipv4.FlagDst, true); err != nil {
		return nil, fmt.Errorf("hear tunnels: %w", err)
	}
	go o.hear(p)
	return o, nil
}

// hear records each tunnel packet, and answers probes, until the socket is closed.
func (o *others) hear(p *ipv4.PacketConn) {
	frame := make([]byte, 2048)
	for {
		n, control, from, err := p.ReadFrom(frame)
		if err != nil {
			return
		}
		sender, _ := netip.ParseAddrPort(from.String())
		to, _ := netip.AddrFromSlice(control.Dst.To4())
		o.mu.Lock()
		o.heard[heardKey{sender.Addr(), to}] = time.Now()
		if pod := innerTo(frame[:n]); pod.IsValid() {
			o.inner[pod]++
		}
		o.mu.Unlock()
		if a := answer(frame[:n]); a != nil {
			// lost, if it cannot be sent
			_, _ = p.WriteTo(a, &ipv4.ControlMessage{Src: control.Dst},
				&net.UDPAddr{IP: sender.Addr().AsSlice(), Port: geneve})
		}
	}
}

// silence makes a node unresponsive, or responsive again.
func (o *others) silence(ctx context.Context, n node, silent bool) error {
	do := "del"
	if silent {
		do = "add"
	}
	_, err := o.host.Exec(ctx, "ip", "route", do, "blackhole", n.addresses()[0].Addr().String(), "table", "local")
	return err
}

// packets returns the number of packets that the host has received.
func (o *others) packets() (uint64, error) {
	s, err := counted(o.host)
	return s.RxPackets, err
}

// counted returns the counters of a host's external link.
func counted(h *lab.Host) (s netlink.LinkStatistics, err error) {
	err = h.Do(func() error {
		link, err := netlink.LinkByName("eth0")
		if err == nil {
			s = *link.Attrs().Statistics
		}
		return err
	})
	return s, err
}

// last returns the time of the last tunnel packet from one node to another; zero if none.
func (o *others) last(from, to netip.Addr) time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.heard[heardKey{from, to}]
}

func (o *others) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	clear(o.heard)
	clear(o.inner)
}

// met returns the number of pods that got packets since forget, and the most for one pod.
func (o *others) met() (pods, most int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, n := range o.inner {
		most = max(most, n)
	}
	return len(o.inner), most
}

func (o *others) close() {
	_ = o.conn.Close()
	for _, l := range o.listeners {
		_ = l.Close()
	}
}
