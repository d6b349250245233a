package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"hairpin/lab/probe"
)

// member is one of several clients that choose the same source port.
type member struct {
	way
	nth int // index of the client's address on the nodes' network
}

// clash is a set of clients of one endpoint, which sees them all with one address. NAT must make
// their ports distinct.
type clash struct {
	name    string
	by      string // the server that replies
	members []member
	not     []Exception
	notTCP6 []Exception // for TCP over IPv6
}

// userspaceClash is why one clash is not resolved on the userspace datapath.
const userspaceClash = "OVN does not see which ports the host uses; on the kernel datapath it does. " +
	"Ports of pods are distinct"

// kernelDemux is how Linux 6.1 handles an IPv6 reply whose port was translated due to a clash. It
// looks up the socket before it translates the address back, and finds the other connection's. For
// IPv4 it repeats the lookup.
const kernelDemux = "for IPv6, Linux 6.1 delivers the replies of the second connection to the first, which has the same port"

// clients returns members at the first four addresses of the external client.
func clients(to, path string) []member {
	return []member{{way{"client", to, path}, 0}, {way{"client", to, path}, 1}, {way{"client", to, path}, 2},
		{way{"client", to, path}, 3}}
}

func clashes() []clash {
	const a = "NodePort node-a"
	return []clash{
		{name: "clients of a pod", by: "pod-a1", members: clients("podlocal", a)},
		{name: "clients of a pod on another node", by: "pod-c1", members: clients("podremote", a)},
		{name: "clients of the host", by: "host-a", members: clients("hostself", a)},
		{name: "clients and the host, of another host", by: "host-b",
			members: append(clients("hostother", a), member{way: way{"host-a", "host-b", "direct"}}),
			not:     []Exception{{onUserspace, userspaceClash}}},
		{name: "clients and the host, of a pod", by: "pod-a1",
			members: append(clients("podlocal", a), member{way: way{"host-a", "podlocal", "ClusterIP"}})},
		{name: "one client by two addresses", by: "pod-a1",
			members: append(clients("podlocal", a)[:1], clients("podlocal", "ClusterIP")[:1]...)},
		{name: "the host by three addresses", by: "pod-a1",
			members: []member{{way: way{"host-a", "podlocal", "ClusterIP"}}, {way: way{"host-a", "podlocal", a}},
				{way: way{"host-a", "podlocal", "localhost"}}}, notTCP6: []Exception{{onKernel61, kernelDemux}}},
		{name: "pods and the host, of another host", by: "host-b",
			members: []member{{way: way{"pod-a1", "host-b", "direct"}}, {way: way{"pod-a2", "host-b", "direct"}},
				{way: way{"host-a", "host-b", "direct"}}}},
		{name: "pods and the host, of a client", by: "client",
			members: []member{{way: way{"pod-a1", "client", "direct"}}, {way: way{"pod-a2", "client", "direct"}},
				{way: way{"host-a", "client", "direct"}}}},
	}
}

func clashTrials() []Trial {
	var list []Trial
	port := uint16(20000) // below the kernel's ephemeral ports
	for _, x := range clashes() {
		for _, protocol := range []string{"tcp", "udp"} {
			for _, f := range families() {
				port++
				at := port
				t := Trial{Name: "clash " + x.name + " " + protocol + f.name, Not: x.not,
					try: func(ctx context.Context, w *world) (string, error) {
						return w.clash(ctx, x, protocol, f, at)
					}}
				if protocol == "tcp" && f.name == "6" {
					t.Not = append(t.Not, x.notTCP6...)
				}
				list = append(list, t)
			}
		}
	}
	return append(list, sourcePortTrials()...)
}

// sourcePortTrials returns trials of connections that a host or a pod opens from a source port that
// is also a NodePort at the node's address.
func sourcePortTrials() []Trial {
	var list []Trial
	for _, x := range []struct{ from, to, service string }{
		{"host-a", "client", "podlocal"}, {"host-a", "host-b", "podlocal"}, {"pod-a2", "client", "podremote"},
		{"pod-a2", "host-b", "podremote"},
	} {
		to := way{x.from, x.to, "direct"}
		for _, protocol := range []string{"tcp", "udp"} {
			for _, f := range families() {
				list = append(list, Trial{Name: to.name("source port", protocol+f.name),
					try: func(ctx context.Context, w *world) (string, error) {
						return w.clash(ctx, clash{by: x.to, members: []member{{way: to}}}, protocol, f,
							w.services[x.service].nodePort)
					}})
			}
		}
	}
	return list
}

