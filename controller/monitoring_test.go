package controller

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"hairpin/cluster"
	"hairpin/kube"
)

// TestControllerMetrics checks that a controller serves its metrics.
func TestControllerMetrics(t *testing.T) {
	m := newMonitoring(&kube.Reach{}, slog.New(slog.DiscardHandler))
	m.setLeading(true)
	m.lastRound.Store(&roundResult{snapshot: &cluster.Snapshot{Nodes: make([]*cluster.Node, 3)}, problems: 1})
	answer := httptest.NewRecorder()
	m.meters.Handler().ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	for _, want := range []string{"hairpin_controller_leader 1", "hairpin_controller_nodes 3", "hairpin_problems 1",
		"hairpin_api_reachable 0", `hairpin_build_info{`} {
		if !strings.Contains(answer.Body.String(), "\n"+want) {
			t.Errorf("no %s in\n%s", want, answer.Body)
		}
	}
}
