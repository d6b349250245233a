package ops

import (
	"encoding/json"
	"fmt"
	"net/http"
	"sync"
	"time"
)

const (
	// longestRound is how long the main loop of a process may work without a pause before it counts
	// as hung. The longest real one, ten thousand Services onto an empty node, takes less than a
	// quarter of it.
	longestRound = time.Minute
	// lapse is how long the data plane may be out of order before the node says that it is not
	// being kept: a restart of a daemon is no reason to move clients elsewhere.
	lapse = 10 * time.Second
)

// Health is how a process is, for those who watch it: its main loop writes, its endpoints read.
type Health struct {
	mu      sync.Mutex
	busy    time.Time // since when the main loop works; zero: it waits
	reason  string    // why it is not ready
	trouble string    // what is out of order
	since   time.Time // since when trouble is not empty
	kept    bool      // trouble was empty once
	updated time.Time // when trouble was empty last
	leaving bool      // the Node is about to go: no new traffic
}

// Work notes that the main loop begins; the result, that it ends.
func (v *Health) Work() (done func()) {
	set := func(t time.Time) {
		v.mu.Lock()
		v.busy = t
		v.mu.Unlock()
	}
	set(time.Now())
	return func() { set(time.Time{}) }
}

// Set notes what the main loop found.
func (v *Health) Set(now time.Time, reason, trouble string, leaving bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case trouble == "":
		v.kept, v.updated = true, now
	case v.trouble == "":
		v.since = now
	}
	v.reason, v.trouble, v.leaving = reason, trouble, leaving
}

// Dead says why the process should be started anew; empty when it lives. Nothing outside of it is a
// reason.
func (v *Health) Dead(now time.Time) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !v.busy.IsZero() && now.Sub(v.busy) > longestRound {
		return fmt.Sprintf("the main loop works since %s", now.Sub(v.busy).Round(time.Second))
	}
	return ""
}

// DataplaneError says why the data plane is not being kept; empty when it is.
func (v *Health) DataplaneError(now time.Time) string {
	if why := v.Dead(now); why != "" {
		return why
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case v.trouble == "" && v.kept, v.trouble != "" && v.kept && now.Sub(v.since) < lapse:
		return ""
	case v.trouble == "":
		return "not known yet"
	}
	return v.trouble
}

// NotReady says why the process cannot do its work; empty when it can.
func (v *Health) NotReady(now time.Time) string {
	v.mu.Lock()
	reason := v.reason
	v.mu.Unlock()
	if reason != "" {
		return reason
	}
	return v.DataplaneError(now)
}

func (v *Health) Eligible() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return !v.leaving
}

// healthBody is the answer of the health endpoints. The first three are those of kube-proxy's
// /healthz.
type healthBody struct {
	LastUpdated  time.Time `json:"lastUpdated"`
	CurrentTime  time.Time `json:"currentTime"`
	NodeEligible *bool     `json:"nodeEligible,omitempty"`
	Reason       string    `json:"reason,omitempty"` // of a 503
}

// Answer writes a 200 when why is empty, and a 503 when it is not.
func (v *Health) Answer(w http.ResponseWriter, now time.Time, why string, eligible *bool) {
	v.mu.Lock()
	body := healthBody{LastUpdated: v.updated, CurrentTime: now, NodeEligible: eligible, Reason: why}
	v.mu.Unlock()
	code := http.StatusServiceUnavailable
	if why == "" {
		// As kube-proxy's: what has nothing to do is up to date.
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

// Add puts the health endpoints into a mux.
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
