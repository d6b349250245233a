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

// After a start of ovs-vswitchd its flows are gone, and, on the userspace datapath, so are the
// devices of its bridges with their addresses and routes. The agent keeps the database's
// flow-restore-wait set, so that the switch forwards nothing until everything is back: a packet
// that met half of it would be answered by the wrong one, with a reset.

const (
	// flowsBack is how long it may take until all flows are there again before the switch is
	// released without them: the node's own network depends on it, too.
	flowsBack = 2 * time.Second
	// clusterBack is how long the agent waits for the cluster, which it cannot know without the
	// API, before it brings the node's own network back: the way to the API may lead over the
	// bridge.
	clusterBack = 300 * time.Millisecond
	// speak is how long clients have to send first, on connections that a userspace Open vSwitch
	// has forgotten. TCP retransmits after 0.2, 0.6, 1.4, 3, 6.2 and 12.6 s, so all that waited for
	// less than five seconds or so have time.
	speak = 10 * time.Second
	// answer is how long Open vSwitch may take for a small request.
	answer = time.Second
)

// vswitch is Open vSwitch as the agent manages it: restarts of ovs-vswitchd, its version, and ports
// whose devices it has lost.
type vswitch struct {
	log       *slog.Logger
	ovs       *ovsdb.Client
	targets   *targets.Set
	aside     worker
	releasing worker // the release of a restarted Open vSwitch, which waits for nothing else
	scanNow   func() // makes the looker scan the host at once

	state     switchState
	restarts  uint64        // since the agent has set the node up
	hostOnly  bool          // a restarted one forwards for the node itself only: nothing more was known
	finishing retry.Backoff // of a restart
	nudges    nudges
	announced announcedMAC
	remaking  retry.Backoff // of ports whose devices are gone

	version   string
	versionOf string // the ovs-vswitchd that was asked for its version
}

func newVSwitch(
	ovs *ovsdb.Client, t *targets.Set, aside, releasing worker, scanNow func(), log *slog.Logger,
) *vswitch {
	return &vswitch{
		log: log, ovs: ovs, targets: t, aside: aside, releasing: releasing, scanNow: scanNow,
		remaking: retry.Backoff{Min: time.Second, Max: time.Minute},
	}
}

// nodeFacts is what the handling of a restart depends on besides Open vSwitch.
type nodeFacts struct {
	snapshot  *cluster.Snapshot // nil: not known yet
	gateway   cluster.Gateway   // without a bridge: not known yet
	supported bool              // OVN, Open vSwitch and nft are new enough
	synced    bool              // everything was in order once
}

// patience is how long an ovn-controller that starts may need to compute the flows of br-int: a
// second or two for 10 000 Services, and several times that on a busy machine.
func (f *nodeFacts) patience() time.Duration {
	const least, per = 5 * time.Second, 5000 // a second more for so many frontends
	n := 0
	if f.snapshot != nil {
		n = len(f.snapshot.Frontends)
	}
	return least + time.Duration(n/per)*time.Second
}

// starting reports whether an ovs-vswitchd was started that does not forward yet.
func (v *vswitch) starting() bool { return v.state.starting != "" }

// observe takes a scan of the host.
func (v *vswitch) observe(s *hostnet.Sight) {
	v.state.moved = v.state.moved || s.Moved
	if v.starting() && s.Begin.After(v.state.since) {
		v.state.scanned = !s.Lost
	}
}

// watch notices that ovs-vswitchd was started anew, and brings its clients back. It returns when to
// call it again, 0 if not before the next change.
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
		case reconnects:
			v.aside.briefly(ctx, v.targets.Bridge.ReconnectController, func(err error) {
				if v.state.starting == state.starting {
					v.state.connected = err == nil
				}
			})
		}
	}
	return wait
}

// facts finds out what next depends on.
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

// nudges are the writes after a start of Open vSwitch's database, see ofctl.Target.Stir.
type nudges struct {
	connects int       // to the database
	since    time.Time // the last of them
	done     int       // of nudgeAt
}

// nudgeAt is when, after the database came back, ovn-controller, which comes back after one, two,
// four or eight seconds, has been connected for as long again.
func nudgeAt() []time.Duration {
	return []time.Duration{3 * time.Second, 9 * time.Second, 18 * time.Second}
}

// nudge makes ovn-controller come back soon after the next restart of Open vSwitch's database, too.
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
	v.aside.briefly(ctx, v.targets.Bridge.Stir, func(err error) {
		if err == nil {
			n.done++
		}
	})
	return retry.Last
}

