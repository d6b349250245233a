package agent

import (
	"context"
	"testing"

	"hairpin/apply/late"
)

// TestReleaseHasAWorker: the release of a restarted Open vSwitch is not behind other slow work, and the loop takes the results of both.
func TestReleaseHasAWorker(t *testing.T) {
	a := &agent{inbox: newInbox()}
	a.aside, a.releasing = late.NewTask[func()](a.inbox.notify), late.NewTask[func()](a.inbox.notify)
	done := map[string]bool{}
	slow := make(chan struct{})
	if a.beside(t.Context(), func(context.Context) func() { <-slow; return func() { done["slow"] = true } }) {
		t.Fatal("the slow work is done")
	}
	if a.beside(t.Context(), func(context.Context) func() { return func() {} }) {
		t.Fatal("other work is not behind the slow work")
	}
	if !besideBy(t.Context(), a.releasing, func(context.Context) func() { return func() { done["release"] = true } }) {
		t.Error("the release waits")
	}
	close(slow)
	a.aside.Finish(t.Context())
	a.landed()
	if !done["slow"] || !done["release"] {
		t.Errorf("done are %v", done)
	}
}
