package probe

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"hairpin/ops"
	"hairpin/ops/opstest"
)

// The same for the health service of egress addresses: a client that never ends its handshake, and
// many of them.
func TestSlowClientsGRPC(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := healthServer(func() bool { return true })
	done := make(chan error, 1)
	go func() { done <- s.Serve(ops.LimitListener(l, 64)) }()
	defer func() { s.Stop(); <-done }()
	slow := opstest.SlowClients(t, l.Addr().String(), "PRI * HTTP/2.0\r\n", 256)
	if !opstest.Closed(slow[0], 5*time.Second) {
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
	if _, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{},
		grpc.WaitForReady(true)); err != nil {
		t.Errorf("a question beside the crowd: %v", err)
	}
	if !opstest.Closed(slow[len(slow)-1], 4*healthHandshake) {
		t.Error("a handshake that never ends is open")
	}
}
