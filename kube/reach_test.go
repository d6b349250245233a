package kube

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestAPIReach: a call that the server fails to serve does not make the API unreachable, while
// others are served. Failures of two different resources do, and so does one call without an
// answer.
func TestAPIReach(t *testing.T) {
	fails := map[string]bool{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if fails[q.URL.Path] {
			w.WriteHeader(http.StatusInternalServerError)
		}
	}))
	defer server.Close()
	r := &Reach{}
	client := http.Client{Transport: r.wrap(http.DefaultTransport)}
	const (
		node, other = "/api/v1/nodes/a", "/api/v1/nodes/b"
		slices      = "/apis/discovery.k8s.io/v1/endpointslices"
		events      = "/api/v1/namespaces/default/events"
	)
	if r.Answers() {
		t.Error("nothing was asked yet")
	}
	for _, step := range []struct {
		what, call string
		fails      bool
		answers    bool
	}{
		{"a first answer", slices, false, true},
		{"one call fails", node, true, true},
		{"and again", node, true, true},
		{"and another of that resource", other, true, true},
		{"what is served says that the server answers", slices, false, true},
		{"a failure after that is a first one", events, true, true},
		{"two resources fail", slices, true, false},
		{"one of them again", slices, true, false},
		{"back", events, false, true},
	} {
		fails[step.call] = step.fails
		answer, err := client.Get(server.URL + step.call)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if got := r.Answers(); got != step.answers {
			t.Errorf("%s: the API answers: %v; %+v", step.what, got, r.Report())
		}
	}
	server.Close()
	if answer, err := client.Get(server.URL + slices); err == nil {
		_ = answer.Body.Close()
		t.Fatal("a closed server answers")
	}
	if r.Answers() || !r.Report().Unreachable {
		t.Errorf("no answer: %+v", r.Report())
	}
}
