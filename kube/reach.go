package kube

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/util/connrotation"

	"hairpin/report"
)

// Reach records whether the API server answers, by observing the calls of a client.
type Reach struct {
	connections *connrotation.Dialer // nil without a client

	mu       sync.Mutex
	answered bool      // the server has answered at least once
	since    time.Time // since when it has not answered; zero: it answers
	err      string
	// failing is the resource of the first server error (5xx) after the last success of any
	// resource; empty: there was none. A webhook or a storage version may be the cause, so the
	// server counts as unreachable only if a second resource fails.
	failing      string
	failingSince time.Time
	// refused has the status of each resource for which the last call failed.
	refused map[string]string
}

// wrap observes the calls of a client, for rest.Config.Wrap.
func (r *Reach) wrap(next http.RoundTripper) http.RoundTripper { return &apiCalls{next, r} }

type apiCalls struct {
	http.RoundTripper
	reach *Reach
}

// RoundTrip makes a call and records its result.
func (c *apiCalls) RoundTrip(q *http.Request) (*http.Response, error) {
	response, err := c.RoundTripper.RoundTrip(q)
	switch {
	case err != nil && errors.Is(q.Context().Err(), context.Canceled): // the caller cancelled
	case err != nil:
		c.reach.record(time.Now(), err.Error())
	default:
		c.reach.recordStatus(time.Now(), resourceOf(q.URL.Path), response)
	}
	return response, err
}

// recordStatus records the status of an answer. A server that rejects the credentials rejects them
// in every call, and counts as unreachable.
func (r *Reach) recordStatus(now time.Time, resource string, answer *http.Response) {
	switch code := answer.StatusCode; {
	case code == http.StatusUnauthorized:
		r.record(now, answer.Status)
	case code >= http.StatusInternalServerError:
		r.recordFailure(now, resource, answer.Status)
	default:
		r.record(now, "")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch answer.StatusCode {
	case http.StatusOK, http.StatusCreated:
		delete(r.refused, resource)
	case http.StatusNotFound, http.StatusConflict, http.StatusGone: // usual answers
	default:
		if r.refused == nil {
			r.refused = map[string]string{}
		}
		r.refused[resource] = answer.Status
	}
}

// Failing returns the resources for which the last call failed; nil if there are none.
func (r *Reach) Failing() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []string
	for _, resource := range slices.Sorted(maps.Keys(r.refused)) {
		all = append(all, resource+": "+r.refused[resource])
	}
	if len(all) == 0 {
		return nil
	}
	return errors.New(strings.Join(all, ", "))
}

// record records a call. err is empty if the server answered.
func (r *Reach) record(now time.Time, err string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err, r.failing = err, ""
	switch {
	case err == "":
		r.answered, r.since = true, time.Time{}
	case r.since.IsZero():
		r.since = now
	}
}

// recordFailure records that the server replied that it cannot serve a resource.
func (r *Reach) recordFailure(now time.Time, resource, status string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !r.since.IsZero(): // it is unreachable already
		r.err = status
	case r.failing == "":
		r.failing, r.failingSince = resource, now
	case r.failing != resource: // the second one
		r.since, r.err = r.failingSince, status
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

// Reconnect closes all connections to the API server, so that client-go opens new ones, on which
// watches continue. Without it, connections from an address that the host has lost end only after
// lostTimeout.
func (r *Reach) Reconnect() {
	if r.connections != nil {
		r.connections.CloseAll()
	}
}

// Answers reports whether the API server answers.
func (r *Reach) Answers() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.answered && r.since.IsZero()
}

// Report returns the state for a report of the process.
func (r *Reach) Report() report.API {
	r.mu.Lock()
	defer r.mu.Unlock()
	return report.API{Unreachable: !r.since.IsZero(), Since: r.since, Error: r.err}
}
