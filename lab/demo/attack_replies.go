package demo

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/lab/attack"
)

// Names of what decides where replies of Services go.
const (
	byConnectionMAC = "flows of br-svc: a connection keeps the MAC that began it"
	byNextHops      = "flows of br-svc: only next hops of the host send from addresses of other networks"
)

// secondMAC stands for another machine on the client's link, formerMAC and newMAC for a router
// there. Replies to them arrive on the link.
var (
	secondMAC = cluster.MAC{0x02, 0x42, 0xac, 0x12, 0, 0x66}
	formerMAC = cluster.MAC{0x02, 0x42, 0xac, 0x12, 0, 0x67}
	newMAC    = cluster.MAC{0x02, 0x42, 0xac, 0x12, 0, 0x68}
)

// replyAttacks returns attacks that try to receive replies to another machine.
func replyAttacks() []Attack {
	f := families()[0]
	list := []Attack{
		{Who: clientName, What: "continues a TCP connection from a second MAC with wrong numbers", By: byConnectionMAC,
			Group: "replies", try: divertTCP},
		{Who: clientName, What: "begins a connection from another network's address", By: byNextHops, Group: "replies",
			Not: notExternal, try: spoofSource},
		{Who: clientName, What: "continues a router's connection after the router's MAC changed", By: byNextHops,
			Not: notExternal, try: formerRouter},
	}
	for _, x := range []struct {
		what   string
		forged func(client, service netip.AddrPort) []byte
	}{
		{"continues a UDP connection from a second MAC", func(client, service netip.AddrPort) []byte {
			return attack.UDP(client, service, newMark("forged"))
		}},
		{"sends an ICMP error about a UDP connection from a second MAC", func(client, service netip.AddrPort) []byte {
			return attack.Unreachable(client.Addr(), service.Addr(), attack.UDP(service, client, newMark("about")))
		}},
	} {
		list = append(list, Attack{Who: clientName, What: x.what, By: byConnectionMAC, Group: "replies",
			try: func(ctx context.Context, w *world) (outcome, error) { return w.divertUDP(ctx, f, x.forged) }})
	}
	return list
}

// notExternal returns why Services see no MAC of external clients in this lab, or "".
func notExternal(w *world) string {
	if w.openflow && w.shared {
		return ""
	}
	return "the host or the gateway router replies by its own routes here"
}

// service is a Service at a NodePort of node-a with policy Local and one endpoint, a pod of the
// node. It also holds the MACs between the node and the client.
type service struct {
	at                  netip.AddrPort
	client, node        cluster.MAC
	replies, requests   *attack.Ear // at the client and at the pod
	clientSide, podSide lab.Place
}

func (w *world) localService(f family) (s service, err error) {
	s.clientSide, s.podSide = w.endpoints[clientName].place, w.endpoints[neighbour].place
	if s.at, err = w.target(Case{To: "keeppod", Path: "NodePort node-a"}, f); err != nil {
		return s, err
	}
	if s.client, s.node, err = w.outerMACs("host-a"); err != nil {
		return s, err
	}
	if s.replies, err = attack.Listen(s.clientSide, outerLink); err != nil {
		return s, err
	}
	if s.requests, err = attack.Listen(s.podSide, podLink); err != nil {
		s.replies.Close()
	}
	return s, err
}

func (s *service) Close() {
	s.replies.Close()
	s.requests.Close()
}

// ask sends a datagram from a MAC until the pod receives it.
func (w *world) ask(ctx context.Context, s *service, mac cluster.MAC, client netip.AddrPort) error {
	mark := newMark("request")
	return w.until(ctx, "a request", func() error {
		packet := attack.Frame(mac, s.node, attack.UDP(client, s.at, mark))
		if err := attack.Send(s.clientSide, outerLink, packet); err != nil {
			return err
		}
		if s.requests.Hear(ctx, w.patience(), contains(mark)) == nil {
			return errors.New("it did not arrive at the pod")
		}
		return nil
	})
}

