package agent

import (
	"context"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"hairpin/cluster"
	"hairpin/cluster/annotation"
	"hairpin/kubeapi"
	"hairpin/lab"
)

// TestShutdown: a shutdown is published, and waits until the node has no address; one that was
// canceled, and the agent's next start, are published as well.
func TestShutdown(t *testing.T) {
	t.Parallel()
	server, _ := lab.StartAPI(t) // skips without root
	noError := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	config, err := server.RESTConfig()
	noError(err)
	client, err := kubeapi.New(config)
	noError(err)
	admin, err := kubernetes.NewForConfig(config)
	noError(err)
	_, err = admin.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}},
		metav1.CreateOptions{})
	noError(err)
	a := &agent{node: "node-a", log: slog.New(slog.DiscardHandler), egress: &egressHandler{node: "node-a"}}
	published := func() bool {
		n, err := admin.CoreV1().Nodes().Get(t.Context(), "node-a", metav1.GetOptions{})
		noError(err)
		_, is := n.Annotations[annotation.Shutdown]
		return is
	}
	set := func(down bool) time.Duration {
		begin := time.Now()
		a.onShutdown(t.Context(), client, down)
		if published() != down {
			t.Errorf("published %v, not %v", !down, down)
		}
		return time.Since(begin)
	}
	set(false)
	if took := set(true); took > handoverTimeout/2 {
		t.Errorf("a node without addresses waited for %v", took)
	}
	set(false)
	address := &cluster.Snapshot{EgressIPs: []*cluster.EgressIP{{Assigned: []cluster.Assignment{{Node: "node-a"}}}}}
	moving := &cluster.Snapshot{EgressIPs: []*cluster.EgressIP{{Moving: []cluster.Move{{From: "node-a",
		To: "node-b"}}}}}
	a.egress.record(time.Now(), address)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); a.onShutdown(ctx, client, true) }()
	for !published() {
		time.Sleep(10 * time.Millisecond)
	}
	a.egress.record(time.Now(), moving)
	select {
	case <-done:
		t.Error("the shutdown did not wait for the end of the move")
	case <-time.After(200 * time.Millisecond):
	}
	a.egress.record(time.Now(), &cluster.Snapshot{})
	<-done
	if cancel(); ctx.Err() == nil {
		t.Error("the context has not ended")
	}
}
