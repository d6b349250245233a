package controller_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// lostResponse lets the server write the Lease, and withholds the response to one write until the
// client gives up.
type lostResponse struct {
	http.RoundTripper
	lost   int32 // the number of that write, from 1
	writes atomic.Int32
}

func (u *lostResponse) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := u.RoundTripper.RoundTrip(r)
	write := r.Method == http.MethodPut || r.Method == http.MethodPost
	if err != nil || !write || !strings.Contains(r.URL.Path, "/leases") || u.writes.Add(1) != u.lost {
		return answer, err
	}
	_ = answer.Body.Close()
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// testEndsInWrite checks that a candidate releases the Lease if it ends while it waits for the
// response to a write that the server has done: its acquisition is the first, then it renews.
func testEndsInWrite(t *testing.T, p *controlPlane, lost int32) {
	u := &lostResponse{lost: lost}
	client := p.connect(t, func(c *rest.Config) {
		c.Wrap(func(next http.RoundTripper) http.RoundTripper { u.RoundTripper = next; return u })
	})
	stop := candidate(t, client, "one")
	soon(t, 60*time.Second, func() string { return differs(p.holder(t), "one") })
	soon(t, 30*time.Second, func() string {
		if u.writes.Load() < lost {
			return "the Lease is not written"
		}
		return ""
	})
	stop()
	if got := p.holder(t); got != "" {
		t.Errorf("%s has ended, and has the Lease", got)
	}
}
