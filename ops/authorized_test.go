package ops_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/kube"
	"hairpin/kubeapi"
	"hairpin/lab"
	"hairpin/lab/chart"
	"hairpin/ops"
	"hairpin/ops/opstest"
)

// target is a server of metrics on 127.0.0.1, with a real API server and the rights of an agent.
type target struct {
	t       *testing.T
	address string
	admin   *chart.Admin
	served  atomic.Int64 // requests that were let through
	cut     atomic.Bool  // the API server cannot be reached
	reviews atomic.Int64 // requests to the API server
}

// countedCalls counts the requests of a client, which fail while cut is set.
type countedCalls struct {
	http.RoundTripper
	target *target
}

func (c countedCalls) RoundTrip(q *http.Request) (*http.Response, error) {
	c.target.reviews.Add(1)
	if c.target.cut.Load() {
		return nil, fmt.Errorf("the network is cut")
	}
	return c.RoundTripper.RoundTrip(q)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func startTarget(t *testing.T) *target {
	t.Helper()
	api, _ := lab.StartAPI(t) // skips without root
	config, err := api.RESTConfig()
	must(t, err)
	x := &target{t: t}
	x.admin, err = chart.NewAdmin(config)
	must(t, err)
	must(t, x.admin.InstallAccess(t.Context()))
	own, err := x.admin.As(t.Context(), "hairpin-node", "")
	must(t, err)
	own.Wrap(func(next http.RoundTripper) http.RoundTripper { return countedCalls{next, x} })
	client, err := kubeapi.New(own)
	must(t, err)
	metrics := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		x.served.Add(1)
		_, _ = io.WriteString(w, "metrics\n")
	})
	x.address = x.listen(ops.NewAuthorized(metrics, kube.Reviewer{Client: client}), ops.ServerTLS("", ""))
	return x
}

// listen serves h on a free port until the test ends.
func (x *target) listen(h http.Handler, secure *tls.Config) string {
	free, err := net.Listen("tcp4", "127.0.0.1:0")
	must(x.t, err)
	address := netip.MustParseAddrPort(free.Addr().String())
	must(x.t, free.Close())
	d := ops.NewListeners(slog.New(slog.NewTextHandler(io.Discard, nil)))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); d.ServeTLS(ctx, "secure metrics", []netip.AddrPort{address}, h, secure) }()
	x.t.Cleanup(func() { cancel(); <-done })
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if r := d.Report(); len(r) == 1 && r[0].Error == "" {
			return address.String()
		}
		if time.Now().After(end) {
			x.t.Fatalf("%+v", d.Report())
		}
	}
}

// client returns an HTTP client that connects from an address of 127.0.0.0/8.
func clientFrom(from string) *http.Client {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}, Timeout: 5 * time.Second}
	return &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DialContext: d.DialContext,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
}

// get returns the answer to a request with a header Authorization.
func (x *target) get(from, path, authorization string) (code int, body string) {
	x.t.Helper()
	q, err := http.NewRequestWithContext(x.t.Context(), http.MethodGet, "https://"+x.address+path, nil)
	must(x.t, err)
	if authorization != "" {
		q.Header.Set("Authorization", authorization)
	}
	a, err := clientFrom(from).Do(q)
	must(x.t, err)
	defer func() { _ = a.Body.Close() }()
	text, err := io.ReadAll(a.Body)
	must(x.t, err)
	return a.StatusCode, string(text)
}

// token returns the token of a pod of a service account of the chart.
func (x *target) token(account string) string {
	x.t.Helper()
	c, err := x.admin.As(x.t.Context(), account, "")
	must(x.t, err)
	return c.BearerToken
}

// allow lets an account get paths that are no resource.
func (x *target) allow(account string, paths ...string) {
	x.t.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "test-" + account},
		Rules: []rbacv1.PolicyRule{{NonResourceURLs: paths, Verbs: []string{"get"}}}}
	_, err := x.admin.Client.RbacV1().ClusterRoles().Create(x.t.Context(), role, metav1.CreateOptions{})
	must(x.t, err)
	_, err = x.admin.Client.RbacV1().ClusterRoleBindings().Create(x.t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role.Name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Name: account, Namespace: chart.Namespace}},
	}, metav1.CreateOptions{})
	must(x.t, err)
}

