package controller_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// lostResponse lets the server renew the Lease, and withholds the response until the client gives
// up.
type lostResponse struct {
	http.RoundTripper
	renewed chan struct{} // gets the first one
}

func (u *lostResponse) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := u.RoundTripper.RoundTrip(r)
	if err != nil || r.Method != http.MethodPut || !strings.HasSuffix(r.URL.Path, "/leases/hairpin-controller") {
		return answer, err
	}
	select {
	case u.renewed <- struct{}{}:
		_ = answer.Body.Close()
		<-r.Context().Done()
		return nil, r.Context().Err()
	default:
		return answer, nil
	}
}

// testEndsInAcquisition checks that a candidate releases the Lease if it ends while it waits for
// the response to an acquisition that the server has done.
func testEndsInAcquisition(t *testing.T, p *controlPlane) {
	u := &lostResponse{renewed: make(chan struct{}, 1)}
	client := p.connect(t, func(c *rest.Config) {
		c.Wrap(func(next http.RoundTripper) http.RoundTripper { u.RoundTripper = next; return u })
	})
	stop := candidate(t, client, "one")
	soon(t, 60*time.Second, func() string {
		if len(u.renewed) == 0 {
			return "the Lease is not acquired"
		}
		return ""
	})
	stop()
	if got := p.holder(t); got != "" {
		t.Errorf("%s has ended, and has the Lease", got)
	}
}

// testEndsInRenewal checks that a leader releases the Lease if it ends while it waits for the
// response to a renewal that the server has done.
func testEndsInRenewal(t *testing.T, p *controlPlane) {
	u := &lostResponse{renewed: make(chan struct{}, 1)}
	client := p.connect(t, func(c *rest.Config) {
		c.Wrap(func(next http.RoundTripper) http.RoundTripper { u.RoundTripper = next; return u })
	})
	u.renewed <- struct{}{} // not yet
	stop := candidate(t, client, "one")
	soon(t, 60*time.Second, func() string { return differs(p.holder(t), "one") })
	<-u.renewed
	soon(t, 30*time.Second, func() string {
		if len(u.renewed) == 0 {
			return "the Lease is not renewed"
		}
		return ""
	})
	stop()
	if got := p.holder(t); got != "" {
		t.Errorf("%s has ended, and has the Lease", got)
	}
}
