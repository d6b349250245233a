package run

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"
)

// apiReach knows whether the API server answers, from the calls that are made anyway.
type apiReach struct {
	mu    sync.Mutex
	heard bool      // it answered once
	since time.Time // since when it does not answer; zero: it does
	err   string
}

// APIReport is how the API server is, as this process sees it.
type APIReport struct {
	Away  bool      `json:"away"`
	Since time.Time `json:"since,omitzero"` // since when it is away
	Error string    `json:"error,omitempty"`
}

// wrap listens to the calls of a client. It fits rest.Config.Wrap.
func (r *apiReach) wrap(next http.RoundTripper) http.RoundTripper { return &apiCalls{next, r} }

type apiCalls struct {
	http.RoundTripper
	reach *apiReach
}

// RoundTrip makes a call and notes how it ended. A server that cannot serve counts as away.
func (c *apiCalls) RoundTrip(q *http.Request) (*http.Response, error) {
	answer, err := c.RoundTripper.RoundTrip(q)
	switch {
	case err != nil && errors.Is(q.Context().Err(), context.Canceled): // the caller lost interest
	case err != nil:
		c.reach.note(time.Now(), err.Error())
	case answer.StatusCode >= http.StatusInternalServerError:
		c.reach.note(time.Now(), answer.Status)
	default:
		c.reach.note(time.Now(), "")
	}
	return answer, err
}

func (r *apiReach) note(now time.Time, err string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
	switch {
	case err == "":
		r.heard, r.since = true, time.Time{}
	case r.since.IsZero():
		r.since = now
	}
}

func (r *apiReach) answers() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.heard && r.since.IsZero()
}

func (r *apiReach) report() APIReport {
	r.mu.Lock()
	defer r.mu.Unlock()
	return APIReport{Away: !r.since.IsZero(), Since: r.since, Error: r.err}
}
