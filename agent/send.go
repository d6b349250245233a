package agent

import (
	"context"
	"net/http"
	"time"

	"hairpin/agent/packets"
	"hairpin/apply/conntrack"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/report"
	"hairpin/walk"
)

// maxWatchTime limits a watch that no request ends.
const maxWatchTime = 5 * time.Minute

// serveSend serves the requests of `hairpin explain --send`: send a packet from the host or a pod,
// watch arriving packets, and read the kernel's connections.
func (a *agent) serveSend(mux *http.ServeMux) {
	answer := func(path string, do func(context.Context, *report.Send) (any, error)) {
		mux.HandleFunc(path, func(w http.ResponseWriter, q *http.Request) {
			r, err := report.ParseSend(q.URL.Query())
			if err == nil && r.Pod != (cluster.Owner{}) {
				r.Netns, err = a.pods.cni.Netns(r.Pod)
			}
			var out any
			if err == nil {
				out, err = do(q.Context(), r)
			}
			if !writeError(w, err) {
				writeJSON(w, out)
			}
		})
	}
	answer("POST /send", func(ctx context.Context, r *report.Send) (any, error) { return packets.Send(ctx, r) })
	answer("POST /watch", func(_ context.Context, r *report.Send) (any, error) {
		at := walk.Point{Node: a.node, Pod: r.Pod}.String()
		return a.watches.Start(r.Netns, at, r.Protocol, r.Port, maxWatchTime)
	})
	answer("POST /watched", func(_ context.Context, r *report.Send) (any, error) { return a.watches.Received(r.Id) })
	answer("POST /watch-end", func(_ context.Context, r *report.Send) (any, error) { return a.watches.End(r.Id) })
	mux.HandleFunc("GET /counts", func(w http.ResponseWriter, q *http.Request) {
		if q.FormValue("output") != "json" {
			http.Error(w, "the agent is "+report.Version()+", and answers in JSON only: the hairpin that asks is older",
				http.StatusNotAcceptable)
			return
		}
		ctx, cancel := context.WithTimeout(q.Context(), countersTimeout)
		defer cancel()
		counts, err := a.targets.Bridge.Counts(ctx)
		if !writeError(w, err) {
			text, err := datapath.Encode(counts)
			writeEncoded(w, text, err)
		}
	})
	answer("GET /connections", func(_ context.Context, r *report.Send) (any, error) {
		return conntrack.Entries(r.Protocol, r.Family, r.Port)
	})
}
