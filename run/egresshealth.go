package run

import (
	"cmp"
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
)

// healthRetry is before a port that could not be listened on is tried again.
const healthRetry = time.Second

// tls gives the configuration of both sides: each shows the certificate, and believes what the authorities have signed.
// Names in certificates do not count: nodes are asked by addresses that the network gave them.
func (p EgressProbing) tls() (*tls.Config, error) {
	const what = "[ovnkubernetesfeature] egressip-node-healthcheck-"
	own := func() (*tls.Certificate, error) {
		c, err := tls.LoadX509KeyPair(p.Cert, p.Key)
		if err != nil {
			return nil, fmt.Errorf(what+"cert, "+what+"key: %w", err)
		}
		return &c, nil
	}
	authorities := func() (*x509.CertPool, error) {
		if p.CA == "" {
			return nil, errors.New(what + "ca: is empty")
		}
		text, err := os.ReadFile(p.CA)
		if err != nil {
			return nil, fmt.Errorf(what+"ca: %w", err)
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf(what+"ca: %s has no certificate", p.CA)
		}
		return pool, nil
	}
	_, errOwn := own()
	_, errCA := authorities()
	if err := cmp.Or(errOwn, errCA); err != nil {
		return nil, err
	}
	// The files are read for each connection: certificates expire, and who renews them restarts nobody.
	return &tls.Config{
		MinVersion:           tls.VersionTLS12,
		GetCertificate:       func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own() },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own() },
		ClientAuth:           tls.RequireAnyClientCert,
		InsecureSkipVerify:   true, // of the name; the chain is verified here
		VerifyConnection: func(s tls.ConnectionState) error {
			roots, err := authorities()
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

// egressHealth answers those who ask whether this node can carry egress addresses: grpc.health.v1, for every service name.
type egressHealth struct {
	grpc_health_v1.UnimplementedHealthServer
	serves func() bool
}

// Check is called by who asks.
func (h *egressHealth) Check(context.Context, *grpc_health_v1.HealthCheckRequest) (*grpc_health_v1.HealthCheckResponse, error) {
	s := grpc_health_v1.HealthCheckResponse_NOT_SERVING
	if h.serves() {
		s = grpc_health_v1.HealthCheckResponse_SERVING
	}
	return &grpc_health_v1.HealthCheckResponse{Status: s}, nil
}

// serveEgressHealth answers on the port until ctx ends. A port that is taken is tried again.
func serveEgressHealth(ctx context.Context, p EgressProbing, log *slog.Logger, serves func() bool) error {
	if p.Port == 0 {
		return nil
	}
	var options []grpc.ServerOption
	if p.Cert != "" {
		config, err := p.tls()
		if err != nil {
			return err
		}
		options = append(options, grpc.Creds(credentials.NewTLS(config)))
	}
	for warned := false; ctx.Err() == nil; {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", ":"+strconv.Itoa(p.Port))
		if err == nil {
			s := grpc.NewServer(options...)
			grpc_health_v1.RegisterHealthServer(s, &egressHealth{serves: serves})
			stop := context.AfterFunc(ctx, s.Stop)
			err = s.Serve(l)
			stop()
		}
		if ctx.Err() != nil {
			return nil
		}
		if !warned {
			log.Warn("health service of egress addresses", "error", err)
			warned = true
		}
		select {
		case <-ctx.Done():
		case <-time.After(healthRetry):
		}
	}
	return nil
}
