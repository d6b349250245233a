package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"hairpin/hostnet"
	"hairpin/plan/gateway"
	"hairpin/plan/svcbridge"
	"hairpin/targets"

	"hairpin/apply/ofctl"
	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/host"
	"hairpin/egress/wire"
	"hairpin/ovsdb"
	"hairpin/retry"
)

// After a start of ovs-vswitchd its flows are gone, and, on the userspace datapath, so are the
// devices of its bridges with their addresses and routes. The agent keeps the database's
// flow-restore-wait set, so that the switch forwards nothing until everything is back: a packet
// that met half of it would be answered by the wrong one, with a reset.

const (
	// flowsBack is how long it may take until all flows are there again before the switch is let go
	// without them: the node's own network hangs on it, too.
	flowsBack = 2 * time.Second
	// clusterBack is how long the agent waits for the cluster, which it cannot know without the
	// API, before it brings the node's own network back: the way to the API may lead over the
	// bridge.
	clusterBack = 300 * time.Millisecond
	// speak is how long clients have to speak first, on connections that a userspace Open vSwitch
	// has forgotten: TCP repeats what was not acknowledged after 0.2, 0.6, 1.4, 3, 6.2 and 12.6 s,
	// so all that waited for less than 5 s or so are heard.
	speak = 10 * time.Second
	// answer is how long Open vSwitch may take for a small thing.
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

	released  string        // the ovs-vswitchd that forwards
	restart   *restart      // of ovs-vswitchd, until it is released
	restarts  uint64        // since the agent has set the node up
	hostOnly  bool          // a restarted one forwards for the node itself only: nothing more was known
	moved     bool          // a scan of the host, since the last release, brought something there
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

// patience is how long an ovn-controller that starts may need to compute the flows of br-int: a second
// or two for 10 000 Services, and several times that on a busy machine.
func (f *nodeFacts) patience() time.Duration {
	const least, per = 5 * time.Second, 5000 // a second more for so many frontends
	n := 0
	if f.snapshot != nil {
		n = len(f.snapshot.Frontends)
	}
	return least + time.Duration(n/per)*time.Second
}

// restart is a start of ovs-vswitchd that is in progress.
type restart struct {
	vswitchdID string    // which ovs-vswitchd; see ofctl.Target.Incarnation
	since      time.Time // when it was noticed
	scanned    bool      // the host was scanned since then, and has what it lost
	listening  bool      // it takes flows for the gateway bridge and those of ours
	connected  bool      // ovn-controller was made to connect to its bridge
	failed     error     // why it could not be released
}

// tooEarly reports whether nothing can be applied yet, and a try is not worthwhile.
func (r *restart) tooEarly() bool { return r != nil && !(r.listening && r.scanned) && !r.late() }

func (r *restart) late() bool { return time.Since(r.since) > flowsBack }

// observe takes a scan of the host.
func (v *vswitch) observe(s *hostnet.Sight) {
	v.moved = v.moved || s.Moved
	if v.restart != nil && s.Begin.After(v.restart.since) {
		v.restart.scanned = !s.Lost
	}
}

// watch notices that ovs-vswitchd was started anew. It returns when to call it again, 0 if not
// before the next change.
func (v *vswitch) watch(ctx context.Context, f *nodeFacts) time.Duration {
	life, err := v.targets.Bridge.Incarnation()
	switch {
	case err != nil: // it does not run
		return retry.Last
	case !v.ovs.Connected():
		return 0
	case life == v.released:
		return v.keepWaiting(ctx, f)
	case v.restart == nil || v.restart.vswitchdID != life:
		brief, cancel := context.WithTimeout(ctx, retry.First)
		defer cancel()
		restarted, err := v.targets.Bridge.Restarted(brief)
		if err != nil {
			return 10 * retry.First
		}
		if !restarted {
			v.released = life
			return 0
		}
		v.log.Info("Open vSwitch restarted")
		v.restart = &restart{vswitchdID: life, since: time.Now()}
		v.scanNow()
	}
	return v.waitForFlows(ctx, f)
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
	if at := nudgeAt(); n.connects < 2 || n.done == len(at) || v.restart != nil || !v.ovs.Connected() {
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
	life := v.released
	if life == "" || life == v.versionOf || v.restart != nil {
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

// keepWaiting sets again what makes the next start of ovs-vswitchd or of ovn-controller wait, if it
// was removed, as by scripts that restart Open vSwitch, or when the wait must be longer.
func (v *vswitch) keepWaiting(ctx context.Context, f *nodeFacts) time.Duration {
	patience := f.patience()
	if !f.synced || v.targets.Bridge.Keeps(patience) {
		return 0
	}
	v.aside.briefly(ctx, func(ctx context.Context) error { return v.targets.Bridge.Keep(ctx, patience) }, func(err error) {
		if err != nil {
			v.log.Warn("set flow-restore-wait for the next start of Open vSwitch", "error", err)
		}
	})
	return retry.Last // it may be too early for all of it
}

// waitForFlows notices that the new ovs-vswitchd takes flows, and makes ovn-controller connect at
// once. It returns when to call it again.
func (v *vswitch) waitForFlows(ctx context.Context, f *nodeFacts) time.Duration {
	r, bridges := v.restart, v.targets.Bridge
	if !r.listening {
		r.listening = bridges.Ready(ctx) == nil
	}
	if !r.connected && f.supported {
		// Before ovn-controller has made its bridge it need not connect again.
		made := v.hasBridge(claims.IntegrationBridge)
		r.connected = !made
		if made && bridges.Listening(ctx, claims.IntegrationBridge) == nil {
			v.aside.briefly(ctx, bridges.ReconnectController, func(err error) { r.connected = err == nil })
		}
	}
	switch {
	case r.listening && r.connected:
		return 0
	case r.late():
		return retry.Last
	}
	return retry.First
}

func (v *vswitch) hasBridge(name string) bool {
	return ovsdb.Find(v.ovs.View(), func(b *ovsdb.Bridge) bool { return b.Name == name }) != nil
}

// bootstrap brings the node's own network back, after a restart of ovs-vswitchd, while it cannot be
// known what else the node must have: missing says why. It returns when to call it again.
func (v *vswitch) bootstrap(ctx context.Context, f *nodeFacts, missing string) time.Duration {
	if v.restart == nil || f.gateway.Bridge == "" || !v.ovs.Connected() {
		return 0
	}
	wait := flowsBack
	switch {
	case !v.restart.scanned:
	case f.snapshot == nil && v.moved:
		wait = 0
	case f.snapshot == nil:
		wait = clusterBack
	}
	if wait -= time.Since(v.restart.since); wait > 0 {
		return wait
	}
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
	if v.restart == nil {
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
	r := v.restart
	left := flowsBack - time.Since(r.since)
	if left > 0 {
		if err == nil && !r.connected {
			err = errors.New("the bridge of ovn-controller is not back yet")
		}
		if err != nil {
			return err
		}
	}
	let, back, synced := v.newRelease(f), err, f.synced
	v.releasing.do(ctx, func(ctx context.Context) error {
		if left > 0 {
			wait, cancel := context.WithTimeout(ctx, left)
			defer cancel()
			back = v.targets.NB.Sync(wait)
		}
		return let.do(ctx)
	}, func(failed error) {
		r.failed = failed
		if failed == nil && v.ended(let) {
			v.forwards(r, back, synced)
		}
	})
	switch {
	case v.restart == nil:
		return err
	case r.failed != nil:
		return r.failed
	}
	return errors.New("Open vSwitch does not forward yet")
}

// forwards reports that the switch forwards again, and what is not restored.
func (v *vswitch) forwards(r *restart, err error, synced bool) {
	if synced { // else it is the start of everything
		v.restarts++
	}
	log := v.log.With("after", time.Since(r.since).Round(time.Millisecond))
	if err != nil {
		log.Warn("Open vSwitch forwards again, but not everything is restored", "error", err)
	} else {
		log.Info("Open vSwitch forwards again")
	}
}

// release lets the switch forward.
type release struct {
	restart  *restart
	bridge   *ofctl.Target
	patience time.Duration
	gateway  cluster.Gateway
	forgets  bool  // connections of its Services, with its process
	late     error // why neighbours, or connections, come back late
}

func (v *vswitch) newRelease(f *nodeFacts) *release {
	return &release{
		restart: v.restart, bridge: v.targets.Bridge, patience: f.patience(), gateway: f.gateway,
		forgets: f.gateway.Userspace && v.hasBridge(claims.ServiceBridge),
	}
}

func (r *release) do(ctx context.Context) error {
	var forgotten error
	if r.forgets { // a time of its own: the switch must be let go also without them
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
	if v.restart != r.restart {
		return false
	}
	v.released, v.restart, v.moved = r.restart.vswitchdID, nil, false
	v.announced = announcedMAC{}
	if r.late != nil {
		v.log.Warn("neighbours or connections come back late", "error", r.late)
	}
	return true
}
