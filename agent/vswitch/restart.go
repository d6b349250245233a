// Package vswitch manages Open vSwitch of a node for the agent's loop: it notices starts of
// ovs-vswitchd, restores what they lose, and lets the switch forward when everything is restored.
//
// A [Switch] belongs to one goroutine, which calls its methods once per round with the [Facts].
// They never wait for a program that hangs: calls that may hang run in workers. Most methods return
// when to call them again, 0 if not before the next change. The decisions are methods of
// switchState, a plain value: Stage says what a round may do.
package vswitch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"hairpin/apply/late"
	"hairpin/apply/ofctl"
	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/host"
	"hairpin/egress/wire"
	"hairpin/hostnet"
	"hairpin/ovsdb"
	"hairpin/plan/gateway"
	"hairpin/plan/svcbridge"
	"hairpin/retry"
	"hairpin/targets"
)

// A start of ovs-vswitchd loses its flows, and, on the userspace datapath, also the devices of its
// bridges with their addresses and routes. The agent keeps the database's flow-restore-wait set, so
// that the switch forwards nothing until everything is restored. With only some of the flows, a
// wrong host or pod would answer a packet with a reset.

const (
	// flowsLimit limits how long the switch waits for all flows. Then it is released without them,
	// because the node's own network depends on it, too.
	flowsLimit = 2 * time.Second
	// clusterLimit is how long the agent waits for the cluster's state, which needs the API, before
	// it restores the node's own network: the path to the API may lead over the bridge.
	clusterLimit = 300 * time.Millisecond
	// restartFlowsTime is how long flows of svcbridge.RestartFlows stay. In this time, a connection
	// that a userspace Open vSwitch has lost continues only after a packet of its client. TCP
	// retransmits after 0.2, 0.6, 1.4, 3, 6.2 and 12.6 s. So this is enough for packets that waited
	// for less than about five seconds.
	restartFlowsTime = 10 * time.Second
	// hostFlowsTime is how long flows of keepNetwork stay. They are added again before that.
	hostFlowsTime = 4 * time.Second
	// answerLimit limits how long Open vSwitch may take for a small request.
	answerLimit = time.Second
)

// Switch manages restarts of ovs-vswitchd, its version, and ports that lost their devices.
type Switch struct {
	log        *slog.Logger
	ovs        *ovsdb.Client
	targets    *targets.Set
	background late.Worker
	releasing  late.Worker // the release of a restarted Open vSwitch; it waits for no other call
	scanNow    func()      // starts a scan of the host at once

	state       switchState
	Restarts    uint64          // without the release at the node's first configuration
	hostOnly    bool            // the switch was released for the node itself only, without the cluster's state
	unready     retry.Backoff   // of rounds after which the switch is not released yet
	network     retry.LastError // of Bootstrap and KeepNetwork
	restoreWait retry.LastError // of setRestoreWait
	nudges      nudges
	announced   announcedMAC
	remaking    retry.Backoff // backoff of RemakePorts

	Version   string
	versionOf string // the ovs-vswitchd that reported Version
}

// New returns the Switch of a node. scanNow starts a scan of the host at once.
func New(
	ovs *ovsdb.Client, t *targets.Set, background, releasing late.Worker, scanNow func(), log *slog.Logger,
) *Switch {
	return &Switch{
		log: log, ovs: ovs, targets: t, background: background, releasing: releasing, scanNow: scanNow,
		remaking: retry.Backoff{Min: time.Second, Max: time.Minute},
	}
}

// Facts is the input for the handling of a restart besides Open vSwitch.
type Facts struct {
	Snapshot  *cluster.Snapshot // nil: not known yet
	Gateway   cluster.Gateway   // without a bridge: not known yet
	Supported bool              // OVN, Open vSwitch and nft are new enough
	Synced    bool              // a pass has succeeded once
}

// patience returns how long a starting ovn-controller may need to compute the flows of br-int: a
// second or two for 10 000 Services, and several times that on a busy machine.
func (f *Facts) patience() time.Duration {
	const least, per = 5 * time.Second, 5000 // one more second per so many frontends
	n := 0
	if f.Snapshot != nil {
		n = len(f.Snapshot.Frontends)
	}
	return least + time.Duration(n/per)*time.Second
}

