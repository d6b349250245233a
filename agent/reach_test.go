package agent

import (
	"errors"
	"testing"

	"hairpin/cluster"
	"hairpin/cni"
)

// TestReachNeedsTheObject: a pod is reachable when the flows are written that were planned with its
// object. What was written without the object does not count; later, neither a lost object nor a
// failed pass changes that.
func TestReachNeedsTheObject(t *testing.T) {
	var got map[string]error
	r := newPodReach(func(rows map[string]error) { got = rows })
	pass := func(unread, written bool) (reached bool, why error) {
		p := &cluster.Pod{Port: "hp1", PortRow: "row", Unread: unread}
		r.record([]*cluster.Pod{p}, func(string) bool { return written }, true)
		r.mu.Lock()
		r.inOVN["row"] = true
		r.mu.Unlock()
		r.publish()
		why, known := got["row"]
		return known && why == nil, why
	}
	for i, step := range []struct {
		unread, written, want bool
		why                   error
	}{
		{true, false, false, cni.ErrUnread},
		{true, true, false, cni.ErrUnread},
		{false, false, false, nil},
		{false, true, true, nil},
		{false, false, true, nil},
		{true, true, true, nil},
	} {
		if reached, why := pass(step.unread, step.written); reached != step.want || !errors.Is(why, step.why) {
			t.Errorf("step %d: %v, %v", i, reached, why)
		}
	}
	r.record(nil, nil, true) // the port is gone
	r.record([]*cluster.Pod{{PortRow: "other"}}, func(string) bool { return true }, true)
	if _, known := got["row"]; known || r.written["row"] {
		t.Error("a port that is gone is known")
	}
}
