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

// monitoring serves the health and the metrics of a controller.
type monitoring struct {
	log       *slog.Logger
	api       *kube.Reach
	health    ops.Health
	listeners *ops.Listeners
	meters    *ops.Meters
	leading   atomic.Bool
	lastRound atomic.Pointer[roundResult] // nil before the first round of a leader, and on other controllers
}

// roundResult is what the metrics show of a round of the leader.
type roundResult struct {
	snapshot             *cluster.Snapshot
	problems             int
	assigned, unassigned int // egress addresses
	unreachable          int // nodes
	pools                []assign.PoolUse
	advertisements       map[string]v1alpha1.BGPAdvertisementStatus // by name
}

func newMonitoring(api *kube.Reach, log *slog.Logger) *monitoring {
	m := &monitoring{log: log, api: api, listeners: ops.NewListeners(log)}
	m.meters = ops.NewMeters(ops.OfController, m.measure)
	return m
}

// setLeading records whether this controller is the leader.
func (m *monitoring) setLeading(yes bool) {
	m.leading.Store(yes)
	if !yes {
		m.lastRound.Store(nil)
	}
}

// notReady returns why this controller could not work as the leader, or "" if it could.
func (m *monitoring) notReady() string {
	if m.api.Answers() {
		return ""
	}
	if r := m.api.Report(); r.Unreachable {
		return "the Kubernetes API does not answer since " + r.Since.UTC().Format(time.RFC3339) + ": " + r.Error
	}
	return "the Kubernetes API was not reached yet"
}

// addProbes registers the health endpoints with a mux. A controller that waits for the Lease is as
// healthy as the holder.
func (m *monitoring) addProbes(mux *http.ServeMux) {
	alive := func(w http.ResponseWriter, _ *http.Request) {
		now := time.Now()
		m.health.Answer(w, now, m.health.Dead(now), nil)
	}
	mux.HandleFunc("GET /livez", alive)
	mux.HandleFunc("GET /healthz", alive)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		now := time.Now()
		why := m.health.Dead(now)
		if why == "" {
			why = m.notReady()
		}
		m.health.Answer(w, now, why, nil)
	})
}

// awaitHang returns an error when the main loop hangs, and nil when ctx ends. Another controller on
// the node may answer the kubelet's probes for this one.
func (m *monitoring) awaitHang(ctx context.Context) error {
	for {
		retry.Sleep(ctx, 5*time.Second)
		if ctx.Err() != nil {
			return nil
		}
		if why := m.health.Dead(time.Now()); why != "" {
			return errors.New(why)
		}
	}
}

// serve serves health and metrics until ctx ends.
func (m *monitoring) serve(ctx context.Context, c config.Config, socket net.Listener, client *kubeapi.Client) {
	health, all := http.NewServeMux(), http.NewServeMux()
	m.addProbes(health)
	m.addProbes(all)
	all.Handle("GET /metrics", m.meters.Handler())
	var wg sync.WaitGroup
	wg.Go(func() { m.listeners.Serve(ctx, "healthz", c.Process.ControllerHealthz, health) })
	wg.Go(func() { m.listeners.Serve(ctx, "metrics", c.Process.ControllerMetrics, m.meters.Handler()) })
	wg.Go(func() {
		m.listeners.ServeTLS(ctx, "secure metrics", c.Process.ControllerSecureMetrics,
			ops.NewAuthorized(m.meters.Handler(), kube.Reviewer{Client: client}),
			ops.ServerTLS(c.Process.MetricsCert, c.Process.MetricsKey))
	})
	wg.Go(func() {
		if err := ops.ServeHTTP(ctx, socket, all); err != nil {
			m.log.Error("serve the controller's socket", "error", err)
		}
	})
	wg.Wait()
}

// measure computes the metrics of a request.
func (m *monitoring) measure(put ops.Put) {
	put("hairpin_ready", ops.One(m.health.Dead(time.Now()) == "" && m.notReady() == ""))
	put("hairpin_api_reachable", ops.One(m.api.Answers()))
	put("hairpin_controller_leader", ops.One(m.leading.Load()))
	m.listeners.Measure(put)
	r := m.lastRound.Load()
	if r == nil {
		put("hairpin_problems", 0)
		put("hairpin_controller_nodes", 0)
		return
	}
	put("hairpin_problems", float64(r.problems))
	put("hairpin_controller_nodes", float64(len(r.snapshot.Nodes)))
	put("hairpin_controller_services_without_endpoints", float64(withoutEndpoints(r.snapshot)))
	put("hairpin_controller_egress_addresses", float64(r.assigned), "assigned")
	put("hairpin_controller_egress_addresses", float64(r.unassigned), "unassigned")
	put("hairpin_egress_unreachable_nodes", float64(r.unreachable))
	for _, u := range r.pools {
		put("hairpin_controller_load_balancer_addresses", float64(len(u.Addresses)), u.Pool.Owner.Name, "used")
		put("hairpin_controller_load_balancer_addresses", float64(u.Available), u.Pool.Owner.Name, "free")
	}
	for name, a := range r.advertisements {
		put("hairpin_controller_bgp_prefixes", float64(a.Prefixes), name)
		put("hairpin_controller_bgp_nodes", float64(a.Nodes), name)
		put("hairpin_controller_bgp_advertised",
			ops.One(meta.IsStatusConditionTrue(a.Conditions, v1alpha1.ConditionAdvertised)), name)
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