// TestSecureMetrics attacks the TLS endpoint of metrics, beside a client with a permission.
func TestSecureMetrics(t *testing.T) {
	x := startTarget(t)
	x.allow("hairpin-controller", "/metrics")
	permitted, other := "Bearer "+x.token("hairpin-controller"), "Bearer "+x.token("hairpin-node")
	t.Run("answers", func(t *testing.T) { x.on(t).answers(permitted, other) })
	t.Run("many tokens", func(t *testing.T) { x.on(t).manyTokens(permitted) })
	t.Run("slow clients", func(t *testing.T) { x.on(t).slowClients(permitted) })
	t.Run("API away", func(t *testing.T) { x.on(t).apiAway(permitted) })
}

func (x *target) on(t *testing.T) *target { x.t = t; return x }

func (x *target) answers(permitted, other string) {
	for i, c := range []struct {
		name, authorization, path string
		code                      int
	}{
		{"no token", "", "/metrics", 401},
		{"empty token", "Bearer ", "/metrics", 401},
		{"a password", "Basic YWRtaW46YWRtaW4=", "/metrics", 401},
		{"no token of the cluster", "Bearer x", "/metrics", 401},
		{"damaged", permitted[:len(permitted)-8] + "AAAAAAAA", "/metrics", 401},
		{"not signed", "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJzeXN0ZW06YWRtaW4ifQ.", "/metrics", 401},
		{"no permission", other, "/metrics", 403},
		{"another path", permitted, "/metrics/../debug", 403},
		{"permitted", permitted, "/metrics", 200},
		{"scheme in lower case", "bearer" + strings.TrimPrefix(permitted, "Bearer"), "/metrics", 200},
	} {
		before := x.served.Load()
		code, body := x.get(fmt.Sprintf("127.0.1.%d", i+1), c.path, c.authorization)
		if code != c.code {
			x.t.Errorf("%s: %d %s, not %d", c.name, code, body, c.code)
		}
		if passed := x.served.Load() != before; passed != (c.code == 200) {
			x.t.Errorf("%s: served: %v", c.name, passed)
		}
	}
	// Without TLS there is no answer.
	if a, err := http.Get("http://" + x.address + "/metrics"); err == nil {
		_ = a.Body.Close()
		if a.StatusCode != http.StatusBadRequest {
			x.t.Errorf("without TLS: %s", a.Status)
		}
	}
	c := clientFrom("127.0.0.1")
	c.Transport.(*http.Transport).TLSClientConfig.MaxVersion = tls.VersionTLS11
	if a, err := c.Get("https://" + x.address + "/metrics"); err == nil {
		_ = a.Body.Close()
		x.t.Error("TLS 1.1 is accepted")
	}
	reviews := x.reviews.Load()
	for range 20 {
		if code, body := x.get("127.0.0.1", "/metrics", permitted); code != 200 {
			x.t.Errorf("again: %d %s", code, body)
		}
	}
	if n := x.reviews.Load() - reviews; n > 0 {
		x.t.Errorf("%d requests to the API server for a token that was just reviewed", n)
	}
}

// manyTokens: a client that sends random tokens costs the API server little, and others nothing.
func (x *target) manyTokens(permitted string) {
	before, begin, codes := x.reviews.Load(), time.Now(), map[int]int{}
	for i := range 200 {
		code, _ := x.get("127.0.2.1", "/metrics", fmt.Sprintf("Bearer random-%d", i))
		codes[code]++
	}
	most := 5 + 1 + int64(time.Since(begin)/time.Second)
	if n := x.reviews.Load() - before; n > most || codes[429] < 150 {
		x.t.Errorf("%d requests to the API server, more than %d; answers %v", n, most, codes)
	}
	if code, body := x.get("127.0.2.2", "/metrics", "Bearer x-y"); code != 401 {
		x.t.Errorf("another client: %d %s", code, body)
	}
	if code, body := x.get("127.0.2.1", "/metrics", permitted); code != 200 {
		x.t.Errorf("a known token of the same client: %d %s", code, body)
	}
}

