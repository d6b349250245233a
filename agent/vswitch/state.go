package vswitch

import (
	"errors"
	"time"

	"hairpin/retry"
)

// switchState is the state machine of a start of ovs-vswitchd. It is a plain value, and its methods
// only compute: a Switch collects the facts, and carries out the actions.
//
//	not known ── has not restarted ──────────────► forwards
//	not known, forwards, starting ── restarted ──► starting
//	starting ── released, with or without flows ─► forwards
type switchState struct {
	released string // the ovs-vswitchd that forwards, see ofctl.Target.Instance; empty: not known
	starting string // the ovs-vswitchd that has started and does not forward yet; empty: none

	since     time.Time // when the start was detected
	scanned   bool      // a later scan found on the host what the restart removed
	listening bool      // it accepts flows for the gateway bridge and Hairpin's bridges
	connected bool      // ovn-controller reconnected to its bridge, or need not
	failed    error     // why the release failed

	moved bool // since the last release, a scan moved the machine's network to the bridge
}

// startFacts are the input of next.
type startFacts struct {
	running     string     // the ovs-vswitchd that runs; empty: none
	database    bool       // there is a connection to its database
	restarted   restarted  // of an ovs-vswitchd that is neither released nor starting
	restoreWait bool       // the next start will wait for flows, or there are none yet
	listening   bool       // it accepts flows for the gateway bridge and Hairpin's bridges
	controller  controller // of the one that is starting
}

// restarted is whether an ovs-vswitchd was started anew.
type restarted int

const (
	restartUnknown restarted = iota
	restartNo
	restartYes
)

// controller is what ovn-controller needs after a start of ovs-vswitchd.
type controller int

const (
	controllerWaits      controller = iota // nothing yet: its bridge does not accept connections
	controllerNoBridge                     // nothing: it has not made its bridge yet
	controllerReconnects                   // to connect to its bridge again
)

// switchAction is something to do about ovs-vswitchd.
type switchAction int

const (
	scanHost       switchAction = iota // at once
	setRestoreWait                     // make the next start wait for flows
	reconnectOVN                       // make ovn-controller connect to its bridge
)

// next returns the state that follows from facts, the actions to carry out, and when to call it
// again, 0 if not before the next change.
func (s switchState) next(f *startFacts, now time.Time) (switchState, []switchAction, time.Duration) {
	var actions []switchAction
	switch {
	case f.running == "":
		return s, nil, retry.Last
	case !f.database:
		return s, nil, 0
	case f.running == s.released && f.restoreWait:
		return s, nil, 0
	case f.running == s.released:
		return s, []switchAction{setRestoreWait}, retry.Last // again: br-int may have no flows yet
	case f.running != s.starting && f.restarted == restartUnknown:
		return s, nil, 10 * retry.First
	case f.running != s.starting && f.restarted == restartNo:
		s.released = f.running
		return s, nil, 0
	case f.running != s.starting:
		s = switchState{released: s.released, starting: f.running, since: now, moved: s.moved}
		actions = append(actions, scanHost)
	}
	s.listening = s.listening || f.listening
	if !s.connected {
		s.connected = f.controller == controllerNoBridge
		if f.controller == controllerReconnects {
			actions = append(actions, reconnectOVN)
		}
	}
	switch {
	case s.listening && s.connected:
		return s, actions, 0
	case s.late(now):
		return s, actions, retry.Last
	}
	return s, actions, retry.First
}

// late reports whether the wait for flows has taken so long that the switch is released without
// them.
func (s *switchState) late(now time.Time) bool { return now.Sub(s.since) > flowsLimit }

// Stage is what a round does.
type Stage int

const (
	Hold      Stage = iota // nothing can be applied yet
	Bootstrap              // restore the node's own network, and release the switch with that
	RunPass                // apply the desired state
)

// StageFacts are the input of stage.
type StageFacts struct {
	Blocked  bool // nothing can be applied, because something is not known yet
	Gateway  bool // the gateway bridge is known
	Cluster  bool // the cluster is known
	Database bool // there is a connection to the database of Open vSwitch
}

// stage returns the stage of a round, and when to call it again for Hold.
func (s *switchState) stage(f *StageFacts, now time.Time) (Stage, time.Duration) {
	switch {
	case s.starting == "" && f.Blocked:
		return Hold, 0
	case s.starting == "":
		return RunPass, 0
	case f.Blocked && !(f.Gateway && f.Database):
		return Hold, 0
	case f.Blocked:
		if wait := s.bootstrapAfter(f.Cluster) - now.Sub(s.since); wait > 0 {
			return Hold, wait
		}
		return Bootstrap, 0
	case !(s.listening && s.scanned) && !s.late(now):
		return Hold, 0
	}
	return RunPass, 0
}

// bootstrapAfter returns how long after a start the agent waits for the rest of the node's state.
// The wait is short only for the cluster's state: the API may be reachable only over the node's own
// network.
func (s *switchState) bootstrapAfter(cluster bool) time.Duration {
	switch {
	case !s.scanned || cluster:
		return flowsLimit
	case s.moved:
		return 0
	}
	return clusterLimit
}

// afterPass returns how long the release may wait for OVN's flows after a pass that ended with err.
// If the switch must not be released yet, it returns why.
func (s *switchState) afterPass(err error, now time.Time) (left time.Duration, why error) {
	left = flowsLimit - now.Sub(s.since)
	switch {
	case left <= 0:
		return 0, nil
	case err == nil && !s.connected:
		return 0, errors.New("the bridge of ovn-controller is not back yet")
	}
	return left, err
}

// afterRelease returns the state after the release of an ovs-vswitchd, and false if another one
// started meanwhile.
func (s switchState) afterRelease(instance string) (switchState, bool) {
	if s.starting != instance {
		return s, false
	}
	return switchState{released: instance}, true
}
