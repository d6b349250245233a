package probe

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// Request describes a request.
type Request struct {
	Protocol string // "tcp", "udp" or "sctp"
	To       netip.AddrPort
	From     netip.Addr // source address; the zero Addr leaves it to the kernel
	// source port; 0 leaves it to the kernel, which may reuse a port that conntrack still has
	Port    uint16
	Timeout time.Duration // 0 means 3 s
	Again   time.Duration // UDP: interval of retransmissions from the same port until there is an answer; 0 = none
	// Speak makes the client of a TCP connection send first, as those of most protocols do. A
	// client that only listens never receives a server's answer that was lost together with the
	// network's state of the connection.
	Speak bool
}

// Get sends one request: one TCP connection, or one UDP datagram. It opens its socket on the
// calling thread, so the packets start in that thread's network namespace. A failure is reported in
// the Answer.
func Get(ctx context.Context, r Request) Answer {
	if r.Timeout == 0 {
		r.Timeout = 3 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, r.Timeout)
	defer cancel()
	begin := time.Now()
	answer, err := get(ctx, r)
	answer.Millis = float64(time.Since(begin).Microseconds()) / 1000
	if err != nil {
		answer.Error = err.Error()
	}
	return answer
}

func get(ctx context.Context, r Request) (a Answer, err error) {
	conn, err := dial(ctx, r.Protocol, r.From, r.Port, r.To)
	if err != nil {
		return a, err
	}
	defer conn.Close()
	if r.Protocol == "udp" && r.Again > 0 {
		stop := make(chan struct{})
		defer close(stop)
		go repeat(conn, r.Again, stop)
	}
	a.Client = addrPort(conn.LocalAddr())
	if r.Speak && r.Protocol == "tcp" {
		if _, err := conn.Write([]byte("\n")); err != nil {
			return a, err
		}
	}
	a.Greeting, err = ask(ctx, conn, r.Protocol)
	return a, err
}

func dial(ctx context.Context, protocol string, from netip.Addr, port uint16, to netip.AddrPort) (net.Conn, error) {
	if protocol == "sctp" {
		return dialSCTP(ctx, from, to)
	}
	d := net.Dialer{KeepAlive: -1}
	if !from.IsValid() && port != 0 {
		from = netip.IPv4Unspecified()
		if to.Addr().Is6() {
			from = netip.IPv6Unspecified()
		}
	}
	if from.IsValid() {
		local := netip.AddrPortFrom(from, port)
		if protocol == "udp" {
			d.LocalAddr = net.UDPAddrFromAddrPort(local)
		} else {
			d.LocalAddr = net.TCPAddrFromAddrPort(local)
		}
	}
	conn, err := d.DialContext(ctx, protocol, to.String())
	if err != nil {
		return nil, err
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		// A reset at close: thousands of connections leave no port in TIME_WAIT.
		_ = tcp.SetLinger(0) // an error has no other effect
	}
	return conn, nil
}

// ask gets the greeting.
func ask(ctx context.Context, conn net.Conn, protocol string) (g Greeting, err error) {
	if end, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(end); err != nil {
			return g, err
		}
	}
	var line []byte
	if protocol == "udp" {
		if _, err := conn.Write([]byte("get")); err != nil {
			return g, err
		}
		line = make([]byte, 4096)
		n, err := conn.Read(line)
		if err != nil {
			return g, err
		}
		line = line[:n]
	} else if line, err = readLine(conn); err != nil {
		return g, err
	}
	if err := json.Unmarshal(line, &g); err != nil {
		return g, fmt.Errorf("answer %q: %w", line, err)
	}
	return g, nil
}

// repeat sends a UDP request periodically.
func repeat(conn net.Conn, every time.Duration, stop <-chan struct{}) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
			_, _ = conn.Write([]byte("get")) // errors appear at the reader
		}
	}
}
