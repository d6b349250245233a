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
func (d *Listeners) Serve(ctx context.Context, what string, addresses []netip.AddrPort, h http.Handler) {
	d.ServeTLS(ctx, what, addresses, h, nil)
}

// ServeTLS is Serve with TLS, if secure is not nil.
func (d *Listeners) ServeTLS(ctx context.Context, what string, addresses []netip.AddrPort, h http.Handler,
	secure *tls.Config) {
	var wg sync.WaitGroup
	for _, a := range addresses {
		r := &report.Listener{For: what, Address: a.String(), Error: "not yet"}
		d.mu.Lock()
		d.list = append(d.list, r)
		d.mu.Unlock()
		wg.Go(func() { d.listen(ctx, r, a, h, secure) })
	}
	wg.Wait()
}

// listen listens on one address, and retries after failures.
func (d *Listeners) listen(ctx context.Context, r *report.Listener, a netip.AddrPort, h http.Handler,
	secure *tls.Config) {
	log := d.log.With("for", r.For, "address", r.Address)
	for ctx.Err() == nil {
		l, err := listenTCP(ctx, a)
		if err != nil && noSuchFamily(a, err) {
			log.Info("this host has no IPv6: not listening there")
			d.remove(r)
			return
		}
		if err == nil {
			d.set(r, "")
			err = serveHTTP(ctx, l, h, secure)
		}
		if ctx.Err() != nil {
			return
		}
		if d.set(r, err.Error()) {
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

// noSuchFamily reports whether the error only means that the host has no IPv6.
func noSuchFamily(a netip.AddrPort, err error) bool {
	return a.Addr().Is6() && (a.Addr().IsUnspecified() || a.Addr().IsLoopback()) &&
		(errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EADDRNOTAVAIL))
}

// ServeHTTP serves h on l until ctx ends, and closes l.
func ServeHTTP(ctx context.Context, l net.Listener, h http.Handler) error {
	return serveHTTP(ctx, l, h, nil)
}

// ServeTLS is ServeHTTP with TLS.
func ServeTLS(ctx context.Context, l net.Listener, h http.Handler, secure *tls.Config) error {
	return serveHTTP(ctx, l, h, secure)
}

// serveHTTP is ServeHTTP with TLS, if secure is not nil. The handshake is part of the request's
// time. Failed handshakes are not logged: any client can cause them.
func serveHTTP(ctx context.Context, l net.Listener, h http.Handler, secure *tls.Config) error {
	srv := &http.Server{Handler: h, ReadTimeout: requestTimeout, WriteTimeout: answerTimeout, IdleTimeout: IdleTimeout,
		MaxHeaderBytes: HeaderBytes, ErrorLog: log.New(io.Discard, "", 0)}
	defer context.AfterFunc(ctx, func() { _ = srv.Close() })()
	l = Bounded(l, maxClients)
	if secure != nil {
		l = tls.NewListener(l, secure)
	}
	if err := srv.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve: %w", err)
	}
	return nil
}

// set records the error of an address, empty for none, and reports whether it is another one.
func (d *Listeners) set(r *report.Listener, err string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.Error == err {
		return false
	}
	r.Error = err
	return true
}

func (d *Listeners) remove(r *report.Listener) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.list = slices.DeleteFunc(d.list, func(x *report.Listener) bool { return x == r })
}

// Report returns the state of each address.
func (d *Listeners) Report() []report.Listener {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []report.Listener
	for _, r := range d.list {
		out = append(out, *r)
	}
	slices.SortFunc(out, func(a, b report.Listener) int { return strings.Compare(a.For+a.Address, b.For+b.Address) })
	return out
}
