package controller

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"hairpin/api/v1alpha1"
	"hairpin/cluster"
	"hairpin/config"
	"hairpin/kube"
	"hairpin/kubeapi"
	"hairpin/ops"
	"hairpin/plan/assign"
	"hairpin/retry"
)

// monitoring reports the health of a controller.
type monitoring struct {
	log             *slog.Logger
	api             *kube.Reach
	health          ops.Health
	listeners       *ops.Listeners
	meters          *ops.Meters
	leading         atomic.Bool
	nodes, problems atomic.Int64
	lastRound       atomic.Pointer[roundResult] // of the leader; nil on other controllers
}

// roundResult is what a round of the leader has found.
type roundResult struct {
	snapshot             *cluster.Snapshot
	assigned, unassigned int // egress addresses
	unreachable          int // nodes
	pools                []assign.PoolUse
	announced            map[string]v1alpha1.BGPAdvertisementStatus // status of BGPAdvertisements, by name
}

func newMonitoring(api *kube.Reach, log *slog.Logger) *monitoring {
	w := &monitoring{log: log, api: api, listeners: ops.NewListeners(log)}
	w.meters = ops.NewMeters(ops.OfController, w.measure)
	return w
}

// setLeading records whether this controller is the leader.
func (w *monitoring) setLeading(yes bool) {
	w.leading.Store(yes)
	if !yes {
		w.setCounts(0, 0)
		w.lastRound.Store(nil)
	}
}

// setCounts records the leader's numbers of nodes and problems.
func (w *monitoring) setCounts(nodes, problems int) {
	w.nodes.Store(int64(nodes))
	w.problems.Store(int64(problems))
}

// notReady returns why this controller could not work as the leader, or "" if it could.
func (w *monitoring) notReady() string {
	if w.api.Answers() {
		return ""
	}
	if r := w.api.Report(); r.Unreachable {
		return "the Kubernetes API does not answer since " + r.Since.UTC().Format(time.RFC3339) + ": " + r.Error
	}
	return "the Kubernetes API was not reached yet"
}

// addProbes registers the health endpoints with a mux. A controller that waits for the Lease is as
// healthy as the holder.
func (w *monitoring) addProbes(mux *http.ServeMux) {
	alive := func(rw http.ResponseWriter, _ *http.Request) {
		now := time.Now()
		w.health.Answer(rw, now, w.health.Dead(now), nil)
	}
	mux.HandleFunc("GET /livez", alive)
	mux.HandleFunc("GET /healthz", alive)
	mux.HandleFunc("GET /readyz", func(rw http.ResponseWriter, _ *http.Request) {
		now := time.Now()
		why := w.health.Dead(now)
		if why == "" {
			why = w.notReady()
		}
		w.health.Answer(rw, now, why, nil)
	})
}

// awaitHang returns an error when the main loop hangs, and nil when ctx ends. Another controller on
// the node may answer the kubelet's probes for this one.
func (w *monitoring) awaitHang(ctx context.Context) error {
	for {
		retry.Sleep(ctx, 5*time.Second)
		if ctx.Err() != nil {
			return nil
		}
		if why := w.health.Dead(time.Now()); why != "" {
			return errors.New(why)
		}
	}
}

// serve serves health and metrics until ctx ends.
func (w *monitoring) serve(ctx context.Context, c config.Config, socket net.Listener, client *kubeapi.Client) {
	health, all := http.NewServeMux(), http.NewServeMux()
	w.addProbes(health)
	w.addProbes(all)
	all.Handle("GET /metrics", w.meters.Handler())
	var wg sync.WaitGroup
	wg.Go(func() { w.listeners.Serve(ctx, "healthz", c.Process.ControllerHealthz, health) })
	wg.Go(func() { w.listeners.Serve(ctx, "metrics", c.Process.ControllerMetrics, w.meters.Handler()) })
	wg.Go(func() {
		w.listeners.ServeTLS(ctx, "secure metrics", c.Process.ControllerSecureMetrics,
			ops.NewAuthorized(w.meters.Handler(), kube.Reviewer{Client: client}),
			ops.ServerTLS(c.Process.MetricsCert, c.Process.MetricsKey))
	})
	wg.Go(func() {
		if err := ops.ServeHTTP(ctx, socket, all); err != nil {
			w.log.Error("controller socket", "error", err)
		}
	})
	wg.Wait()
}

// measure computes the metrics of a request.
func (w *monitoring) measure(put ops.Put) {
	put("hairpin_ready", ops.One(w.health.Dead(time.Now()) == "" && w.notReady() == ""))
	put("hairpin_api_reachable", ops.One(w.api.Answers()))
	put("hairpin_problems", float64(w.problems.Load()))
	put("hairpin_controller_leader", ops.One(w.leading.Load()))
	put("hairpin_controller_nodes", float64(w.nodes.Load()))
	w.listeners.Measure(put)
	if s := w.lastRound.Load(); s != nil {
		put("hairpin_controller_services_without_endpoints", float64(withoutEndpoints(s.snapshot)))
		put("hairpin_controller_egress_addresses", float64(s.assigned), "assigned")
		put("hairpin_controller_egress_addresses", float64(s.unassigned), "unassigned")
		put("hairpin_egress_unreachable_nodes", float64(s.unreachable))
		for _, u := range s.pools {
			put("hairpin_controller_load_balancer_addresses", float64(len(u.Addresses)), u.Pool.Owner.Name, "used")
			put("hairpin_controller_load_balancer_addresses", float64(u.Available), u.Pool.Owner.Name, "free")
		}
		for name, a := range s.announced {
			put("hairpin_controller_bgp_prefixes", float64(a.Prefixes), name)
			put("hairpin_controller_bgp_nodes", float64(a.Nodes), name)
			put("hairpin_controller_bgp_advertised",
				ops.One(meta.IsStatusConditionTrue(a.Conditions, v1alpha1.ConditionAdvertised)), name)
		}
	}
}

// withoutEndpoints counts the Services without a ready endpoint.
func withoutEndpoints(s *cluster.Snapshot) (count int) {
	ready := map[cluster.Owner]bool{}
	for _, f := range s.Frontends {
		ready[f.Owner] = ready[f.Owner] || slices.ContainsFunc(f.Backends,
			func(b cluster.Backend) bool { return b.Ready })
	}
	for _, has := range ready {
		if !has {
			count++
		}
	}
	return count
}
