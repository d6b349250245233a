package watch_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"hairpin/cluster"
	"hairpin/kubeapi"
)

// lateWatch delays what watches of policies and Namespaces return, and fails lists of a namespace's
// NetworkPolicies.
type lateWatch struct {
	http.RoundTripper
	late, fails atomic.Bool
	lists       atomic.Int32
}

// lateBody is the stream of such a watch.
type lateBody struct {
	io.ReadCloser
	of  *lateWatch
	ctx interface{ Err() error }
}

func (b *lateBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	for b.of.late.Load() && b.ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	return n, err
}

func (w *lateWatch) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.HasSuffix(r.URL.Path, "/namespaces/default/networkpolicies") {
		w.lists.Add(1)
		if w.fails.Load() {
			return nil, errors.New("the list fails")
		}
	}
	response, err := w.RoundTripper.RoundTrip(r)
	resource := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	late := []string{"networkpolicies", "clusternetworkpolicies", "namespaces"}
	if err == nil && slices.Contains(late, resource) && r.URL.Query().Get("watch") == "true" {
		response.Body = &lateBody{response.Body, w, r.Context()}
	}
	return response, err
}

const (
	policyText = `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: p},
  spec: {podSelector: {matchLabels: {app: %s}}}}`
	newPodText = `{apiVersion: v1, kind: Pod, metadata: {name: %s},
  spec: {nodeName: node-a, containers: [{name: c, image: none}]}}`
)

// testNewPods: no Snapshot has a new Pod of the node before it has each policy that is older, in
// the version that it had.
func testNewPods(t *testing.T, a *api) {
	admin := kube{a.client(t)}
	var g gate
	admin.change(t, step{set: fmt.Sprintf(newPodText, "before")})
	w, snapshots := lateFollow(t, a, &g)
	s := &started{t: t, from: snapshots.from}
	s.until("before", "")
	if n := w.lists.Load(); n > 0 {
		t.Errorf("%d lists of policies for Pods that were there at the start", n)
	}

	for _, c := range []struct {
		what   string
		change step
		want   string // what the policy selects; empty: there is none
	}{
		{"created", step{set: fmt.Sprintf(policyText, "one")}, "one"},
		{"changed", step{set: fmt.Sprintf(policyText, "two")}, "two"},
		{"deleted", step{delete: "NetworkPolicy/default/p"}, ""},
	} {
		w.late.Store(true)
		admin.change(t, c.change)
		admin.change(t, step{set: fmt.Sprintf(newPodText, c.what)})
		s.absent(c.what, 500*time.Millisecond)
		w.late.Store(false)
		s.until(c.what, c.want)
	}

	label := func(text string) {
		_, err := admin.client.CoreV1().Namespaces().Patch(t.Context(), "default", types.MergePatchType,
			[]byte(`{"metadata":{"labels":{"new":`+text+`}}}`), metav1.PatchOptions{})
		check(t, err)
	}
	w.late.Store(true)
	label(`"pod"`)
	admin.change(t, step{set: fmt.Sprintf(newPodText, "labelled")})
	s.absent("labelled", 500*time.Millisecond)
	w.late.Store(false)
	s.until("labelled", "")
	if got := cluster.NamespaceNamed(s.last.Namespaces, "default").Labels["new"]; got != "pod" {
		t.Errorf("the first Snapshot with the Pod has label %q of its Namespace", got)
	}
	label("null")

	w.fails.Store(true)
	admin.change(t, step{set: fmt.Sprintf(newPodText, "listed")})
	s.absent("listed", 500*time.Millisecond)
	admin.change(t, step{delete: "Pod/default/listed"})
	admin.change(t, step{set: fmt.Sprintf(newPodText, "listed")}) // another one
	w.fails.Store(false)
	s.until("listed", "")

	g.cut() // both watches start again with lists
	admin.change(t, step{set: fmt.Sprintf(policyText, "three")})
	admin.change(t, step{set: fmt.Sprintf(newPodText, "cut")})
	g.mend()
	s.until("cut", "three")
	admin.change(t, step{delete: "NetworkPolicy/default/p " + "Pod/default/" +
		strings.Join([]string{"before", "created",
			"changed", "deleted", "labelled", "listed", "cut"}, " Pod/default/")})
	snapshots.until(t, "")
}

// lateFollow follows the API of an agent on node-a whose watches can be late.
func lateFollow(t *testing.T, a *api, g *gate) (*lateWatch, *newest) {
	t.Helper()
	c, w := a.restConfig(t), &lateWatch{}
	g.guard(c)
	c.Wrap(func(rt http.RoundTripper) http.RoundTripper { w.RoundTripper = rt; return w })
	client, err := kubeapi.New(c)
	check(t, err)
	return w, follow(t, client, "node-a")
}

// started are the Pods of node-a without an address in Snapshots.
type started struct {
	t    *testing.T
	from <-chan *cluster.Snapshot
	last *cluster.Snapshot
}

func (s *started) has(name string) bool {
	if s.last != nil {
		for _, p := range s.last.Starting {
			if p.Owner.Name == name {
				return true
			}
		}
	}
	return false
}

// absent checks that no Snapshot has the Pod for a while.
func (s *started) absent(name string, limit time.Duration) {
	s.t.Helper()
	for end := time.After(limit); ; {
		select {
		case s.last = <-s.from:
			if s.has(name) {
				s.t.Fatalf("there is Pod %s, and policies %s", name, describe(s.last))
			}
		case <-end:
			return
		}
	}
}

// until waits for the first Snapshot with the Pod, which has the policy for pods with label app.
func (s *started) until(name, app string) {
	s.t.Helper()
	begin := time.Now()
	for limit := time.After(20 * time.Second); !s.has(name); {
		select {
		case s.last = <-s.from:
		case <-limit:
			s.t.Fatalf("there is no Pod %s", name)
		}
	}
	s.t.Logf("%s after %d ms", name, time.Since(begin).Milliseconds())
	got := ""
	for _, p := range s.last.Policies {
		for _, r := range p.Subject.Pods.Requirements {
			got += r.Values[0]
		}
	}
	if got != app {
		s.t.Errorf("the first Snapshot with Pod %s has policies for %q, not %q", name, got, app)
	}
}