// askVersion asks each new ovs-vswitchd for its version: it may have been replaced by another. It
// returns when to call it again.
func (v *vswitch) askVersion(ctx context.Context) time.Duration {
	life := v.state.released
	if life == "" || life == v.versionOf || v.starting() {
		return 0
	}
	var version string
	v.aside.briefly(ctx, func(ctx context.Context) (err error) {
		version, err = v.targets.Bridge.Version(ctx)
		return err
	}, func(err error) {
		if err == nil {
			v.version, v.versionOf = version, life
		}
	})
	if v.versionOf != life {
		return retry.Last
	}
	return 0
}

// keepNext sets again what makes the next start of ovs-vswitchd or of ovn-controller wait, if it
// was removed, as by scripts that restart Open vSwitch, or when the wait must be longer.
func (v *vswitch) keepNext(ctx context.Context, patience time.Duration) {
	v.aside.briefly(ctx, func(ctx context.Context) error { return v.targets.Bridge.Keep(ctx, patience) },
		func(err error) {
			if err != nil {
				v.log.Warn("set flow-restore-wait for the next start of Open vSwitch", "error", err)
			}
		})
}

func (v *vswitch) hasBridge(name string) bool {
	return ovsdb.Find(v.ovs.View(), func(b *ovsdb.Bridge) bool { return b.Name == name }) != nil
}

// bootstrap brings the node's own network back while it cannot be known what else the node must
// have: missing says why. It returns when to call it again.
func (v *vswitch) bootstrap(ctx context.Context, f *nodeFacts, missing string) time.Duration {
	want := gateway.Bootstrap(f.gateway)
	v.targets.WantedHost.Store(&want)
	let := v.newRelease(f)
	v.releasing.do(ctx, func(ctx context.Context) error {
		have, err := v.targets.Host.Read(ctx)
		if err == nil {
			err = v.targets.Host.Apply(ctx, host.Diff(want, have).Grow())
		}
		if err == nil {
			err = let.do(ctx)
		}
		return err
	}, func(err error) {
		if err != nil {
			v.log.Warn("restore the node's own network", "error", err)
		} else if v.ended(let) {
			v.hostOnly = true
			v.log.Info("Open vSwitch forwards, for the node itself only", "reason", missing)
		}
	})
	if !v.starting() {
		return 0
	}
	return retry.Last / 10
}

// finish releases the switch when everything is back, or when that takes too long. Err is the error
// of the pass. It returns why the node is not in order, and when to call it again.
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
	let, back, since := v.newRelease(f), err, v.state.since
	v.releasing.do(ctx, func(ctx context.Context) error {
		if left > 0 {
			wait, cancel := context.WithTimeout(ctx, left)
			defer cancel()
			back = v.targets.NB.Sync(wait)
		}
		return let.do(ctx)
	}, func(failed error) {
		if failed == nil && v.ended(let) {
			v.forwards(since, back, f.synced)
		} else if v.state.starting == let.life {
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

// forwards reports that the switch forwards again, and what is not restored.
func (v *vswitch) forwards(since time.Time, err error, synced bool) {
	if synced { // else it is the start of everything
		v.restarts++
	}
	log := v.log.With("after", time.Since(since).Round(time.Millisecond))
	if err != nil {
		log.Warn("Open vSwitch forwards again, but not everything is restored", "error", err)
	} else {
		log.Info("Open vSwitch forwards again")
	}
}

// release makes the switch forward.
type release struct {
	life     string // of ovs-vswitchd, see switchState
	bridge   *ofctl.Target
	patience time.Duration
	gateway  cluster.Gateway
	forgets  bool  // connections of its Services, with its process
	late     error // why neighbours, or connections, come back late
}

func (v *vswitch) newRelease(f *nodeFacts) *release {
	return &release{
		life: v.state.starting, bridge: v.targets.Bridge, patience: f.patience(), gateway: f.gateway,
		forgets: f.gateway.Userspace && v.hasBridge(claims.ServiceBridge),
	}
}

func (r *release) do(ctx context.Context) error {
	var forgotten error
	if r.forgets { // a time of its own: the switch must be released also without them
		brief, cancel := context.WithTimeout(ctx, answer)
		forgotten = r.bridge.AddPassing(brief, claims.ServiceBridge, svcbridge.Forgotten(), speak)
		cancel()
	}
	ctx, cancel := context.WithTimeout(ctx, answer)
	defer cancel()
	if err := r.bridge.Release(ctx, r.patience); err != nil {
		return fmt.Errorf("let Open vSwitch forward: %w", err)
	}
	r.late = errors.Join(forgotten, wire.AnnounceHost(r.gateway))
	return nil
}

// ended records that the switch was released, and reports false if it was started anew since.
func (v *vswitch) ended(r *release) bool {
	state, ok := v.state.ended(r.life)
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