// repliesTo makes the pod send to a client. It returns the destination MAC of the packet on the
// client's link, or zero if none arrives.
func (w *world) repliesTo(
	ctx context.Context, s *service, f family, client netip.AddrPort,
) (to cluster.MAC, err error) {
	mark, pod := newMark("reply"), netip.AddrPortFrom(w.endpoints[neighbour].address(f), podPort)
	packet := attack.Frame(w.macOf(neighbour), w.gatewayMAC(), attack.UDP(pod, client, mark))
	if err := attack.Send(s.podSide, podLink, packet); err != nil {
		return to, err
	}
	copy(to[:], s.replies.Hear(ctx, w.patience(), contains(mark)))
	return to, nil
}

// divertUDP sends packets with the addresses and ports of a client's connection from another MAC.
// The pod's next datagram, which no request precedes, must arrive at the client.
func (w *world) divertUDP(
	ctx context.Context, f family, forged func(client, service netip.AddrPort) []byte,
) (outcome, error) {
	s, err := w.localService(f)
	if err != nil {
		return outcome{}, err
	}
	defer s.Close()
	client := netip.AddrPortFrom(w.endpoints[clientName].address(f), freshPort())
	if err := w.ask(ctx, &s, s.client, client); err != nil {
		return outcome{}, err
	}
	for range 3 {
		if to, err := w.repliesTo(ctx, &s, f, client); err != nil || to != s.client {
			return takenWith("a reply arrived at %s", to), err
		}
		if err := attack.Send(s.clientSide, outerLink,
			attack.Frame(secondMAC, s.node, forged(client, s.at))); err != nil {
			return outcome{}, err
		}
	}
	to, err := w.repliesTo(ctx, &s, f, client)
	if err != nil || to != s.client {
		return takenWith("a reply arrived at %s", to), err
	}
	return refusedWith("all replies arrived at the client"), nil
}

// freshPort returns a source port that no earlier connection of the attacker has.
func freshPort() uint16 { return 43000 + uint16(time.Now().UnixNano()/1000%5000) }

// divertTCP sends segments with the addresses and ports of a client's connection from another MAC.
// No segment of the connection may arrive there, and the connection must work.
func divertTCP(ctx context.Context, w *world) (out outcome, err error) {
	f := families()[0]
	s, err := w.localService(f)
	if err != nil {
		return outcome{}, err
	}
	defer s.Close()
	var conn net.Conn
	err = lab.Do(s.clientSide, func() error {
		d := net.Dialer{Timeout: w.longer(5 * time.Second)}
		conn, err = d.DialContext(ctx, "tcp", s.at.String())
		return err
	})
	if err != nil {
		return outcome{}, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	client := conn.LocalAddr().(*net.TCPAddr).AddrPort()
	for _, seq := range []uint32{1, 1 << 30, 1 << 31, 3 << 30} { // at least three of them are out of the window
		segment := attack.Frame(secondMAC, s.node, attack.TCP(client, s.at, seq, seq+1, newMark("forged")))
		if err := attack.Send(s.clientSide, outerLink, segment); err != nil {
			return outcome{}, err
		}
	}
	if got := s.replies.Hear(ctx, w.patience(), fromServiceTo(secondMAC, s.at, client)); got != nil {
		return takenWith("a segment of %d bytes arrived at the second MAC", len(got)), nil
	}
	if err := conn.SetDeadline(time.Now().Add(w.longer(5 * time.Second))); err != nil {
		return outcome{}, err
	}
	if _, err := io.WriteString(conn, "\n"); err != nil {
		return outcome{}, err
	}
	if n, err := conn.Read(make([]byte, 1)); err != nil || n == 0 {
		return outcome{}, fmt.Errorf("the connection does not work any more: %w", err)
	}
	return refusedWith("nothing arrived at the second MAC, and the connection works"), nil
}

// fromServiceTo matches what a Service sends to a client at a MAC, over IPv4.
func fromServiceTo(mac cluster.MAC, service, client netip.AddrPort) func([]byte) bool {
	ends := append(service.Addr().AsSlice(), client.Addr().AsSlice()...)
	ends = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(ends, service.Port()), client.Port())
	return func(b []byte) bool { return bytes.HasPrefix(b, mac[:]) && bytes.Contains(b, ends) }
}