// clash opens all connections, and then uses each of them while the others are open.
func (w *world) clash(ctx context.Context, x clash, protocol string, f family, port uint16) (string, error) {
	seen := map[netip.AddrPort]string{}
	changed := 0
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	for _, m := range x.members {
		who := fmt.Sprintf("%s, address %d, to %s by %s", m.from, m.nth, m.to, m.path)
		conn, err := w.dialMember(ctx, m, protocol, f, port)
		if err != nil {
			return "", fmt.Errorf("%s: %w", who, err)
		}
		conns = append(conns, conn)
		g, err := w.greeting(conn, protocol)
		if err != nil {
			return "", fmt.Errorf("%s: %w", who, err)
		}
		if g.Name != x.by {
			return "", fmt.Errorf("%s: %s answered", who, g.Name)
		}
		if other, taken := seen[g.Saw]; taken {
			return "", fmt.Errorf("%s and %s are both %s", other, who, g.Saw)
		}
		if seen[g.Saw] = who; g.Saw.Port() != port {
			changed++
		}
	}
	for i, conn := range conns {
		message := fmt.Appendf(nil, "member %d of %d", i, len(conns))
		if err := repeated(protocol, func() error { return w.echo(conn, message) }); err != nil {
			return "", fmt.Errorf("member %d, later: %w", i, err)
		}
	}
	return fmt.Sprintf("%d clients, %d with another port", len(conns), changed), nil
}

func (w *world) dialMember(ctx context.Context, m member, protocol string, f family, port uint16) (net.Conn, error) {
	to, err := w.wayTo(m.way, f)
	if err != nil {
		return nil, err
	}
	local := netip.AddrPortFrom(netip.Addr{}, port)
	if m.from == clientName {
		a := w.endpoints[clientName].address(f)
		for range m.nth {
			a = a.Next()
		}
		if m.nth > 0 { // without a preferred lifetime, so that it is never a default source
			p, nodad := netip.PrefixFrom(a, a.BitLen()).String(), ""
			if a.Is6() {
				nodad = "nodad"
			}
			if _, err := w.lab.Host(clientName).Exec(ctx, "sh", "-c", "ip address replace "+p+
				" dev eth0 preferred_lft 0 "+nodad); err != nil {
				return nil, err
			}
		}
		local = netip.AddrPortFrom(a, port)
	}
	return w.dial(ctx, m.from, protocol, f, local, to, option{unix.SOL_SOCKET, unix.SO_REUSEADDR, 1})
}

// greeting asks the server for its name and for the address that it sees.
func (w *world) greeting(conn net.Conn, protocol string) (g probe.Greeting, err error) {
	if protocol == "udp" {
		return w.greetingTo(conn, len("get"))
	}
	var line []byte
	if err = conn.SetDeadline(time.Now().Add(w.longer(3 * time.Second))); err == nil {
		line = make([]byte, 4096)
		var n int
		if n, err = conn.Read(line); err == nil {
			line = line[:n]
		}
	}
	if err != nil {
		return g, err
	}
	return g, json.Unmarshal(bytes.TrimSpace(line), &g)
}

// greetingTo asks with a datagram of length bytes, up to three times.
func (w *world) greetingTo(conn net.Conn, length int) (g probe.Greeting, err error) {
	question := append([]byte("get"), make([]byte, length-len("get"))...)
	var line []byte
	err = repeated("udp", func() (err error) { line, err = w.once(conn, question); return err })
	if err != nil {
		return g, err
	}
	return g, json.Unmarshal(bytes.TrimSpace(line), &g)
}

// repeated calls exchange until it succeeds, with datagrams up to three times.
func repeated(protocol string, exchange func() error) (err error) {
	for n := 0; n == 0 || n < 3 && protocol == "udp" && err != nil; n++ {
		err = exchange()
	}
	return err
}

// echo sends a message and expects it back.
func (w *world) echo(conn net.Conn, message []byte) error {
	if _, udp := conn.(*net.UDPConn); udp {
		got, err := w.once(conn, message)
		for err == nil && !bytes.Equal(got, message) { // the reply to an earlier, repeated request
			got, err = receive(conn)
		}
		return err
	}
	if err := conn.SetDeadline(time.Now().Add(w.longer(10 * time.Second))); err != nil {
		return err
	}
	sent := make(chan error, 1)
	go func() { _, err := conn.Write(message); sent <- err }()
	got := make([]byte, len(message))
	n, err := io.ReadFull(conn, got)
	if err == nil && !slices.Equal(got, message) {
		err = errors.New("something else came back")
	}
	if err != nil {
		_ = conn.Close() // ends the writer
		return fmt.Errorf("%d of %d bytes came back: %w", n, len(message), errors.Join(err, <-sent))
	}
	return <-sent
}
