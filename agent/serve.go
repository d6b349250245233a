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

func answerState(w http.ResponseWriter, q *http.Request, s datapath.State) {
	if q.FormValue("output") != "json" {
		_, _ = io.WriteString(w, datapath.Print(s)) // client disconnected
		return
	}
	answerJSON(w, s)
}

func answerJSON(w http.ResponseWriter, v any) {
	text, err := datapath.Encode(v)
	if !writeError(w, err) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(text) // client disconnected
	}
}

// serve serves HTTP on the agent's socket until ctx ends.
func (a *agent) serve(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /report", func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		r := a.report(a.latest(q.Context()), q.FormValue("brief") == "true")
		_ = json.NewEncoder(w).Encode(r) // client disconnected
	})
	mux.HandleFunc("GET /wanted", func(w http.ResponseWriter, q *http.Request) {
		if k := a.latest(q.Context()); !writeError(w, k.errNotPlanned()) {
			answerState(w, q, k.want)
		}
	})
	mux.HandleFunc("GET /diff", func(w http.ResponseWriter, q *http.Request) {
		f, err := datapath.ParseFilter(q.URL.Query()["system"], q.FormValue("object"))
		if writeError(w, err) {
			return
		}
		k := a.latest(q.Context())
		if writeError(w, k.errNotPlanned()) {
			return
		}
		found, err := a.pass.Read(q.Context())
		if writeError(w, err) {
			return
		}
		list := f.Differences(k.want, found)
		if q.FormValue("output") == "json" {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(datapath.Comparison{Node: a.node, Planned: f.Print(k.want) != "",
				Differences: append([]datapath.Difference{}, list...)}) // client disconnected
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