// spoofSource opens connections from an address of another network for which the client is no
// router. Connections from the client's own address are legitimate.
func spoofSource(ctx context.Context, w *world) (outcome, error) {
	f := families()[0]
	s, err := w.localService(f)
	if err != nil {
		return outcome{}, err
	}
	defer s.Close()
	answered := func(source netip.Addr) (bool, error) {
		from := netip.AddrPortFrom(source, freshPort())
		for range 3 {
			if err := attack.Send(s.clientSide, outerLink,
				attack.Frame(s.client, s.node, attack.SYN(from, s.at))); err != nil {
				return false, err
			}
		}
		return s.replies.Hear(ctx, w.patience(), fromServiceTo(s.client, s.at, from)) != nil, nil
	}
	own := w.endpoints[clientName].address(f)
	honest := func() error {
		return w.until(ctx, "a connection from the client's own address", func() error {
			if ok, err := answered(own); err != nil || !ok {
				return errors.Join(err, errors.New("there is no SYN-ACK"))
			}
			return nil
		})
	}
	if err := honest(); err != nil {
		return outcome{}, err
	}
	if ok, err := answered(stranger(f)); err != nil || ok {
		return takenWith("a SYN-ACK to %s arrived", stranger(f)), err
	}
	return refusedWith("no SYN-ACK arrived, one to the client's own address did"), honest()
}

// formerRouter sends packets on a connection of a client behind a router whose MAC has changed.
// Replies follow the router. Packets from its former MAC count as another machine's.
func formerRouter(ctx context.Context, w *world) (out outcome, err error) {
	const router = "172.18.0.66"
	f := families()[0]
	s, err := w.localService(f)
	if err != nil {
		return outcome{}, err
	}
	defer s.Close()
	node := w.lab.Node("node-a")
	ip := func(args ...string) error {
		_, err := node.Exec(ctx, append([]string{"ip"}, args...)...)
		return err
	}
	neighbor := func(mac cluster.MAC) error {
		return ip("neighbor", "replace", router, "lladdr", mac.String(), "nud", "permanent", "dev", lab.GatewayBridge)
	}
	if err := errors.Join(neighbor(formerMAC), ip("route", "add", stranger(f).String(), "via", router)); err != nil {
		return outcome{}, err
	}
	defer func() {
		ctx = context.WithoutCancel(ctx)
		err = errors.Join(err, ip("route", "delete", stranger(f).String(), "via", router),
			ip("neighbor", "delete", router, "dev", lab.GatewayBridge))
	}()
	client := netip.AddrPortFrom(stranger(f), freshPort())
	arrives := func(mac cluster.MAC) error {
		return w.until(ctx, "a reply", func() error { // the agent follows the neighbor table
			if err := w.ask(ctx, &s, mac, client); err != nil {
				return err
			}
			if to, err := w.repliesTo(ctx, &s, f, client); err != nil || to != mac {
				return errors.Join(err, fmt.Errorf("it arrived at %s, not at %s", to, mac))
			}
			return nil
		})
	}
	if err := arrives(formerMAC); err != nil {
		return outcome{}, err
	}
	if err := neighbor(newMAC); err != nil {
		return outcome{}, err
	}
	if err := arrives(newMAC); err != nil {
		return outcome{}, err
	}
	for range 3 {
		packet := attack.UDP(client, s.at, newMark("forged"))
		if err := attack.Send(s.clientSide, outerLink, attack.Frame(formerMAC, s.node, packet)); err != nil {
			return outcome{}, err
		}
	}
	// Such a packet, from a machine that is no next hop, is attributed to the default gateway,
	// which is not on this link.
	if to, err := w.repliesTo(ctx, &s, f, client); err != nil || to == formerMAC {
		return takenWith("a reply arrived at %s", to), err
	}
	return refusedWith("replies arrived at the router's new MAC"), arrives(newMAC)
}
