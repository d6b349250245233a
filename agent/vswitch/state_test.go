package vswitch

import (
	"errors"
	"slices"
	"testing"
	"time"

	"hairpin/retry"
)

var (
	noticed = time.Unix(1000, 0)
	young   = noticed.Add(100 * time.Millisecond)
	old     = noticed.Add(flowsLimit + time.Millisecond)
)

// TestSwitchStateNext: the result of each fact of ovs-vswitchd.
func TestSwitchStateNext(t *testing.T) {
	starting := switchState{released: "a", starting: "b", since: noticed}
	ready := starting
	ready.listening, ready.connected = true, true
	for _, c := range []struct {
		name    string
		state   switchState
		facts   startFacts
		now     time.Time
		want    switchState
		actions []switchAction
		wait    time.Duration
	}{
		{"it does not run", starting, startFacts{database: true}, young, starting, nil, retry.Last},
		{"the database is away", starting, startFacts{running: "b"}, young, starting, nil, 0},
		{"the first one has not restarted", switchState{},
			startFacts{running: "a", database: true, restarted: restartNo},
			young, switchState{released: "a"}, nil, 0},
		{"it forwards", switchState{released: "a"}, startFacts{running: "a", database: true, restoreWait: true},
			young, switchState{released: "a"}, nil, 0},
		{"it forwards, and the next would not wait", switchState{released: "a"},
			startFacts{running: "a", database: true},
			young, switchState{released: "a"}, []switchAction{setRestoreWait}, retry.Last},
		{"it does not answer yet", switchState{released: "a"}, startFacts{running: "b", database: true},
			young, switchState{released: "a"}, nil, 10 * retry.First},
		{"it has restarted", switchState{released: "a", moved: true},
			startFacts{running: "b", database: true, restarted: restartYes}, noticed,
			switchState{released: "a", starting: "b", since: noticed, moved: true}, []switchAction{scanHost},
			retry.First},
		{"it has restarted twice", ready, startFacts{running: "c", database: true, restarted: restartYes}, young,
			switchState{released: "a", starting: "c", since: young}, []switchAction{scanHost}, retry.First},
		{"it listens", starting, startFacts{running: "b", database: true, listening: true,
			controller: controllerNoBridge},
			young, ready, nil, 0},
		{"ovn-controller connects", starting,
			startFacts{running: "b", database: true, controller: controllerReconnects}, young,
			starting, []switchAction{reconnectOVN}, retry.First},
		{"it takes too long", starting, startFacts{running: "b", database: true}, old, starting, nil, retry.Last},
		{"it stopped listening", ready, startFacts{running: "b", database: true}, young, ready, nil, 0},
	} {
		got, actions, wait := c.state.next(&c.facts, c.now)
		if got != c.want || !slices.Equal(actions, c.actions) || wait != c.wait {
			t.Errorf("%s: %+v, actions %v, wait %s; want %+v, %v, %s", c.name, got, actions, wait, c.want, c.actions,
				c.wait)
		}
	}
}

// TestSwitchStateStage: the stage of a round, by what is known and the time since the start of
// ovs-vswitchd.
func TestSwitchStateStage(t *testing.T) {
	starting := switchState{starting: "b", since: noticed}
	scanned := switchState{starting: "b", since: noticed, scanned: true}
	moved := switchState{starting: "b", since: noticed, scanned: true, moved: true}
	back := switchState{starting: "b", since: noticed, scanned: true, listening: true}
	nothing := StageFacts{Blocked: true, Gateway: true, Database: true}
	noPlan := StageFacts{Blocked: true, Gateway: true, Database: true, Cluster: true}
	all := StageFacts{Gateway: true, Database: true, Cluster: true}
	for _, c := range []struct {
		name  string
		state switchState
		facts StageFacts
		age   time.Duration
		want  Stage
		wait  time.Duration
	}{
		{"no restart, nothing known", switchState{released: "a"}, nothing, time.Hour, Hold, 0},
		{"no restart", switchState{released: "a"}, all, time.Hour, RunPass, 0},
		{"no gateway bridge", moved, StageFacts{Blocked: true, Database: true}, time.Hour, Hold, 0},
		{"no database", moved, StageFacts{Blocked: true, Gateway: true}, time.Hour, Hold, 0},
		{"host not scanned", starting, nothing, 0, Hold, flowsLimit},
		{"host not scanned for too long", starting, nothing, flowsLimit, Bootstrap, 0},
		{"cluster not known", scanned, nothing, 0, Hold, clusterLimit},
		{"cluster not known for too long", scanned, nothing, clusterLimit, Bootstrap, 0},
		{"cluster not known, host's network was away", moved, nothing, 0, Bootstrap, 0},
		{"node cannot be planned", moved, noPlan, clusterLimit, Hold, flowsLimit - clusterLimit},
		{"node cannot be planned for too long", moved, noPlan, flowsLimit, Bootstrap, 0},
		{"switch does not listen", scanned, all, time.Second, Hold, 0},
		{"switch does not listen for too long", scanned, all, flowsLimit + 1, RunPass, 0},
		{"everything back", back, all, 0, RunPass, 0},
	} {
		if got, wait := c.state.stage(&c.facts, noticed.Add(c.age)); got != c.want || wait != c.wait {
			t.Errorf("%s: stage %d, wait %s; want %d, %s", c.name, got, wait, c.want, c.wait)
		}
	}
}

// TestSwitchStateRelease: the switch is released when all is restored, or that takes too long.
func TestSwitchStateRelease(t *testing.T) {
	s := switchState{released: "a", starting: "b", since: noticed, connected: true, moved: true}
	failed := errors.New("the pass failed")
	if left, why := s.afterPass(nil, young); left != flowsLimit-100*time.Millisecond || why != nil {
		t.Errorf("after a pass: %s, %v", left, why)
	}
	if _, why := s.afterPass(failed, young); why != failed {
		t.Errorf("after a pass that failed: %v", why)
	}
	if left, why := s.afterPass(failed, old); left != 0 || why != nil {
		t.Errorf("after a pass that failed, late: %s, %v", left, why)
	}
	s.connected = false
	if _, why := s.afterPass(nil, young); why == nil {
		t.Error("the switch is released before the bridge of ovn-controller is back")
	}
	if got, ok := s.afterRelease("a"); ok || got != s {
		t.Errorf("the release of another ovs-vswitchd: %+v", got)
	}
	if got, ok := s.afterRelease("b"); !ok || got != (switchState{released: "b"}) {
		t.Errorf("released: %+v", got)
	}
}
