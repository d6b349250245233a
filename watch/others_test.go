package watch

import (
	"context"
	"runtime"
	"testing"
	"time"
	"weak"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"hairpin/cluster"
	"hairpin/kubeapi"
)

// TestEndedSourceIsFreed: a source of other nodes' Pods that is no longer needed is released, with
// the names of all Pods that it knew.
func TestEndedSourceIsFreed(t *testing.T) {
	client, err := kubeapi.New(&rest.Config{Host: "127.0.0.1:1"}) // nothing listens there
	if err != nil {
		t.Fatal(err)
	}
	k := collector()
	needed := false
	k.needsOtherPods = func(*cluster.Snapshot) bool { return needed }
	k.startOtherPods = func() *source {
		return k.resource(t.Context(), client.Core, "pods", otherPods("node-a"), named[corev1.Pod])
	}
	k.recheck = time.NewTimer(otherPodsLinger)
	defer k.recheck.Stop()
	now := time.Now()
	var all []weak.Pointer[source]
	for range 3 {
		needed = true
		k.updateOtherPods(t.Context(), nil, now)
		all = append(all, weak.Make(k.otherPods))
		needed = false
		k.updateOtherPods(t.Context(), nil, now)
		now = now.Add(otherPodsLinger)
		k.updateOtherPods(t.Context(), nil, now)
		for c := range k.changes {
			if c.ended != nil && c.ended == k.otherPods {
				k.otherPods = nil // as collect does
				break
			}
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		runtime.GC()
		left := 0
		for _, w := range all {
			if w.Value() != nil {
				left++
			}
		}
		switch {
		case left == 0:
			runtime.KeepAlive(k)
			return
		case ctx.Err() != nil:
			t.Fatalf("%d of %d sources that ended are still held", left, len(all))
		}
		time.Sleep(10 * time.Millisecond)
	}
}
