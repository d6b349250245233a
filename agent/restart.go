package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

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
	// temporaryFlowsTime is how long flows of svcbridge.RestartFlows and of keepNetwork stay. In
	// this time, clients have to send first on connections that a userspace Open vSwitch has lost.
	// TCP retransmits after 0.2, 0.6, 1.4, 3, 6.2 and 12.6 s. So this is enough for packets that
	// waited for less than about five seconds.
	temporaryFlowsTime = 10 * time.Second
	// answerLimit limits how long Open vSwitch may take for a small request.
	answerLimit = time.Second
)

// vswitch manages Open vSwitch: restarts of ovs-vswitchd, its version, and ports that lost their
// devices.
type vswitch struct {
	log        *slog.Logger
	ovs        *ovsdb.Client
	targets    *targets.Set
	background worker
	releasing  worker // the release of a restarted Open vSwitch; it waits for no other call
	scanNow    func() // starts a scan of the host at once

	state     switchState
	restarts  uint64        // since the agent configured the node first
	hostOnly  bool          // the switch was released for the node itself only, without the cluster's state
	finishing retry.Backoff // backoff of the release after a restart
	nudges    nudges
	announced announcedMAC
	remaking  retry.Backoff // backoff of remakePorts

	version   string
	versionOf string // the ovs-vswitchd that reported version
}

func newVSwitch(
	ovs *ovsdb.Client, t *targets.Set, background, releasing worker, scanNow func(), log *slog.Logger,
) *vswitch {
	return &vswitch{
		log: log, ovs: ovs, targets: t, background: background, releasing: releasing, scanNow: scanNow,
		remaking: retry.Backoff{Min: time.Second, Max: time.Minute},
	}
}

// nodeFacts is the input for the handling of a restart besides Open vSwitch.
type nodeFacts struct {
	snapshot  *cluster.Snapshot // nil: not known yet
	gateway   cluster.Gateway   // without a bridge: not known yet
	supported bool              // OVN, Open vSwitch and nft are new enough
	synced    bool              // a pass has succeeded once
}

// patience returns how long a starting ovn-controller may need to compute the flows of br-int: a
// second or two for 10 000 Services, and several times that on a busy machine.
func (f *nodeFacts) patience() time.Duration {
	const least, per = 5 * time.Second, 5000 // one more second per so many frontends
	n := 0
	if f.snapshot != nil {
		n = len(f.snapshot.Frontends)
	}
	return least + time.Duration(n/per)*time.Second
}

// starting reports whether an ovs-vswitchd has started that does not forward yet.
func (v *vswitch) starting() bool { return v.state.starting != "" }

// observe records a scan of the host.
func (v *vswitch) observe(s *hostnet.Scan) {
	v.state.moved = v.state.moved || s.Moved
	if v.starting() && s.Begin.After(v.state.since) {
		v.state.scanned = !s.Lost
	}
}

// watch detects a restart of ovs-vswitchd, and makes its clients reconnect. It returns when to call
// it again, 0 if not before the next change.
func (v *vswitch) watch(ctx context.Context, f *nodeFacts) time.Duration {
	state, actions, wait := v.state.next(v.facts(ctx, f), time.Now())
	v.state = state
	for _, x := range actions {
		switch x {
		case scanHost:
			v.log.Info("Open vSwitch restarted")
			v.scanNow()
		case keepNext:
			v.keepNext(ctx, f.patience())
		case reconnectOVN:
			v.background.briefly(ctx, v.targets.Bridge.ReconnectController, func(err error) {
				if v.state.starting == state.starting {
					v.state.connected = err == nil
				}
			})
		}
	}
	return wait
}