// Stage returns the stage of a round, and when to call it again for Hold.
func (v *Switch) Stage(f *StageFacts, now time.Time) (Stage, time.Duration) {
	return v.state.stage(f, now)
}

// Collect runs the result of a release that has ended since the last round.
func (v *Switch) Collect() { v.releasing.Collect() }

// Drain waits for a release that is in progress.
func (v *Switch) Drain(ctx context.Context) { v.releasing.Finish(ctx) }

// Restored reports whether the ovs-vswitchd that runs forwards with the whole state of the node,
// from this agent or an earlier one.
func (v *Switch) Restored() bool { return v.state.released != "" && !v.Starting() && !v.hostOnly }

// Starting reports whether an ovs-vswitchd has started that does not forward yet.
func (v *Switch) Starting() bool { return v.state.starting != "" }

// Observe records a scan of the host.
func (v *Switch) Observe(s *hostnet.Scan) {
	v.state.moved = v.state.moved || s.Moved
	if v.Starting() && s.Begin.After(v.state.since) {
		v.state.scanned = !s.Lost
	}
}

// Watch detects a restart of ovs-vswitchd, and makes its clients reconnect. It returns when to call
// it again, 0 if not before the next change.
func (v *Switch) Watch(ctx context.Context, f *Facts) time.Duration {
	state, actions, wait := v.state.next(v.startFacts(ctx, f), time.Now())
	v.state = state
	for _, x := range actions {
		switch x {
		case scanHost:
			v.log.Info("Open vSwitch restarted")
			v.scanNow()
		case setRestoreWait:
			v.setRestoreWait(ctx, f.patience())
		case reconnectOVN:
			v.briefly(ctx, v.targets.Bridge.ReconnectController, func(err error) {
				if v.state.starting == state.starting {
					v.state.connected = err == nil
				}
			})
		}
	}
	return wait
}

// startFacts collects the input of next.
func (v *Switch) startFacts(ctx context.Context, f *Facts) *startFacts {
	bridges, s := v.targets.Bridge, v.state
	running, err := bridges.Instance()
	if err != nil {
		return &startFacts{}
	}
	x := &startFacts{running: running, database: v.ovs.Connected()}
	if !x.database {
		return x
	}
	if running == s.released {
		x.restoreWait = !f.Synced || bridges.Keeps(f.patience())
		return x
	}
	if running != s.starting {
		if x.restarted = v.askRestarted(ctx); x.restarted != restartYes {
			return x
		}
		s = switchState{} // next begins with a new state
	}
	if !s.listening {
		x.listening = bridges.Ready(ctx) == nil
	}
	switch {
	case s.connected || !f.Supported:
	case !v.hasBridge(claims.IntegrationBridge):
		x.controller = controllerNoBridge
	case bridges.Listening(ctx, claims.IntegrationBridge) == nil:
		x.controller = controllerReconnects
	}
	return x
}

func (v *Switch) askRestarted(ctx context.Context) restarted {
	ctx, cancel := context.WithTimeout(ctx, retry.First)
	defer cancel()
	switch anew, err := v.targets.Bridge.Restarted(ctx); {
	case err != nil:
		return restartUnknown
	case anew:
		return restartYes
	}
	return restartNo
}

// nudges counts the writes after a start of Open vSwitch's database, see ofctl.Target.Nudge.
type nudges struct {
	connects int       // number of connections to the database
	since    time.Time // when the last of them began
	done     int       // how many of nudgeAt are done
}

// nudgeAt returns when to write after the database came back. ovn-controller considers its
// connection stable if a write arrives when it has been connected for as long as its backoff: one,
// two, four or eight seconds.
func nudgeAt() []time.Duration {
	return []time.Duration{3 * time.Second, 9 * time.Second, 18 * time.Second}
}

