package probe

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hairpin/config"
)

// asks starts a prober; it ends with the test.
func asks(t *testing.T, p config.EgressProbing, hold func() bool) *Prober {
	t.Helper()
	b := New(p, slog.New(slog.DiscardHandler), hold)
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { b.Run(ctx) })
	t.Cleanup(func() { stop(); wg.Wait() })
	return b
}

// lostSoon waits until exactly these nodes are unreachable.
func lostSoon(t *testing.T, b *Prober, want string) {
	t.Helper()
	got := ""
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if got = strings.Join(slices.Sorted(maps.Keys(b.Unreachable())), " "); got == want {
			return
		}
	}
	t.Fatalf("lost are %q, not %q", got, want)
}

func never() bool { return false }

// silentPort returns a port of 127.0.0.x where probes are neither answered nor refused: its queue
// is full.
func silentPort(t *testing.T, address string, port int) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	a := netip.MustParseAddr(address)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: a.As4(), Port: port}); err != nil {
		t.Skipf("port %d of %s: %v", port, a, err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		c, err := net.DialTimeout("tcp", netip.AddrPortFrom(a, uint16(port)).String(), 100*time.Millisecond)
		if err != nil {
			return
		}
		t.Cleanup(func() { _ = c.Close() })
	}
}

// TestTCPProbe: a kernel that refuses is alive, and one that does not reply is not. With hold, no
// node becomes unreachable.
func TestTCPProbe(t *testing.T) {
	silentPort(t, "127.0.0.3", discard)
	p := config.EgressProbing{Timeout: time.Second, Interval: 100 * time.Millisecond}
	var held atomic.Bool
	held.Store(true)
	b := asks(t, p, held.Load)
	targets := map[string]netip.Addr{"a": netip.MustParseAddr("127.0.0.1"), "b": netip.MustParseAddr("127.0.0.2"),
		"c": netip.MustParseAddr("127.0.0.3")}
	b.SetTargets(targets)
	off := asks(t, config.EgressProbing{}, never)
	off.SetTargets(targets)
	free := asks(t, p, never)
	free.SetTargets(targets)
	lostSoon(t, free, "c")
	<-free.Changed.C()
	if len(b.Unreachable())+len(off.Unreachable()) > 0 {
		t.Error(b.Unreachable(), off.Unreachable())
	}
	held.Store(false)
	lostSoon(t, b, "c")
	b.SetTargets(map[string]netip.Addr{"a": targets["a"]})
	free.SetTargets(map[string]netip.Addr{"a": targets["a"], "b": targets["b"], "c": targets["a"]}) // another address
	lostSoon(t, free, "")
}

