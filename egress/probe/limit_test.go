package probe

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"hairpin/ops"
)

// The same for the health service of egress addresses: one that never ends its handshake, and many of them.
func TestSlowClientsGRPC(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := healthServer(func() bool { return true })
	done := make(chan error, 1)
	go func() { done <- s.Serve(ops.Bounded(l, 64)) }()
	defer func() { s.Stop(); <-done }()
	slow := flood(t, l.Addr().String(), "PRI * HTTP/2.0\r\n", 256)
	if !shut(slow[0], 5*time.Second) {
		t.Error("the oldest of the crowd is open")
	}
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second}))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ctx, end := context.WithTimeout(t.Context(), 5*time.Second)
	defer end()
	if _, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.WaitForReady(true)); err != nil {
		t.Errorf("a question beside the crowd: %v", err)
	}
	if !shut(slow[len(slow)-1], 4*healthHandshake) {
		t.Error("a handshake that never ends is open")
	}
}

// dial connects from an address of 127.0.0.0/8.
func dial(t *testing.T, from, to string) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 5 * time.Second}
	c, err := d.DialContext(t.Context(), "tcp4", to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// flood opens connections of one client that say little and never end, and gives them.
func flood(t *testing.T, to, say string, many int) []net.Conn {
	t.Helper()
	var all []net.Conn
	for range many {
		c := dial(t, "127.0.0.66", to)
		_, _ = io.WriteString(c, say) // it may be closed already
		all = append(all, c)
	}
	return all
}

// shut tells that the other side has shut a connection.
func shut(c net.Conn, within time.Duration) bool {
	_ = c.SetReadDeadline(time.Now().Add(within))
	_, err := io.Copy(io.Discard, c)
	var slow net.Error
	return !errors.As(err, &slow) || !slow.Timeout()
}