// Nudge writes to Open vSwitch's database after its restart, so that ovn-controller reconnects
// within a second after the next one, too (ofctl.Target.Nudge). It returns when to call it again.
func (v *Switch) Nudge(ctx context.Context) time.Duration {
	n := &v.nudges
	if c := v.ovs.Stats().Connects; c != n.connects {
		*n = nudges{connects: c, since: time.Now()}
	}
	restarted := n.connects > 1 // the database
	if at := nudgeAt(); !restarted || n.done == len(at) || v.Starting() || !v.ovs.Connected() {
		return 0
	} else if wait := at[n.done] - time.Since(n.since); wait > 0 {
		return wait
	}
	v.briefly(ctx, v.targets.Bridge.Nudge, func(err error) {
		if err == nil {
			n.done++
		}
	})
	return retry.Last
}

// AskVersion requests the version of each new ovs-vswitchd, which may be another one. It returns
// when to call it again.
func (v *Switch) AskVersion(ctx context.Context) time.Duration {
	instance := v.state.released
	if instance == "" || instance == v.versionOf || v.Starting() {
		return 0
	}
	var version string
	v.briefly(ctx, func(ctx context.Context) (err error) {
		version, err = v.targets.Bridge.Version(ctx)
		return err
	}, func(err error) {
		if err == nil {
			v.Version, v.versionOf = version, instance
		}
	})
	if v.versionOf != instance {
		return retry.Last
	}
	return 0
}

// briefly makes a small request to Open vSwitch in the background, see late.Worker.
func (v *Switch) briefly(ctx context.Context, f func(context.Context) error, then func(error)) {
	v.background.Do(ctx, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, answerLimit)
		defer cancel()
		return f(ctx)
	}, then)
}

// setRestoreWait sets flow-restore-wait and ovn-controller's wait for the next start again. It is
// needed if they were removed, as by scripts that restart Open vSwitch, or if the wait must be
// longer.
func (v *Switch) setRestoreWait(ctx context.Context, patience time.Duration) {
	v.briefly(ctx, func(ctx context.Context) error { return v.targets.Bridge.Keep(ctx, patience) },
		func(err error) {
			v.restoreWait.Warn(v.log, "set flow-restore-wait for the next start of Open vSwitch", err)
		})
}

func (v *Switch) hasBridge(name string) bool {
	return ovsdb.BridgeNamed(v.ovs.View(), name) != nil
}

// KeepNetwork lets a gateway bridge without the flows of a plan forward the host's own packets, and
// nothing else: without the cluster's state the bridge gets no flows, and the path to the API may
// lead over it. With the flow NORMAL, which Open vSwitch adds when it starts, the host would lose
// packets to OVN's gateway router, which has the same MAC. It returns when to call it again.
func (v *Switch) KeepNetwork(ctx context.Context, g cluster.Gateway) time.Duration {
	v.background.Do(ctx, func(ctx context.Context) error { return v.keepNetwork(ctx, g) }, v.networkKept)
	return hostFlowsTime / 4
}

// networkKept logs the result of KeepNetwork or Bootstrap.
func (v *Switch) networkKept(err error) { v.network.Warn(v.log, "keep the node's own network", err) }

func (v *Switch) keepNetwork(ctx context.Context, g cluster.Gateway) error {
	if g.Uplink == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	planned, err := v.targets.Bridge.HasPipeline(ctx, g.Bridge)
	if err != nil || planned {
		return err
	}
	return v.targets.Bridge.AddTemporary(ctx, g.Bridge, []string{
		fmt.Sprintf("priority=2,in_port=LOCAL,actions=output:%q", g.Uplink),
		fmt.Sprintf("priority=2,in_port=%q,actions=LOCAL", g.Uplink),
		"priority=1,actions=drop",
	}, hostFlowsTime)
}

