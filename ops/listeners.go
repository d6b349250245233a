// Package ops serves the state of a process: listeners, health, metrics, and the health checks of
// load balancers.
package ops

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"hairpin/report"
	"hairpin/retry"
)

// Limits of the TCP servers: their clients are probes, scrapers, and any machine that can reach a
// node.
const (
	requestTimeout = 5 * time.Second // to send all of a request
	answerTimeout  = 30 * time.Second
	IdleTimeout    = 2 * time.Minute
	HeaderBytes    = 8 << 10
)

// Listeners are the TCP addresses that a process listens on. It retries to listen on an address
// after a failure: the previous process may still use it.
type Listeners struct {
	log *slog.Logger

	mu   sync.Mutex
	list []*report.Listener
}

// NewListeners returns Listeners without addresses.
func NewListeners(log *slog.Logger) *Listeners { return &Listeners{log: log} }

// Serve serves h on all addresses until ctx ends. what names it in logs and reports.
func (s *Listeners) Serve(ctx context.Context, what string, addresses []netip.AddrPort, h http.Handler) {
	s.ServeTLS(ctx, what, addresses, h, nil)
}

// ServeTLS is Serve with TLS, if tlsConfig is not nil.
func (s *Listeners) ServeTLS(ctx context.Context, what string, addresses []netip.AddrPort, h http.Handler,
	tlsConfig *tls.Config) {
	var wg sync.WaitGroup
	for _, a := range addresses {
		r := &report.Listener{For: what, Address: a.String(), Error: "not yet"}
		s.mu.Lock()
		s.list = append(s.list, r)
		s.mu.Unlock()
		wg.Go(func() { s.listen(ctx, r, a, h, tlsConfig) })
	}
	wg.Wait()
}

// listen listens on one address, and retries after failures.
func (s *Listeners) listen(ctx context.Context, r *report.Listener, a netip.AddrPort, h http.Handler,
	tlsConfig *tls.Config) {
	log := s.log.With("for", r.For, "address", r.Address)
	for ctx.Err() == nil {
		l, err := listenTCP(ctx, a)
		if err != nil && lacksIPv6(a, err) {
			log.Info("not listening: this host has no IPv6")
			s.remove(r)
			return
		}
		if err == nil {
			s.set(r, "")
			err = ServeTLS(ctx, l, h, tlsConfig)
		}
		if ctx.Err() != nil {
			return
		}
		if s.set(r, err.Error()) {
			log.Warn("cannot listen; retrying", "error", err)
		}
		retry.Sleep(ctx, retry.Last)
	}
}

// listenTCP listens for one family only, so that both can have the same port.
func listenTCP(ctx context.Context, a netip.AddrPort) (net.Listener, error) {
	network := "tcp6"
	if a.Addr().Is4() {
		network = "tcp4"
	}
	l, err := new(net.ListenConfig).Listen(ctx, network, a.String())
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return l, nil
}

// lacksIPv6 reports whether the error only means that the host has no IPv6.
func lacksIPv6(a netip.AddrPort, err error) bool {
	return a.Addr().Is6() && (a.Addr().IsUnspecified() || a.Addr().IsLoopback()) &&
		(errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL))
}

// ServeHTTP serves h on l until ctx ends, and closes l.
func ServeHTTP(ctx context.Context, l net.Listener, h http.Handler) error {
	return ServeTLS(ctx, l, h, nil)
}

// ServeTLS is ServeHTTP with TLS, if tlsConfig is not nil. The handshake is part of the request's
// time. Failed handshakes are not logged: any client can cause them.
func ServeTLS(ctx context.Context, l net.Listener, h http.Handler, tlsConfig *tls.Config) error {
	srv := &http.Server{Handler: h, ReadTimeout: requestTimeout, WriteTimeout: answerTimeout, IdleTimeout: IdleTimeout,
		MaxHeaderBytes: HeaderBytes, ErrorLog: log.New(io.Discard, "", 0)}
	defer context.AfterFunc(ctx, func() { _ = srv.Close() })()
	l = LimitListener(l, maxClients)
	if tlsConfig != nil {
		l = tls.NewListener(l, tlsConfig)
	}
	if err := srv.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

// set records the error of an address, empty for none. It reports whether the error has changed.
func (s *Listeners) set(r *report.Listener, err string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Error == err {
		return false
	}
	r.Error = err
	return true
}

// remove removes an address that is never retried.
func (s *Listeners) remove(r *report.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = slices.DeleteFunc(s.list, func(x *report.Listener) bool { return x == r })
}

// Report returns the state of each address.
func (s *Listeners) Report() []report.Listener {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []report.Listener
	for _, r := range s.list {
		out = append(out, *r)
	}
	slices.SortFunc(out, func(a, b report.Listener) int { return strings.Compare(a.For+a.Address, b.For+b.Address) })
	return out
}

// Measure sets the metric of whether the process listens on each of its addresses.
func (s *Listeners) Measure(put Put) {
	for _, r := range s.Report() {
		put("hairpin_listener_up", One(r.Error == ""), r.For, r.Address)
	}
}
