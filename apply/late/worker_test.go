package late

import (
	"context"
	"testing"
)

// TestReleaseHasAWorker: the release of a restarted Open vSwitch does not wait for other slow work,
// and the loop collects the results of both.
func TestReleaseHasAWorker(t *testing.T) {
	wake := func() {}
	background, releasing := NewWorker(wake), NewWorker(wake)
	done := map[string]bool{}
	slow := make(chan struct{})
	hang := func(context.Context) error { <-slow; return nil }
	if background.Do(t.Context(), hang, func(error) { done["slow"] = true }) {
		t.Fatal("the slow work is done")
	}
	none := func(context.Context) error { return nil }
	if background.Do(t.Context(), none, func(error) {}) {
		t.Fatal("other work is not behind the slow work")
	}
	if !releasing.Do(t.Context(), none, func(error) { done["release"] = true }) {
		t.Error("the release waits")
	}
	close(slow)
	background.Finish(t.Context())
	background.Collect()
	releasing.Collect()
	if !done["slow"] || !done["release"] {
		t.Errorf("done are %v", done)
	}
}
