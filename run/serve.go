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

	"hairpin/datapath"
)

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

// asJSON asks for a State that a program reads. Without it the answer is text for people.
const asJSON = "?output=json"

func answerState(w http.ResponseWriter, q *http.Request, s datapath.State) {
	if q.FormValue("output") != "json" {
		_, _ = io.WriteString(w, datapath.Print(s)) // client disconnected
		return
	}
	answerJSON(w, s)
}

func answerJSON(w http.ResponseWriter, v any) {
	text, err := datapath.Encode(v)
	if !refuse(w, err) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(text) // client disconnected
	}
}

// serve answers on the agent's socket until ctx ends.
func (a *agent) serve(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /report", func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(a.report(a.latest(q.Context()))) // client disconnected
	})
	mux.HandleFunc("GET /wanted", func(w http.ResponseWriter, q *http.Request) {
		answerState(w, q, a.latest(q.Context()).want)
	})
	mux.HandleFunc("GET /diff", func(w http.ResponseWriter, q *http.Request) {
		want := a.latest(q.Context()).want
		found, err := a.pass.Read(q.Context())
		if refuse(w, err) {
			return
		}
		for _, l := range datapath.Differences(want, found) {
			_, _ = fmt.Fprintln(w, l) // client disconnected
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
