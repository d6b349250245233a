package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"hairpin/config"
	"hairpin/datapath"
)

// serveExplain serves the requests of `hairpin explain` and `hairpin collect`.
func (a *agent) serveExplain(mux *http.ServeMux) {
	mux.HandleFunc("GET /snapshot", func(w http.ResponseWriter, q *http.Request) {
		k := a.latest(q.Context())
		s, err := k.newest()
		if writeError(w, err) {
			return
		}
		text, err := json.Marshal(s)
		if writeError(w, err) {
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(text) // client disconnected
	})
	mux.HandleFunc("GET /configuration", func(w http.ResponseWriter, _ *http.Request) {
		for _, o := range config.Options() {
			_, _ = fmt.Fprintf(w, "[%s] %s = %s\n", o.Section, o.Key, o.Get(a.config)) // client disconnected
		}
	})
	mux.HandleFunc("GET /counters", func(w http.ResponseWriter, q *http.Request) {
		ctx, cancel := context.WithTimeout(q.Context(), countersTime)
		defer cancel()
		text, err := a.targets.Bridge.Counters(ctx)
		if !writeError(w, err) {
			_, _ = fmt.Fprint(w, text)
		}
	})
	mux.HandleFunc("GET /found", func(w http.ResponseWriter, q *http.Request) {
		want := a.latest(q.Context()).want
		// Connections are left out: a walk is of a first packet, and there may be a million.
		found, err := a.pass.ReadPath(q.Context())
		if !writeError(w, err) {
			found.Conn = want.Conn
			answerState(w, q, datapath.Adopted(want, found))
		}
	})
}

// countersTime is how long ovs-vswitchd may take for its counters.
const countersTime = 5 * time.Second
