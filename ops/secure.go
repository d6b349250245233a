package ops

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"
)

// Reviewer reviews bearer tokens.
type Reviewer interface {
	// MayGet reports whether a token is valid, and whether its user may get a non-resource path.
	MayGet(ctx context.Context, token, path string) (valid, allowed bool, err error)
}

// Limits of Authorized. Any client that reaches the port can send tokens, and each new one costs
// the API server two requests.
const (
	allowedFor     = time.Minute      // a permission holds without another review
	deniedFor      = 10 * time.Second // so does its lack
	unreachableFor = 10 * time.Minute // a permission holds while the API server does not answer
	maxTokens      = 1024             // remembered
	maxReviewed    = 4096             // whose reviews are counted
	clientPace     = time.Second      // between two reviews for one client
	clientBurst    = 5
	maxReviews     = 4 // at the same time, of all clients
)

// Authorized serves next to clients that may get the path of the request, as kube-rbac-proxy does.
// A TokenReview returns the user of the bearer token, and a SubjectAccessReview the user's
// permission.
type Authorized struct {
	next     http.Handler
	reviewer Reviewer
	reviews  chan struct{}
	pages    string // the path to review in place of the request's; see NewAuthorizedPages

	mu      sync.Mutex
	tokens  map[[sha256.Size]byte]verdict
	clients map[netip.Addr]budget
}

// verdict is the result of a review of a token and a path.
type verdict struct {
	valid, allowed bool
	at             time.Time
}

// budget counts the reviews for a client.
type budget struct {
	left int
	at   time.Time // when left was updated
}

// NewAuthorized returns an Authorized for next.
func NewAuthorized(next http.Handler, r Reviewer) *Authorized {
	return &Authorized{next: next, reviewer: r, reviews: make(chan struct{}, maxReviews),
		tokens: map[[sha256.Size]byte]verdict{}, clients: map[netip.Addr]budget{}}
}

// NewAuthorizedPages serves pages to clients that may get path, whatever page they request. A
// browser sends the token as the password of HTTP's basic authentication; the name of the user is
// ignored.
func NewAuthorizedPages(next http.Handler, r Reviewer, path string) *Authorized {
	a := NewAuthorized(next, r)
	a.pages = path
	return a
}

// token returns the token of a request, or an empty string.
func (a *Authorized) token(q *http.Request) string {
	if _, password, ok := q.BasicAuth(); ok && a.pages != "" {
		return strings.TrimSpace(password)
	}
	token, _ := strings.CutPrefix(q.Header.Get("Authorization"), "Bearer ")
	if token == q.Header.Get("Authorization") {
		return "" // another scheme
	}
	return strings.TrimSpace(token)
}

// challenge answers 401, with the schemes by which a client can authenticate.
func (a *Authorized) challenge(w http.ResponseWriter, why string) {
	if a.pages != "" {
		w.Header().Add("WWW-Authenticate", `Basic realm="Hairpin: any user, a token of Kubernetes as the password"`)
	}
	w.Header().Add("WWW-Authenticate", "Bearer")
	http.Error(w, why, http.StatusUnauthorized)
}

// ServeHTTP answers 401 without a valid token, 403 without the permission, 429 to a client that
// sends too many tokens, and 503 while the API server does not answer.
func (a *Authorized) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	token, path := a.token(q), cmp.Or(a.pages, q.URL.Path)
	if token == "" {
		a.challenge(w, "a bearer token is needed")
		return
	}
	v, code, err := a.review(q.Context(), time.Now(), clientOf(q), token, path)
	switch {
	case err != nil:
		http.Error(w, err.Error(), code)
	case !v.valid:
		a.challenge(w, "the token is not valid")
	case !v.allowed:
		http.Error(w, "the token's user may not get "+path, http.StatusForbidden)
	default:
		a.next.ServeHTTP(w, q)
	}
}

