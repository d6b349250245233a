package probe

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
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
	healthRetry     = time.Second     // before a port that could not be listened on is tried again
	healthHandshake = 5 * time.Second // of TLS and HTTP/2
)

// tlsConfig returns the configuration of both sides: each shows the certificate, and believes what the authorities have signed.
// Names in certificates do not count: nodes are asked by addresses that the network gave them.
func tlsConfig(p *config.EgressProbing) (*tls.Config, error) {
	const what = "[ovnkubernetesfeature] egressip-node-healthcheck-"
	own := &cached[*tls.Certificate]{files: []string{p.Cert, p.Key}, load: func() (*tls.Certificate, error) {
		c, err := tls.LoadX509KeyPair(p.Cert, p.Key)
		return &c, err
	}}
	authorities := &cached[*x509.CertPool]{files: []string{p.CA}, load: func() (*x509.CertPool, error) {
		text, err := os.ReadFile(p.CA)
		if err != nil {
			return nil, err
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s has no certificate", p.CA)
		}
		return pool, nil
	}}
	if p.CA == "" {
		return nil, errors.New(what + "ca: is empty")
	}
	if _, err := own.get(); err != nil {
		return nil, fmt.Errorf(what+"cert, "+what+"key: %w", err)
	}
	if _, err := authorities.get(); err != nil {
		return nil, fmt.Errorf(what+"ca: %w", err)
	}
	// The files are looked at for each connection: certificates expire, and renewing them needs no restart.
	return &tls.Config{
		MinVersion:           tls.VersionTLS12,
		GetCertificate:       func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own.get() },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own.get() },
		ClientAuth:           tls.RequireAnyClientCert,
		InsecureSkipVerify:   true, // of the name; the chain is verified here
		VerifyConnection: func(s tls.ConnectionState) error {
			roots, err := authorities.get()
			if err != nil {
				return err
			}
			between := x509.NewCertPool()
			for _, i := range s.PeerCertificates[1:] {
				between.AddCert(i)
			}
			_, err = s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
			return err
		},
	}, nil
}

// egressHealth answers probes of whether this node can have egress addresses: grpc.health.v1, for every service name.
type egressHealth struct {
	grpc_health_v1.UnimplementedHealthServer
	serves func() bool
}

// Check answers a probe.
func (h *egressHealth) Check(context.Context, *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	s := grpc_health_v1.HealthCheckResponse_NOT_SERVING
	if h.serves() {
		s = grpc_health_v1.HealthCheckResponse_SERVING
	}
	return &grpc_health_v1.HealthCheckResponse{Status: s}, nil
}

// healthServer is a server whose clients can take little: a question is a few bytes.
func healthServer(serves func() bool, options ...grpc.ServerOption) *grpc.Server {
	s := grpc.NewServer(append(options, grpc.ConnectionTimeout(healthHandshake), grpc.MaxConcurrentStreams(16), grpc.MaxRecvMsgSize(4<<10),
		grpc.MaxHeaderListSize(ops.HeaderBytes), grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: ops.IdleTimeout}))...)
	grpc_health_v1.RegisterHealthServer(s, &egressHealth{serves: serves})
	return s
}

// Serve answers on the port until ctx ends. A port that is taken is tried again.
func Serve(ctx context.Context, p config.EgressProbing, log *slog.Logger, serves func() bool) error {
	if p.Port == 0 {
		return nil
	}
	var options []grpc.ServerOption
	if p.Cert != "" {
		config, err := tlsConfig(&p)
		if err != nil {
			return err
		}
		options = append(options, grpc.Creds(credentials.NewTLS(config)))
	}
	for warned := false; ctx.Err() == nil; {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", ":"+strconv.Itoa(p.Port))
		if err == nil {
			s := healthServer(serves, options...)
			stop := context.AfterFunc(ctx, s.Stop)
			err = s.Serve(ops.Bounded(l, ops.MostProbers))
			stop()
		}
		if ctx.Err() != nil {
			return nil
		}
		if !warned {
			log.Warn("health service of egress addresses", "error", err)
			warned = true
		}
		retry.Sleep(ctx, healthRetry)
	}
	return nil
}