// slowClients: a client that opens many connections, without a handshake or in the middle of one,
// loses only its own.
func (x *target) slowClients(permitted string) {
	silent := opstest.SlowClients(x.t, x.address, "", 600)
	hello := opstest.SlowClients(x.t, x.address, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 600)
	begin := time.Now()
	if code, body := x.get("127.0.3.1", "/metrics", permitted); code != 200 || time.Since(begin) > 5*time.Second {
		x.t.Errorf("beside %d connections: %d %s after %s", len(silent)+len(hello), code, body, time.Since(begin))
	}
	if !opstest.Closed(silent[0], 5*time.Second) {
		x.t.Error("the oldest connection is open")
	}
	if !opstest.Closed(hello[len(hello)-1], 10*time.Second) {
		x.t.Error("a handshake may last longer than 10 s")
	}
	var wg sync.WaitGroup
	for i := range 50 { // a permission, but bodies of headers in pieces
		wg.Go(func() {
			c, err := tls.Dial("tcp4", x.address, &tls.Config{InsecureSkipVerify: true})
			if err != nil {
				return
			}
			defer func() { _ = c.Close() }()
			_, _ = fmt.Fprintf(c, "GET /metrics HTTP/1.1\r\nHost: a\r\nX-%d: ", i)
			if !opstest.Closed(c, 10*time.Second) {
				x.t.Error("a request may last longer than 10 s")
			}
		})
	}
	wg.Wait()
	q, err := http.NewRequestWithContext(x.t.Context(), http.MethodGet, "https://"+x.address+"/metrics", nil)
	must(x.t, err)
	q.Header.Set("Authorization", "Bearer "+strings.Repeat("a", 64<<10))
	if a, err := clientFrom("127.0.3.2").Do(q); err == nil {
		_ = a.Body.Close()
		if a.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			x.t.Errorf("a token of 64 kB: %s", a.Status)
		}
	}
}

// apiAway: while the API server does not answer, tokens that were permitted still are, and no
// others.
func (x *target) apiAway(permitted string) {
	x.cut.Store(true)
	defer x.cut.Store(false)
	if code, body := x.get("127.0.4.1", "/metrics", "Bearer new"); code != 503 {
		x.t.Errorf("a new token: %d %s", code, body)
	}
	if code, body := x.get("127.0.4.2", "/metrics", permitted); code != 200 {
		x.t.Errorf("a permitted token: %d %s", code, body)
	}
}

// TestServerCertificate checks that the certificate is that of the files, also after they were
// renewed, and without files a self-signed one.
func TestServerCertificate(t *testing.T) {
	c := ops.ServerTLS("", "")
	own, err := c.GetCertificate(nil)
	must(t, err)
	again, err := c.GetCertificate(nil)
	must(t, err)
	if own != again {
		t.Error("each handshake makes a certificate")
	}
	dir := t.TempDir()
	file, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	files := ops.ServerTLS(file, key)
	if _, err := files.GetCertificate(nil); err == nil {
		t.Error("there is a certificate without its file")
	}
	write := func(c *tls.Certificate, at time.Time) {
		must(t, os.WriteFile(file, opstest.CertificatePEM(t, c), 0o600))
		must(t, os.WriteFile(key, opstest.KeyPEM(t, c), 0o600))
		must(t, os.Chtimes(file, at, at))
	}
	is := func(want *tls.Certificate) {
		t.Helper()
		got, err := files.GetCertificate(nil)
		must(t, err)
		if string(got.Certificate[0]) != string(want.Certificate[0]) {
			t.Error("it is another certificate")
		}
	}
	write(own, time.Now().Add(-time.Hour))
	is(own)
	second, err := ops.ServerTLS("", "").GetCertificate(nil)
	must(t, err)
	write(second, time.Now())
	is(second)
	must(t, os.WriteFile(file, []byte("half"), 0o600))
	is(second)
}
