package run

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"time"

	"hairpin/datapath"
)

// agentSocket is the name of the socket, in the run directory, on which the agent tells about itself.
const agentSocket = "agent.sock"

// Report is what the agent tells about itself.
type Report struct {
	Node     string       `json:"node"`
	Version  string       `json:"version"`
	Ready    bool         `json:"ready"`
	Reason   string       `json:"reason,omitempty"` // why not Ready
	Parts    []PartReport `json:"parts"`
	Problems []string     `json:"problems,omitempty"`
	Pods     int          `json:"pods"`
	Services int          `json:"services"` // frontends: one per address family and port
	Restarts uint64       `json:"restarts"` // of Open vSwitch, seen and repaired

	Neglected string       `json:"neglected,omitempty"` // why the data plane is not being kept
	NoRepair  bool         `json:"noRepair,omitempty"`  // what others change stays ([default] repair)
	Leaving   bool         `json:"leaving,omitempty"`   // the Node is about to go: /healthz says no
	API       *APIReport   `json:"api,omitempty"`       // none when the agent reads manifests
	Doors     []DoorReport `json:"doors,omitempty"`     // where the agent can be asked

	Egress []EgressReport `json:"egress,omitempty"` // every egress address of the cluster
}

// PartReport is one system of the node.
type PartReport struct {
	System  string    `json:"system"`
	InSync  bool      `json:"inSync"`
	Since   time.Time `json:"since"`
	Error   string    `json:"error,omitempty"`
	Reads   uint64    `json:"reads"`
	Applies uint64    `json:"applies"`
	Written uint64    `json:"written"`
	Drift   uint64    `json:"drift"`
	Errors  uint64    `json:"errors"`
}

// listen makes a unix socket of the agent, or of a controller. It replaces what a former one left in one step: of several that start at
// once, as controllers on one host may, none fails, and the last one is asked.
func listen(dir, name string) (net.Listener, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("run directory: %w", err)
	}
	path := filepath.Join(dir, name)
	own := path + rand.Text()[:8]
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: own})
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	l.SetUnlinkOnClose(false) // what has its name by then may be another one's
	if err := errors.Join(os.Chmod(own, 0o600), os.Rename(own, path)); err != nil {
		return nil, errors.Join(fmt.Errorf("socket: %w", err), l.Close(), ignore(os.Remove(own), os.ErrNotExist))
	}
	return l, nil
}

// serve answers on the agent's socket until ctx ends.
func (a *agent) serve(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /report", func(w http.ResponseWriter, q *http.Request) {
		var r Report
		if a.asked(w, q, func(context.Context, *agent) error { r = a.report(); return nil }) {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(r) // the asker went away
		}
	})
	mux.HandleFunc("GET /wanted", func(w http.ResponseWriter, q *http.Request) {
		var text string
		if a.asked(w, q, func(context.Context, *agent) error { text = datapath.Print(a.want); return nil }) {
			_, _ = io.WriteString(w, text)
		}
	})
	mux.HandleFunc("GET /diff", func(w http.ResponseWriter, q *http.Request) {
		var lines []string
		if a.asked(w, q, func(ctx context.Context, a *agent) error {
			found, err := a.pass.Read(ctx)
			lines = differences(a.want, found)
			return err
		}) {
			for _, l := range lines {
				_, _ = fmt.Fprintln(w, l)
			}
		}
	})
	a.serveExplain(mux)
	a.serveSend(mux)
	a.vitals.add(mux)
	mux.Handle("GET /metrics", a.meters.handler())
	srv := &http.Server{Handler: mux}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("agent socket: %w", err)
	}
	return nil
}

// asked runs do on the agent's goroutine; when that fails it tells the asker and returns false.
func (a *agent) asked(w http.ResponseWriter, q *http.Request, do func(context.Context, *agent) error) bool {
	var failed error
	err := a.inbox.ask(q.Context(), func(ctx context.Context, a *agent) { failed = do(ctx, a) })
	if err = errors.Join(err, failed); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return false
	}
	return true
}

func (a *agent) report() Report {
	r := Report{Node: a.node, Version: Version(), Reason: a.notReady(), Pods: len(a.cni.Pods()), Restarts: a.restarts, NoRepair: !a.config.Process.Repair}
	r.Ready = r.Reason == ""
	for _, s := range a.pass.Status() {
		p := PartReport{System: s.System, InSync: s.InSync, Since: s.Since, Reads: s.Reads, Applies: s.Applies,
			Written: s.Written, Drift: s.Drift, Errors: s.Errors}
		if s.Err != nil {
			p.Error = s.Err.Error()
		}
		r.Parts = append(r.Parts, p)
	}
	for _, p := range slices.Concat(a.problems, a.unheard, a.egress.conflicts(), a.uplinkProblem()) {
		r.Problems = append(r.Problems, p.Error())
	}
	a.reportOps(&r)
	r.Egress = a.egressReport()
	if a.snapshot != nil {
		r.Services = len(a.snapshot.Frontends)
	}
	return r
}
