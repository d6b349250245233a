package probe

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// Request says what to ask.
type Request struct {
	Protocol string // "tcp", "udp" or "sctp"
	To       netip.AddrPort
	From     netip.Addr    // source address; the zero Addr leaves it to the kernel
	Timeout  time.Duration // 0 means 3 s
	// Speak makes the client of a TCP connection send first, as those of most protocols do. One that only listens never
	// hears of a server's answer that was lost together with everything the network knew of the connection.
	Speak bool
}

// Get asks a server once: one TCP connection, or one UDP datagram that is not sent again. It opens its socket on the calling thread, so
// that thread's network namespace is where the packets start. A failure is in the Answer.
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
	conn, err := dial(ctx, r.Protocol, r.From, r.To)
	if err != nil {
		return a, err
	}
	defer conn.Close()
	a.Client = addrPort(conn.LocalAddr())
	if r.Speak && r.Protocol == "tcp" {
		if _, err := conn.Write([]byte("\n")); err != nil {
			return a, err
		}
	}
	a.Greeting, err = ask(ctx, conn, r.Protocol)
	return a, err
}

func dial(ctx context.Context, protocol string, from netip.Addr, to netip.AddrPort) (net.Conn, error) {
	if protocol == "sctp" {
		return dialSCTP(ctx, from, to)
	}
	d := net.Dialer{KeepAlive: -1}
	if from.IsValid() {
		local := netip.AddrPortFrom(from, 0)
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
		_ = tcp.SetLinger(0) // a refusal costs only that
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
