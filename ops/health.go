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

// Health is the health of a process. Its main loop records it, and its HTTP endpoints report it.
type Health struct {
	mu         sync.Mutex
	busy       time.Time // when the main loop began its round; zero: it waits
	reason     string    // why it is not ready
	degraded   string    // why the data plane is degraded
	degradedAt time.Time // when degraded became non-empty
	wasHealthy bool      // the data plane was healthy at least once
	updated    time.Time // when degraded was last empty
	leaving    bool      // the Node is being deleted, or about to be: no new traffic
}

// Work records that the main loop begins a round. done records the end.
func (h *Health) Work() (done func()) {
	set := func(t time.Time) {
		h.mu.Lock()
		h.busy = t
		h.mu.Unlock()
	}
	set(time.Now())
	return func() { set(time.Time{}) }
}

// Set records the result of a round.
func (h *Health) Set(now time.Time, reason, degraded string, leaving bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case degraded == "":
		h.wasHealthy, h.updated = true, now
	case h.degraded == "":
		h.degradedAt = now
	}
	h.reason, h.degraded, h.leaving = reason, degraded, leaving
}

// Dead returns why the process should be restarted, or "" if it is alive. The state of other
// processes is no reason.
func (h *Health) Dead(now time.Time) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.busy.IsZero() && now.Sub(h.busy) > maxRound {
		return fmt.Sprintf("the main loop has not paused for %s", now.Sub(h.busy).Round(time.Second))
	}
	return ""
}

// DataplaneError returns why the data plane is degraded, or "" if it is not.
func (h *Health) DataplaneError(now time.Time) string {
	if why := h.Dead(now); why != "" {
		return why
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.wasHealthy && (h.degraded == "" || now.Sub(h.degradedAt) < degradedTime):
		return ""
	case h.degraded == "": // before the first Set
		return "not known yet"
	}
	return h.degraded
}

// NotReady returns why the process cannot do its work, or "" if it can.
func (h *Health) NotReady(now time.Time) string {
	h.mu.Lock()
	reason := h.reason
	h.mu.Unlock()
	if reason != "" {
		return reason
	}
	return h.DataplaneError(now)
}

// Eligible reports whether load balancers may send new connections to the node.
func (h *Health) Eligible() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.leaving
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
func (h *Health) Answer(w http.ResponseWriter, now time.Time, why string, eligible *bool) {
	h.mu.Lock()
	body := healthBody{LastUpdated: h.updated, CurrentTime: now, NodeEligible: eligible, Reason: why}
	h.mu.Unlock()
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

// Register registers the health endpoints with a mux.
func (h *Health) Register(mux *http.ServeMux) {
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		now := time.Now()
		h.Answer(w, now, h.Dead(now), nil)
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		now := time.Now()
		h.Answer(w, now, h.NotReady(now), nil)
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		now, eligible := time.Now(), h.Eligible()
		why := h.DataplaneError(now)
		if why == "" && !eligible {
			why = "the Node is being deleted, or about to be"
		}
		h.Answer(w, now, why, &eligible)
	})
}