// Bootstrap restores the node's own network while the rest of its desired state cannot be known;
// missing is the reason. It returns when to call it again.
func (v *Switch) Bootstrap(ctx context.Context, f *Facts, missing string) time.Duration {
	want := gateway.Bootstrap(f.Gateway)
	v.targets.WantedHost.Store(&want)
	attempt := v.newRelease(f)
	var keepErr error
	v.releasing.Do(ctx, func(ctx context.Context) error {
		have, err := v.targets.Host.Read(ctx)
		if err == nil {
			err = v.targets.Host.Apply(ctx, host.Diff(want, have).Grow())
		}
		if err == nil {
			keepErr = v.keepNetwork(ctx, f.Gateway) // KeepNetwork tries again
			err = attempt.do(ctx)
		}
		return err
	}, func(err error) {
		v.networkKept(errors.Join(err, keepErr))
		if err == nil && v.recordRelease(attempt) {
			v.hostOnly = true
			v.log.Info("Open vSwitch forwards, for the node itself only", "reason", missing)
		}
	})
	if !v.Starting() {
		return 0
	}
	return retry.Last / 10
}

// Release releases the switch when everything is restored, or when that takes too long. passErr is
// the error of the pass. It returns when to call it again, and why the node is not in order.
func (v *Switch) Release(ctx context.Context, f *Facts, passErr error) (time.Duration, error) {
	err := v.tryRelease(ctx, f, passErr)
	if err != nil {
		v.unready.Failed(time.Now())
	} else {
		v.unready.Done()
	}
	return v.unready.Pause(), err
}

func (v *Switch) tryRelease(ctx context.Context, f *Facts, passErr error) error {
	left, why := v.state.afterPass(passErr, time.Now())
	if why != nil {
		return why
	}
	attempt, since := v.newRelease(f), v.state.since
	missing := passErr // why not everything is restored
	v.releasing.Do(ctx, func(ctx context.Context) error {
		if left > 0 { // the pass has succeeded
			wait, cancel := context.WithTimeout(ctx, left)
			defer cancel()
			missing = v.targets.NB.Sync(wait)
		}
		return attempt.do(ctx)
	}, func(failed error) {
		if failed == nil && v.recordRelease(attempt) {
			v.countRestart(since, missing, f.Synced)
		} else if v.state.starting == attempt.instance {
			v.state.failed = failed
		}
	})
	switch {
	case !v.Starting():
		return passErr
	case v.state.failed != nil:
		return v.state.failed
	}
	return errors.New("Open vSwitch does not forward yet")
}

// countRestart counts a restart, and logs whether everything was restored.
func (v *Switch) countRestart(since time.Time, err error, synced bool) {
	if synced { // otherwise it is the first configuration of the node
		v.Restarts++
	}
	log := v.log.With("after", time.Since(since).Round(time.Millisecond))
	if err != nil {
		log.Warn("Open vSwitch forwards again, but not everything is restored", "error", err)
	} else {
		log.Info("Open vSwitch forwards again")
	}
}

// release is one attempt to make the switch forward.
type release struct {
	instance string // the ovs-vswitchd to release, see switchState
	bridge   *ofctl.Target
	patience time.Duration
	gateway  cluster.Gateway
	lost     bool  // the process lost the connections of its Services
	late     error // why neighbors or connections recover late
}

func (v *Switch) newRelease(f *Facts) *release {
	return &release{
		instance: v.state.starting, bridge: v.targets.Bridge, patience: f.patience(), gateway: f.Gateway,
		lost: f.Gateway.Userspace && v.hasBridge(claims.ServiceBridge),
	}
}

func (r *release) do(ctx context.Context) error {
	var flowsErr error
	if r.lost { // a timeout of its own: if this fails, the switch must be released all the same
		brief, cancel := context.WithTimeout(ctx, answerLimit)
		flowsErr = r.bridge.AddTemporary(brief, claims.ServiceBridge, svcbridge.RestartFlows(), restartFlowsTime)
		cancel()
	}
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	if err := r.bridge.Release(ctx, r.patience); err != nil {
		return fmt.Errorf("let Open vSwitch forward: %w", err)
	}
	r.late = errors.Join(flowsErr, wire.AnnounceHost(r.gateway))
	return nil
}

// recordRelease records that the switch was released. It returns false if ovs-vswitchd restarted
// meanwhile.
func (v *Switch) recordRelease(r *release) bool {
	state, ok := v.state.afterRelease(r.instance)
	if !ok {
		return false
	}
	v.state = state
	v.announced = announcedMAC{}
	if r.late != nil {
		v.log.Warn("neighbors or connections recover late", "error", r.late)
	}
	return true
}