// TestHealthService: with and without TLS, the service replies. A client without a certificate gets
// no reply.
func TestHealthService(t *testing.T) {
	cert, key := certificate(t)
	for _, secure := range []bool{false, true} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		p := config.EgressProbing{Timeout: time.Second, Interval: 100 * time.Millisecond,
			Port: l.Addr().(*net.TCPAddr).Port}
		if secure {
			p.Cert, p.Key, p.CA = cert, key, cert
		}
		_ = l.Close()
		ctx, stop := context.WithCancel(t.Context())
		var serves atomic.Bool
		serves.Store(true)
		var wg sync.WaitGroup
		wg.Go(func() { Serve(ctx, p, slog.New(slog.DiscardHandler), serves.Load) })
		b := asks(t, p, never)
		at := netip.MustParseAddr("127.0.0.1")
		check := func(want replyFrom) {
			t.Helper()
			var h probeResult
			for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				conns := connections{}
				h = probeRequest{name: "a", to: at, port: p.Port, conn: b.connection(conns, "a", at),
					limit: 5 * time.Second}.check(t.Context())
				b.forget(conns, nil)
				if h.from == want {
					return
				}
			}
			t.Fatalf("secure %t: heard %v, not %v: %v", secure, h.from, want, h.err)
		}
		check(replyService)
		if secure { // it is renewed
			c, k := certificate(t)
			if err := errors.Join(os.Rename(k, key), os.Rename(c, cert)); err != nil {
				t.Fatal(err)
			}
			check(replyService)
		}
		serves.Store(false)
		check(replyMachine)
		if secure {
			plain := p
			plain.Cert = ""
			o := asks(t, plain, never)
			conns := connections{}
			h := probeRequest{name: "a", to: at, port: p.Port, conn: o.connection(conns, "a", at),
				limit: time.Second}.check(t.Context())
			if h.from != replyNone {
				t.Error("answers those without a certificate")
			}
			o.forget(conns, nil)
		}
		stop()
		wg.Wait()
		check(replyNone)
		if k := (probeRequest{name: "a", to: at, port: p.Port,
			limit: 5 * time.Second}).tcpProbe(t.Context()); k.from != replyMachine {
			t.Errorf("an agent that is not there: %v", k)
		}
	}
	for field, p := range map[string]config.EgressProbing{
		"egressip-node-healthcheck-cert": {Port: 1, Cert: "/nowhere", Key: key, CA: cert},
		"egressip-node-healthcheck-ca":   {Port: 1, Cert: cert, Key: key},
		"has no certificate":             {Port: 1, Cert: cert, Key: key, CA: key},
	} {
		if err := New(p, slog.New(slog.DiscardHandler), never).Problem(); err == nil ||
			!strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestMissingTLSFile: without its certificate a prober declares no node unreachable, and reports
// the missing file. When the file exists, it probes.
func TestMissingTLSFile(t *testing.T) {
	silentPort(t, "127.0.0.3", discard)
	cert, key := certificate(t)
	away := cert + ".away"
	if err := os.Rename(cert, away); err != nil {
		t.Fatal(err)
	}
	p := config.EgressProbing{Timeout: 300 * time.Millisecond, Interval: 50 * time.Millisecond, Port: discard,
		Cert: cert, Key: key, CA: cert}
	b := asks(t, p, never)
	if err := b.Problem(); err == nil || !strings.Contains(err.Error(), "egressip-node-healthcheck-cert") {
		t.Fatalf("the problem is %v", err)
	}
	// Of a, b and c, two are alive: none is isolated.
	b.SetTargets(map[string]netip.Addr{
		"a": netip.MustParseAddr("127.0.0.1"), "b": netip.MustParseAddr("127.0.0.2"),
		"c": netip.MustParseAddr("127.0.0.3"),
	})
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if lost := b.Unreachable(); len(lost) > 0 {
			t.Fatalf("gave up %v", lost)
		}
	}
	if err := os.Rename(away, cert); err != nil {
		t.Fatal(err)
	}
	lostSoon(t, b, "c")
	if err := b.Problem(); err != nil {
		t.Error(err)
	}
}

// certificate makes a self-signed certificate.
func certificate(t *testing.T) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "nodes"},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	for file, block := range map[string]*pem.Block{certFile: {Type: "CERTIFICATE", Bytes: der},
		keyFile: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certFile, keyFile
}

// TestIsolationIsLoggedOnce: an overloaded machine considers itself isolated several times a
// second; its log has a line for all of them.
func TestIsolationIsLoggedOnce(t *testing.T) {
	var i isolationLog
	var told []string
	begin := time.Now()
	for ms := 0; ms <= 60_000; ms += 50 {
		busy := ms >= 1000 && ms < 20_000 && ms/50%2 == 0 || ms == 50_000
		if now := begin.Add(time.Duration(ms) * time.Millisecond); i.record(now, busy) {
			told = append(told, fmt.Sprint(i.logged, " at ", now.Sub(begin)))
		}
	}
	if want := []string{"true at 1s", "false at 29.9s", "true at 50s", "false at 1m0s"}; !slices.Equal(told, want) {
		t.Errorf("told %v, not %v", told, want)
	}
}
