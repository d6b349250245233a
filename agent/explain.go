package agent

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"hairpin/config"
	"hairpin/datapath"
)

// serveExplain serves the requests of `hairpin explain` and `hairpin collect`.
func (a *agent) serveExplain(mux *http.ServeMux) {
	mux.HandleFunc("GET /snapshot", func(w http.ResponseWriter, q *http.Request) {
		last := a.latest(q.Context())
		if s, err := last.fullestSnapshot(); !writeError(w, err) {
			writeJSON(w, s)
		}
	})
	mux.HandleFunc("GET /configuration", func(w http.ResponseWriter, _ *http.Request) {
		for _, o := range config.Options() {
			_, _ = fmt.Fprintf(w, "[%s] %s = %s\n", o.Section, o.Key, o.Get(a.config)) // client disconnected
		}
	})
	mux.HandleFunc("GET /counters", func(w http.ResponseWriter, q *http.Request) {
		ctx, cancel := context.WithTimeout(q.Context(), countersTimeout)
		defer cancel()
		text, err := a.targets.Bridge.Counters(ctx)
		if !writeError(w, err) {
			_, _ = fmt.Fprint(w, text)
		}
	})
	mux.HandleFunc("GET /found", func(w http.ResponseWriter, q *http.Request) {
		want := a.latest(q.Context()).want
		// Without connections: there may be a million, and a walk follows a first packet.
		found, err := a.pass.ReadPath(q.Context())
		if !writeError(w, err) {
			found.Conn = want.Conn
			writeState(w, q, datapath.Adopted(want, found))
		}
	})
}

// countersTimeout is how long ovs-vswitchd may take for its counters.
const countersTimeout = 5 * time.Second
