package probe

import (
	"context"
	"log/slog"
	"net"
	"strconv"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"hairpin/config"
	"hairpin/ops"
	"hairpin/retry"
)

const (
	healthHandshake = 5 * time.Second // of TLS and HTTP/2
	maxProbers      = 4096            // open connections: each probing node keeps its own
)

// egressHealth serves probes of whether this node can have egress addresses: grpc.health.v1, for
// every service name.
type egressHealth struct {
	grpc_health_v1.UnimplementedHealthServer
	serves func() bool
}

// Check replies to a probe.
func (h *egressHealth) Check(context.Context,
	*grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	s := grpc_health_v1.HealthCheckResponse_NOT_SERVING
	if h.serves() {
		s = grpc_health_v1.HealthCheckResponse_SERVING
	}
	return &grpc_health_v1.HealthCheckResponse{Status: s}, nil
}

// healthServer returns a server that limits its clients: a request has a few bytes.
func healthServer(serves func() bool, options ...grpc.ServerOption) *grpc.Server {
	s := grpc.NewServer(append(options, grpc.ConnectionTimeout(healthHandshake), grpc.MaxConcurrentStreams(16),
		grpc.MaxRecvMsgSize(4<<10),
		grpc.MaxHeaderListSize(ops.HeaderBytes),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: ops.IdleTimeout}))...)
	grpc_health_v1.RegisterHealthServer(s, &egressHealth{serves: serves})
	return s
}

// Serve serves the port until ctx ends. It retries a port that is in use. While a file of TLS
// cannot be read, it answers no probe (Prober.Problem).
func Serve(ctx context.Context, p config.EgressProbing, log *slog.Logger, serves func() bool) {
	if p.Port == 0 {
		return
	}
	var options []grpc.ServerOption
	if i := newIdentity(p); i != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(i.config())))
	}
	var last retry.LastError
	for ctx.Err() == nil {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", ":"+strconv.Itoa(p.Port))
		if err == nil {
			s := healthServer(serves, options...)
			stop := context.AfterFunc(ctx, s.Stop)
			err = s.Serve(ops.LimitListener(l, maxProbers))
			stop()
		}
		if ctx.Err() != nil {
			return
		}
		last.Warn(log, "health service of egress addresses", err)
		retry.Sleep(ctx, retry.Last)
	}
}
