package ops

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"
)

const (
	// maxRound is how long the main loop of a process may run without a pause before it counts as
	// hung. The longest measured round, 10 000 Services onto an empty node, takes less than a
	// quarter.
	maxRound = time.Minute
	// degradedTime is how long the data plane may be degraded before the node reports it: clients
	// need not move to other nodes for the restart of a daemon.
	degradedTime = 10 * time.Second
)

// Health is the health of a process: its main loop writes it, its endpoints read it.
type Health struct {
	mu         sync.Mutex
	busy       time.Time // when the main loop began its round; zero: it waits
	reason     string    // why it is not ready
	degraded   string    // why the data plane is degraded
	since      time.Time // when degraded became non-empty
	wasHealthy bool      // degraded was empty at least once
	updated    time.Time // when degraded was last empty
	leaving    bool      // the Node is being deleted, or about to be: no new traffic
}

// Work records that the main loop begins a round. done records the end.
func (v *Health) Work() (done func()) {
	set := func(t time.Time) {
		v.mu.Lock()
		v.busy = t
		v.mu.Unlock()
	}
	set(time.Now())
	return func() { set(time.Time{}) }
}

// Set records the result of a round.
func (v *Health) Set(now time.Time, reason, degraded string, leaving bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case degraded == "":
		v.wasHealthy, v.updated = true, now
	case v.degraded == "":
		v.since = now
	}
	v.reason, v.degraded, v.leaving = reason, degraded, leaving
}

// Dead returns why the process should be restarted, or "" if it is alive. The state of other
// processes is no reason.
func (v *Health) Dead(now time.Time) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.busy.IsZero() && now.Sub(v.busy) > maxRound {
		return fmt.Sprintf("the main loop has not paused for %s", now.Sub(v.busy).Round(time.Second))
	}
	return ""
}

// DataplaneError returns why the data plane is degraded, or "" if it is not.
func (v *Health) DataplaneError(now time.Time) string {
	if why := v.Dead(now); why != "" {
		return why
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.degraded == "" && v.wasHealthy, v.degraded != "" && v.wasHealthy && now.Sub(v.since) < degradedTime:
		return ""
	case v.degraded == "":
		return "not known yet"
	}
	return v.degraded
}

// NotReady returns why the process cannot do its work, or "" if it can.
func (v *Health) NotReady(now time.Time) string {
	v.mu.Lock()
	reason := v.reason
	v.mu.Unlock()
	if reason != "" {
		return reason
	}
	return v.DataplaneError(now)
}

// Eligible reports whether load balancers may send new connections to the node.
func (v *Health) Eligible() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return !v.leaving
}

// healthBody is the body of the health endpoints' responses. The first three fields are those of
// kube-proxy's /healthz.
type healthBody struct {
	LastUpdated  time.Time `json:"lastUpdated"`
	CurrentTime  time.Time `json:"currentTime"`
	NodeEligible *bool     `json:"nodeEligible,omitempty"`
	Reason       string    `json:"reason,omitempty"` // of a 503
}

// Answer writes a 200 if why is empty, and a 503 otherwise.
func (v *Health) Answer(w http.ResponseWriter, now time.Time, why string, eligible *bool) {
	v.mu.Lock()
	body := healthBody{LastUpdated: v.updated, CurrentTime: now, NodeEligible: eligible, Reason: why}
	v.mu.Unlock()
	code := http.StatusServiceUnavailable
	if why == "" {
		// As in kube-proxy, a process without work is up to date.
		code, body.LastUpdated = http.StatusOK, now
	}
	writeJSON(w, code, body)
}

func writeJSON(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // client disconnected
}

// Add registers the health endpoints with a mux.
func (v *Health) Add(mux *http.ServeMux) {
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		now := time.Now()
		v.Answer(w, now, v.Dead(now), nil)
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		now := time.Now()
		v.Answer(w, now, v.NotReady(now), nil)
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		now, eligible := time.Now(), v.Eligible()
		why := v.DataplaneError(now)
		if why == "" && !eligible {
			why = "the Node is being deleted, or about to be"
		}
		v.Answer(w, now, why, &eligible)
	})
}
