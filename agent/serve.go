package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"

	"hairpin/datapath"
)

// writeState answers a request with a State, as JSON or text.
func writeState(w http.ResponseWriter, q *http.Request, s datapath.State) {
	if q.FormValue("output") != "json" {
		_, _ = io.WriteString(w, datapath.Print(s)) // client disconnected
		return
	}
	text, err := datapath.Encode(s)
	writeEncoded(w, text, err)
}

func writeJSON(w http.ResponseWriter, v any) {
	text, err := json.Marshal(v)
	writeEncoded(w, append(text, '\n'), err)
}

// writeEncoded answers a request with JSON, or with the error of its encoding.
func writeEncoded(w http.ResponseWriter, text []byte, err error) {
	if !writeError(w, err) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(text) // client disconnected
	}
}

// writeError answers a request with err, and reports whether err is not nil.
func writeError(w http.ResponseWriter, err error) bool {
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
	}
	return err != nil
}

// serve serves HTTP on the agent's socket until ctx ends.
func (a *agent) serve(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /report", func(w http.ResponseWriter, q *http.Request) {
		writeJSON(w, a.report(a.latest(q.Context()), q.FormValue("brief") == "true"))
	})
	mux.HandleFunc("GET /wanted", func(w http.ResponseWriter, q *http.Request) {
		if last := a.latest(q.Context()); !writeError(w, last.errNotPlanned()) {
			writeState(w, q, last.want)
		}
	})
	mux.HandleFunc("GET /diff", func(w http.ResponseWriter, q *http.Request) {
		f, err := datapath.ParseFilter(q.URL.Query()["system"], q.FormValue("object"))
		if writeError(w, err) {
			return
		}
		last := a.latest(q.Context())
		if writeError(w, last.errNotPlanned()) {
			return
		}
		found, err := a.pass.Read(q.Context())
		if writeError(w, err) {
			return
		}
		list := f.Differences(last.want, found)
		if q.FormValue("output") == "json" {
			selected := f.Print(last.want) != "" // by the filter
			writeJSON(w, datapath.Comparison{Node: a.node, Planned: selected,
				Differences: append([]datapath.Difference{}, list...)}) // [] in place of null
			return
		}
		for _, d := range list {
			_, _ = fmt.Fprintln(w, d.Line) // client disconnected
		}
	})
	a.serveExplain(mux)
	a.serveSend(mux)
	a.monitor.health.Register(mux)
	mux.Handle("GET /metrics", a.monitor.meters.Handler())
	srv := &http.Server{Handler: mux}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("agent socket: %w", err)
	}
	return nil
}
