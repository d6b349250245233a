package watch

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/cluster"
	"hairpin/cluster/store"
)

func namedNode(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func collector() *kube {
	return &kube{changes: make(chan change, backlog), out: newFeed(), store: store.New(cluster.DefaultConfig())}
}

// within returns the next Snapshot within a time limit, or nil.
func within(k *kube, limit time.Duration) *cluster.Snapshot {
	select {
	case s := <-k.out:
		return s
	case <-time.After(limit):
		return nil
	}
}

// TestCollect: a burst yields one Snapshot, a single change another, and a change without effect
// none.
func TestCollect(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	k := collector()
	one, two := &source{}, &source{}
	k.changes <- change{complete: one}
	for i := range backlog - 2 {
		k.changes <- change{set: []any{namedNode(fmt.Sprint("n", i))}}
	}
	go k.collect(ctx, 2)
	if s := within(k, 200*time.Millisecond); s != nil {
		t.Fatalf("one of two sources has told all, and there is a Snapshot of %d Nodes", len(s.Nodes))
	}
	k.changes <- change{complete: two}
	if s := within(k, 5*time.Second); s == nil || len(s.Nodes) != backlog-2 {
		t.Fatalf("the first Snapshot is %+v", s)
	}
	k.changes <- change{set: []any{namedNode("n0")}}
	if s := within(k, 200*time.Millisecond); s != nil {
		t.Error("nothing changed, and there is a Snapshot")
	}
	k.changes <- change{gone: []any{namedNode("n0")}}
	if s := within(k, 5*time.Second); s == nil || len(s.Nodes) != backlog-3 {
		t.Errorf("after a deletion the Snapshot is %+v", s)
	}
}

// TestCollectInABurst: during changes without a pause, there are far fewer Snapshots, and the last
// has all changes.
func TestCollectInABurst(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	k := collector()
	go k.collect(ctx, 1)
	k.changes <- change{complete: &source{}}
	const changes = 20_000
	go func() {
		for i := range changes {
			k.changes <- change{set: []any{namedNode(fmt.Sprint("n", i))}}
		}
	}()
	snapshots := 0
	for {
		s := within(k, 20*time.Second)
		if s == nil {
			t.Fatal("the last Snapshot is missing")
		}
		snapshots++
		if len(s.Nodes) == changes {
			break
		}
	}
	t.Logf("%d changes gave %d Snapshots", changes, snapshots)
	if snapshots > changes/10 {
		t.Errorf("%d changes gave %d Snapshots", changes, snapshots)
	}
}

// TestReplace: objects deleted during a gap are reported as gone, by name.
func TestReplace(t *testing.T) {
	k := collector()
	s := &source{ctx: t.Context(), changes: k.changes,
		named: func(m metav1.ObjectMeta) metav1.Object { return &corev1.Node{ObjectMeta: m} }}
	for _, list := range [][]any{{namedNode("a"), namedNode("b")}, {namedNode("b"), namedNode("c")}} {
		if err := s.Replace(list, ""); err != nil {
			t.Fatal(err)
		}
	}
	if c := <-k.changes; len(c.set) != 2 || len(c.gone) != 0 || c.complete != s {
		t.Errorf("first %+v", c)
	}
	if c := <-k.changes; len(c.set) != 2 || len(c.gone) != 1 || c.gone[0].(*corev1.Node).Name != "a" {
		t.Errorf("then %+v", c)
	}
}

// TestPace: one change yields a Snapshot at once, and so do the first few of a burst. Later ones
// have pauses between them, and include the last change.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		k := collector()
		go k.collect(ctx, 1)
		k.changes <- change{complete: &source{}}
		next := func() int {
			synctest.Wait()
			select {
			case s := <-k.out:
				return len(s.Nodes)
			default:
				return 0
			}
		}
		const burst = 1000 // in as many milliseconds
		var got []int
		begin := time.Now()
		for i := range burst {
			k.changes <- change{set: []any{namedNode(fmt.Sprint("n", i))}}
			if n := next(); n > 0 {
				got = append(got, n)
			}
			time.Sleep(time.Millisecond)
		}
		if most := burstFree + int(time.Since(begin)/burstPause) + 1; len(got) > most || len(got) < most-2 {
			t.Errorf("%d changes gave %d Snapshots, at most %d are wanted: %v", burst, len(got), most, got)
		}
		time.Sleep(burstPause)
		if n := next(); n != burst && got[len(got)-1] != burst {
			t.Errorf("the last Snapshot has %d Nodes", n)
		}
		time.Sleep(burstFree * burstPause)
		for i := range burstFree - 1 {
			k.changes <- change{set: []any{namedNode(fmt.Sprint("m", i))}}
			if n := next(); n != burst+i+1 {
				t.Errorf("after a rest, the Snapshot of change %d has %d Nodes", i, n)
			}
		}
	})
}
