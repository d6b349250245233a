package ops

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// Reviewer reviews bearer tokens.
type Reviewer interface {
	// MayGet reports whether a token is valid, and whether its user may get a non-resource path.
	MayGet(ctx context.Context, token, path string) (valid, allowed bool, err error)
}

// Limits of authorized. Any client that reaches the port can send tokens, and each new one costs
// the API server two requests.
const (
	allowedFor      = time.Minute      // a permission holds without another review
	deniedFor       = 10 * time.Second // a denial holds without another review
	unreachableFor  = 10 * time.Minute // a permission holds while the API server does not answer
	maxTokens       = 1024             // verdicts that are kept
	maxClientLimits = 4096             // clients with a limit that is kept
	clientInterval  = time.Second      // between two reviews for one client
	clientBurst     = 5
	maxReviews      = 4 // at the same time, of all clients
)

// authorized serves next to clients with a permission. A TokenReview returns the user of the bearer
// token, and a SubjectAccessReview the user's permission.
type authorized struct {
	next     http.Handler
	reviewer Reviewer
	reviews  chan struct{}
	path     string // to review in place of the request's, for pages; else empty

	mu      sync.Mutex
	tokens  map[[sha256.Size]byte]verdict
	clients map[netip.Addr]*rate.Limiter // of the reviews for a client
}

// verdict is the result of a review of a token and a path.
type verdict struct {
	valid, allowed bool
	at             time.Time
}

// NewAuthorized returns a handler that serves next to clients that may get the path of the request,
// as kube-rbac-proxy does.
func NewAuthorized(next http.Handler, r Reviewer) http.Handler {
	return NewAuthorizedPages(next, r, "")
}

// NewAuthorizedPages serves pages to clients that may get path, whatever page they request. A
// browser sends the token as the password of HTTP's basic authentication; the name of the user is
// ignored.
func NewAuthorizedPages(next http.Handler, r Reviewer, path string) http.Handler {
	return &authorized{next: next, reviewer: r, reviews: make(chan struct{}, maxReviews), path: path,
		tokens: map[[sha256.Size]byte]verdict{}, clients: map[netip.Addr]*rate.Limiter{}}
}

// token returns the token of a request, or an empty string.
func (a *authorized) token(q *http.Request) string {
	if _, password, ok := q.BasicAuth(); ok && a.path != "" {
		return strings.TrimSpace(password)
	}
	scheme, token, _ := strings.Cut(q.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// challenge answers 401, with the schemes by which a client can authenticate.
func (a *authorized) challenge(w http.ResponseWriter, why string) {
	if a.path != "" {
		w.Header().Add("WWW-Authenticate", `Basic realm="Hairpin: any user, a token of Kubernetes as the password"`)
	}
	w.Header().Add("WWW-Authenticate", "Bearer")
	http.Error(w, why, http.StatusUnauthorized)
}

// ServeHTTP answers 401 without a valid token, 403 without the permission, 429 to a client that
// sends too many tokens, and 503 while the API server does not answer.
func (a *authorized) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	token, path := a.token(q), cmp.Or(a.path, q.URL.Path)
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
func (a *authorized) review(ctx context.Context, now time.Time, client netip.Addr, token, path string) (verdict, int,
	error) {
	key := sha256.Sum256([]byte(path + "\x00" + token))
	a.mu.Lock()
	v, known := a.tokens[key] // an unknown one is not allowed
	if known && v.fresh(now) {
		a.mu.Unlock()
		return v, 0, nil
	}
	// Tokens that had the permission at the last review have no limit.
	tooMany := !v.allowed && !a.limitOf(client, now).AllowN(now, 1)
	a.mu.Unlock()
	if tooMany {
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

// limitOf returns the limit of a client.
func (a *authorized) limitOf(client netip.Addr, now time.Time) *rate.Limiter {
	if a.clients[client] == nil {
		if len(a.clients) >= maxClientLimits {
			a.forgetClients(now)
		}
		a.clients[client] = rate.NewLimiter(rate.Every(clientInterval), clientBurst)
	}
	return a.clients[client]
}

// forgetClients forgets clients that have their whole burst again, or all if there are still too
// many.
func (a *authorized) forgetClients(now time.Time) {
	maps.DeleteFunc(a.clients, func(_ netip.Addr, l *rate.Limiter) bool { return l.TokensAt(now) >= clientBurst })
	if len(a.clients) >= maxClientLimits {
		clear(a.clients)
	}
}

// forgetTokens forgets verdicts that are too old. If there are still too many, it forgets those
// without a permission, and then all.
func (a *authorized) forgetTokens(now time.Time) {
	maps.DeleteFunc(a.tokens, func(_ [sha256.Size]byte, v verdict) bool {
		return !v.fresh(now) && !(v.allowed && now.Sub(v.at) < unreachableFor)
	})
	if len(a.tokens) < maxTokens {
		return
	}
	maps.DeleteFunc(a.tokens, func(_ [sha256.Size]byte, v verdict) bool { return !v.allowed })
	if len(a.tokens) >= maxTokens {
		clear(a.tokens)
	}
}
