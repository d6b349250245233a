package kube

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/util/connrotation"

	"hairpin/report"
)

// Reach knows whether the API server answers, from the calls that are made anyway.
type Reach struct {
	connections *connrotation.Dialer // nil without a client

	mu    sync.Mutex
	heard bool      // it answered once
	since time.Time // since when it does not answer; zero: it does
	err   string
	// A resource that the server failed to serve since, with nothing served in between. It may be a
	// webhook's or a storage version's fault: only a second one makes it the server's.
	failing string
	failed  time.Time
}

// wrap listens to the calls of a client. It fits rest.Config.Wrap.
func (r *Reach) wrap(next http.RoundTripper) http.RoundTripper { return &apiCalls{next, r} }

type apiCalls struct {
	http.RoundTripper
	reach *Reach
}

// RoundTrip makes a call and notes how it ended. A server that cannot serve different resources
// counts as away.
func (c *apiCalls) RoundTrip(q *http.Request) (*http.Response, error) {
	answer, err := c.RoundTripper.RoundTrip(q)
	switch {
	case err != nil && errors.Is(q.Context().Err(), context.Canceled): // the caller lost interest
	case err != nil:
		c.reach.note(time.Now(), err.Error())
	case answer.StatusCode >= http.StatusInternalServerError:
		c.reach.refused(time.Now(), resourceOf(q.URL.Path), answer.Status)
	default:
		c.reach.note(time.Now(), "")
	}
	return answer, err
}

// note takes a call that was answered, or that had no answer.
func (r *Reach) note(now time.Time, err string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err, r.failing = err, ""
	switch {
	case err == "":
		r.heard, r.since = true, time.Time{}
	case r.since.IsZero():
		r.since = now
	}
}

// refused takes an answer that says that the server cannot serve a resource.
func (r *Reach) refused(now time.Time, resource, status string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !r.since.IsZero():
		r.err = status
	case r.failing == "":
		r.failing, r.failed = resource, now
	case r.failing != resource:
		r.since, r.err = r.failed, status
	}
}

// resourceOf returns the resource in a path of the API, such as "api/v1/nodes".
func resourceOf(path string) string {
	f := strings.Split(strings.Trim(path, "/"), "/")
	at := 2 // api/VERSION/RESOURCE, apis/GROUP/VERSION/RESOURCE
	if f[0] == "apis" {
		at = 3
	}
	if len(f) <= at {
		return path
	}
	resource := f[at]
	if resource == "namespaces" && len(f) > at+2 {
		resource = f[at+2]
	}
	return strings.Join(f[:at], "/") + "/" + resource
}

// Reconnect closes all connections to the API server. client-go opens new ones, and watches
// continue where they were. Of a connection from an address that the host has lost, client-go would
// learn after 45 s only.
func (r *Reach) Reconnect() {
	if r.connections != nil {
		r.connections.CloseAll()
	}
}

func (r *Reach) Answers() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.heard && r.since.IsZero()
}

func (r *Reach) Report() report.API {
	r.mu.Lock()
	defer r.mu.Unlock()
	return report.API{Away: !r.since.IsZero(), Since: r.since, Error: r.err}
}