// facts collects the input of next.
func (v *vswitch) facts(ctx context.Context, f *nodeFacts) *switchFacts {
	bridges, s := v.targets.Bridge, v.state
	running, err := bridges.Incarnation()
	if err != nil {
		return &switchFacts{}
	}
	x := &switchFacts{running: running, database: v.ovs.Connected()}
	if !x.database {
		return x
	}
	switch running {
	case s.released:
		x.kept = !f.synced || bridges.Keeps(f.patience())
		return x
	case s.starting:
	default:
		if x.restarted = v.askRestarted(ctx); x.restarted != restartYes {
			return x
		}
		s = switchState{}
	}
	if !s.listening {
		x.listening = bridges.Ready(ctx) == nil
	}
	switch {
	case s.connected || !f.supported:
	case !v.hasBridge(claims.IntegrationBridge):
		x.controller = controllerNoBridge
	case bridges.Listening(ctx, claims.IntegrationBridge) == nil:
		x.controller = controllerReconnects
	}
	return x
}

func (v *vswitch) askRestarted(ctx context.Context) restarted {
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

// nudgeAt returns when to write after the database came back. ovn-controller reconnects after
// one, two, four or eight seconds; at these times it has been connected for as long again.
func nudgeAt() []time.Duration {
	return []time.Duration{3 * time.Second, 9 * time.Second, 18 * time.Second}
}

// nudge makes ovn-controller also reconnect soon after the next restart of Open vSwitch's database.
// It returns when to call it again.
func (v *vswitch) nudge(ctx context.Context) time.Duration {
	n := &v.nudges
	if c := v.ovs.Stats().Connects; c != n.connects {
		*n = nudges{connects: c, since: time.Now()}
	}
	if at := nudgeAt(); n.connects < 2 || n.done == len(at) || v.starting() || !v.ovs.Connected() {
		return 0
	} else if wait := at[n.done] - time.Since(n.since); wait > 0 {
		return wait
	}
	v.background.briefly(ctx, v.targets.Bridge.Nudge, func(err error) {
		if err == nil {
			n.done++
		}
	})
	return retry.Last
}

// askVersion requests the version of each new ovs-vswitchd, which may be another one. It returns
// when to call it again.
func (v *vswitch) askVersion(ctx context.Context) time.Duration {
	instance := v.state.released
	if instance == "" || instance == v.versionOf || v.starting() {
		return 0
	}
	var version string
	v.background.briefly(ctx, func(ctx context.Context) (err error) {
		version, err = v.targets.Bridge.Version(ctx)
		return err
	}, func(err error) {
		if err == nil {
			v.version, v.versionOf = version, instance
		}
	})
	if v.versionOf != instance {
		return retry.Last
	}
	return 0
}

// keepNext sets flow-restore-wait and ovn-controller's wait for the next start again. It is needed
// if they were removed, as by scripts that restart Open vSwitch, or if the wait must be longer.
func (v *vswitch) keepNext(ctx context.Context, patience time.Duration) {
	v.background.briefly(ctx, func(ctx context.Context) error { return v.targets.Bridge.Keep(ctx, patience) },
		func(err error) {
			if err != nil {
				v.log.Warn("set flow-restore-wait for the next start of Open vSwitch", "error", err)
			}
		})
}

func (v *vswitch) hasBridge(name string) bool {
	return ovsdb.BridgeNamed(v.ovs.View(), name) != nil
}

// keepNetwork lets a gateway bridge without flows forward the host's own packets: without the
// cluster's state the bridge gets no flows, and the path to the API may lead over it. Packets of
// pods are still dropped. It returns when to call it again.
func (v *vswitch) keepNetwork(ctx context.Context, g cluster.Gateway) time.Duration {
	if g.Uplink == "" {
		return 0
	}
	v.background.briefly(ctx, func(ctx context.Context) error {
		empty, err := v.targets.Bridge.Empty(ctx, g.Bridge)
		if err != nil || !empty {
			return err
		}
		v.log.Warn("the gateway bridge has no flows: it forwards for the node itself only", "bridge", g.Bridge)
		return v.targets.Bridge.AddTemporary(ctx, g.Bridge, []string{
			fmt.Sprintf("priority=0,in_port=LOCAL,actions=output:%q", g.Uplink),
			fmt.Sprintf("priority=0,in_port=%q,actions=LOCAL", g.Uplink),
		}, temporaryFlowsTime)
	}, func(err error) {
		if err != nil {
			v.log.Warn("keep the node's own network", "error", err)
		}
	})
	return flowsLimit
}

// bootstrap restores the node's own network while the rest of its desired state cannot be known;
// missing is the reason. It returns when to call it again.
func (v *vswitch) bootstrap(ctx context.Context, f *nodeFacts, missing string) time.Duration {
	want := gateway.Bootstrap(f.gateway)
	v.targets.WantedHost.Store(&want)
	attempt := v.newRelease(f)
	v.releasing.do(ctx, func(ctx context.Context) error {
		have, err := v.targets.Host.Read(ctx)
		if err == nil {
			err = v.targets.Host.Apply(ctx, host.Diff(want, have).Grow())
		}
		if err == nil {
			err = attempt.do(ctx)
		}
		return err
	}, func(err error) {
		if err != nil {
			v.log.Warn("restore the node's own network", "error", err)
		} else if v.recordRelease(attempt) {
			v.hostOnly = true
			v.log.Info("Open vSwitch forwards, for the node itself only", "reason", missing)
		}
	})
	if !v.starting() {
		return 0
	}
	return retry.Last / 10
}

// finish releases the switch when everything is restored, or when that takes too long. Err is the
// error of the pass. It returns when to call it again, and why the node is not in order.
func (v *vswitch) finish(ctx context.Context, f *nodeFacts, err error) (time.Duration, error) {
	if err = v.tryFinish(ctx, f, err); err != nil {
		v.finishing.Failed(time.Now())
	} else {
		v.finishing.Done()
	}
	return v.finishing.Pause(), err
}

func (v *vswitch) tryFinish(ctx context.Context, f *nodeFacts, err error) error {
	left, why := v.state.afterPass(err, time.Now())
	if why != nil {
		return why
	}
	attempt, syncErr, since := v.newRelease(f), err, v.state.since
	v.releasing.do(ctx, func(ctx context.Context) error {
		if left > 0 {
			wait, cancel := context.WithTimeout(ctx, left)
			defer cancel()
			syncErr = v.targets.NB.Sync(wait)
		}
		return attempt.do(ctx)
	}, func(failed error) {
		if failed == nil && v.recordRelease(attempt) {
			v.countRestart(since, syncErr, f.synced)
		} else if v.state.starting == attempt.instance {
			v.state.failed = failed
		}
	})
	switch {
	case !v.starting():
		return err
	case v.state.failed != nil:
		return v.state.failed
	}
	return errors.New("Open vSwitch does not forward yet")
}

// countRestart counts a restart, and logs whether everything was restored.
func (v *vswitch) countRestart(since time.Time, err error, synced bool) {
	if synced { // otherwise it is the first configuration of the node
		v.restarts++
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

func (v *vswitch) newRelease(f *nodeFacts) *release {
	return &release{
		instance: v.state.starting, bridge: v.targets.Bridge, patience: f.patience(), gateway: f.gateway,
		lost: f.gateway.Userspace && v.hasBridge(claims.ServiceBridge),
	}
}

func (r *release) do(ctx context.Context) error {
	var flowsErr error
	if r.lost { // a timeout of its own: if this fails, the switch must be released all the same
		brief, cancel := context.WithTimeout(ctx, answerLimit)
		flowsErr = r.bridge.AddTemporary(brief, claims.ServiceBridge, svcbridge.RestartFlows(), temporaryFlowsTime)
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
func (v *vswitch) recordRelease(r *release) bool {
	state, ok := v.state.ended(r.instance)
	if !ok {
		return false
	}
	v.state = state
	v.announced = announcedMAC{}
	if r.late != nil {
		v.log.Warn("neighbours or connections come back late", "error", r.late)
	}
	return true
}