// clientOf returns the address of a request's client.
func clientOf(q *http.Request) netip.Addr {
	a, err := netip.ParseAddrPort(q.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return a.Addr().Unmap()
}

// review returns the verdict about a token, from memory if it is recent. With an error it returns
// the status code.
func (a *Authorized) review(ctx context.Context, now time.Time, client netip.Addr, token, path string) (verdict, int,
	error) {
	key := sha256.Sum256([]byte(path + "\x00" + token))
	a.mu.Lock()
	v, known := a.tokens[key]
	if known && v.fresh(now) {
		a.mu.Unlock()
		return v, 0, nil
	}
	spent := !v.allowed && !a.spend(now, client) // a client with a permission has no limit
	a.mu.Unlock()
	if spent {
		return v, http.StatusTooManyRequests, fmt.Errorf("too many tokens of %s", client)
	}
	select {
	case a.reviews <- struct{}{}:
		defer func() { <-a.reviews }()
	case <-ctx.Done():
		return v, http.StatusServiceUnavailable, fmt.Errorf("too many reviews: %w", ctx.Err())
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	valid, allowed, err := a.reviewer.MayGet(ctx, token, path)
	if err != nil {
		if v.allowed && now.Sub(v.at) < unreachableFor {
			return v, 0, nil // so metrics are served while the API server is unreachable
		}
		return v, http.StatusServiceUnavailable, fmt.Errorf("the token cannot be reviewed: %w", err)
	}
	v = verdict{valid, valid && allowed, now}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.tokens) >= maxTokens {
		a.forgetTokens(now)
	}
	a.tokens[key] = v
	return v, 0, nil
}

// fresh reports whether a verdict needs no other review.
func (v verdict) fresh(now time.Time) bool {
	if v.allowed {
		return now.Sub(v.at) < allowedFor
	}
	return now.Sub(v.at) < deniedFor
}

// spend takes a review from the budget of a client, and reports whether there was one.
func (a *Authorized) spend(now time.Time, client netip.Addr) bool {
	b, known := a.clients[client]
	if !known {
		if len(a.clients) >= maxReviewed {
			a.forgetClients(now)
		}
		b = budget{clientBurst, now}
	}
	if more := int(now.Sub(b.at) / clientPace); more > 0 {
		b.left, b.at = min(clientBurst, b.left+more), now
	}
	if b.left == 0 {
		a.clients[client] = b
		return false
	}
	b.left--
	a.clients[client] = b
	return true
}

// forgetClients forgets clients whose budget is full again, or all if there are still too many.
func (a *Authorized) forgetClients(now time.Time) {
	for c, b := range a.clients {
		if now.Sub(b.at) >= clientBurst*clientPace {
			delete(a.clients, c)
		}
	}
	if len(a.clients) >= maxReviewed {
		clear(a.clients)
	}
}

// forgetTokens forgets verdicts that are too old. If there are still too many, it forgets those
// without a permission, and then all.
func (a *Authorized) forgetTokens(now time.Time) {
	for k, v := range a.tokens {
		if !v.fresh(now) && !(v.allowed && now.Sub(v.at) < unreachableFor) {
			delete(a.tokens, k)
		}
	}
	if len(a.tokens) < maxTokens {
		return
	}
	for k, v := range a.tokens {
		if !v.allowed {
			delete(a.tokens, k)
		}
	}
	if len(a.tokens) >= maxTokens {
		clear(a.tokens)
	}
}

// selfSignedFor is how long a self-signed certificate is valid. It is replaced after half of that
// time.
const selfSignedFor = 365 * 24 * time.Hour

// certificate is the certificate of a TLS server: from files, which may be renewed at any time, or
// made in memory.
type certificate struct {
	file, key string // empty: made in memory

	mu      sync.Mutex
	current *tls.Certificate
	made    time.Time // of the file, or when it was made in memory
}

// ServerTLS returns the configuration of a TLS server with a certificate from PEM files, or,
// without files, one that it signs itself.
func ServerTLS(file, key string) *tls.Config {
	c := &certificate{file: file, key: key}
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.get(time.Now()) }}
}

func (c *certificate) get(now time.Time) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.file == "" {
		if c.current != nil && now.Sub(c.made) < selfSignedFor/2 {
			return c.current, nil
		}
		made, err := selfSigned(now)
		if err != nil {
			return nil, fmt.Errorf("make a certificate: %w", err)
		}
		c.current, c.made = made, now
		return made, nil
	}
	info, err := os.Stat(c.file)
	if err == nil && c.current != nil && info.ModTime().Equal(c.made) {
		return c.current, nil
	}
	read, failed := tls.LoadX509KeyPair(c.file, c.key)
	if failed != nil {
		if c.current != nil { // the files are being replaced
			return c.current, nil
		}
		return nil, fmt.Errorf("certificate of the TLS server: %w", failed)
	}
	c.current = &read
	if err == nil {
		c.made = info.ModTime()
	}
	return c.current, nil
}

func selfSigned(now time.Time) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: "hairpin on " + host},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(selfSignedFor), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, DNSNames: []string{host},
		BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
