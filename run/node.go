package run

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"

	"hairpin/apply"
	"hairpin/apply/late"
	"hairpin/cluster"
	"hairpin/cni"
	"hairpin/config"
	"hairpin/datapath"
	"hairpin/ovsdb"
	"hairpin/plan"
	"hairpin/report"
	"hairpin/watch"
)

// slowTimer is how often everything is read back although nobody told of a change.
const slowTimer = 5 * time.Minute

// agent makes one node what it must be. Its fields belong to the goroutine that calls loop, but for the inbox and the board.
type agent struct {
	node   string
	config config.Config
	log    *slog.Logger
	inbox  *inbox
	board  *board

	ovs       *ovsdb.Client
	cni       *cni.Server
	targets   *targets
	pass      *apply.Pass
	planner   *plan.Planner
	local     local
	carried   carried // egress addresses
	egress    *egressView
	listener  *egressListener
	neighbors *egressNeighbors
	publisher *publisher
	notes     *reporter

	vitals      vitals
	watches     watches
	doors       *doors
	api         *apiReach
	checks      *balancerChecks
	condition   *condition
	meters      *meters
	programming *programming
	figures     atomic.Pointer[figures] // for meters
	counted     *cluster.Snapshot       // that figures has the backends of

	looker    *looker
	seen      sight    // the last look at the host
	found     findings // by the last look that could tell
	sourceErr error    // why there is no Snapshot yet
	snapshot  *cluster.Snapshot
	swept     bool      // pods' interfaces have been compared with Open vSwitch, or that hangs
	sweeps    time.Time // since when that is tried
	aside     *late.Task[func()]

	planned  inputs            // what want and problems were planned from
	all      *cluster.Snapshot // the Snapshot of planned, with what this node knows better
	want     datapath.State
	problems []cluster.Problem     // of the Snapshot and of this node's plan
	balanced map[uint16]localState // what checks should answer
	twice    []cluster.Problem     // Services that balanced had no port for
	unheard  []cluster.Problem     // and those whose port cannot be listened on, too

	passErr error
	failing time.Time // since when passErr is not nil
	warned  string    // the passErr that the log has
	pace    pace      // of finishing a restart
	synced  bool      // everything was in order once
	fresh   bool      // want is another than that of the last pass

	bare      bool        // Open vSwitch forwards for the node itself only: nobody knew more
	supported atomic.Bool // OVN and Open vSwitch are new enough
	life      string      // the ovs-vswitchd that was let go
	restart   *restart    // of ovs-vswitchd, when it was not let go yet
	restarts  uint64
}

// Node runs the agent of this node until ctx ends. What it made stays, so that a restart interrupts nothing. It waits
// for whatever is not there yet: Open vSwitch, OVN, the API server, the folder of manifests; and for the end of another
// agent of the same node, before it touches anything.
func Node(ctx context.Context, c config.Config, log *slog.Logger) error {
	node, err := config.NodeName(c)
	if err != nil {
		return err
	}
	log = log.With("node", node)
	var client kubernetes.Interface
	api := &apiReach{}
	if c.Process.Manifests == "" {
		if client, err = heardClient(c.Process.Kubeconfig, api); err != nil {
			return err
		}
		c.Cluster.APIServers = apiServers(client)
	}
	release, err := standBy(ctx, c, log)
	if err != nil {
		return unlessEnded(ctx, err)
	}
	defer release()
	ovs, err := openOVS(c, log)
	if err != nil {
		return err
	}
	defer ovs.Close()
	t, err := openTargets(ctx, c, log)
	if err != nil {
		return err
	}
	defer t.close()
	a := &agent{
		node: node, config: c, log: log, inbox: newInbox(), board: newBoard(), ovs: ovs, cni: cni.NewServer(ovs, node, log),
		targets: t, pass: apply.NewPass(t.pass), planner: plan.NewPlanner(), local: local{node: node},
		publisher: newPublisher(client, ovs, node, log), notes: newReporter(client, "hairpin-node", log),
		doors: &doors{log: log}, api: api, condition: newCondition(client, node, log), programming: newProgramming(time.Now()),
	}
	a.planner.Keep(t.numbers(ctx))
	a.aside = late.NewTask[func()](a.inbox.poke)
	a.looker = &looker{node: node, config: c, ovs: ovs, nft: t.nft, inbox: a.inbox, log: log, wake: make(chan struct{}, 1)}
	probe, err := newProber(c.Process.Egress, log, func() bool { return false })
	if err != nil {
		return err
	}
	a.egress = newEgressView(node, probe, api.answers, client == nil, log)
	a.listener = newEgressListener(a.inbox, log, func() { a.meters.count(claimsDropped) })
	a.neighbors = newEgressNeighbors(log)
	defer a.notes.stop()
	a.notes.reason = a.egress.reason
	a.observe()
	defer a.checks.stop()
	return a.run(ctx, client)
}

// unlessEnded is nil when ctx has ended: then nobody cares what else could not be done.
func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// openOVS mirrors what the agent itself looks at in the Open vSwitch database. It does not wait for it.
func openOVS(c config.Config, log *slog.Logger) (*ovsdb.Client, error) {
	ovs, err := ovsdb.Open(ovsdb.Config{
		Endpoint:   "unix:" + filepath.Join(c.Process.OVSRunDir, "db.sock"),
		Database:   "Open_vSwitch",
		Tables:     []ovsdb.Table{ovsdb.Mirror[ovsdb.OpenVSwitch](), ovsdb.Mirror[ovsdb.Bridge](), ovsdb.Mirror[ovsdb.Port](), ovsdb.Mirror[ovsdb.Interface]()},
		Logger:     log,
		MaxBackoff: lastPause / 5, // a socket of this machine: a look costs nothing
	})
	if err != nil {
		return nil, fmt.Errorf("Open vSwitch: %w", err)
	}
	return ovs, nil
}

// run starts all goroutines and ends when one fails or ctx ends, with all of them.
func (a *agent) run(ctx context.Context, client kubernetes.Interface) error {
	pods, err := listen(a.config.Process.RunDir, cni.Socket)
	if err != nil {
		return err
	}
	about, err := listen(a.config.Process.RunDir, report.AgentSocket)
	if err != nil {
		return err
	}
	outer := ctx
	g, ctx := errgroup.WithContext(ctx)
	start := func(f func()) { g.Go(func() error { f(); return nil }) }
	start(func() { a.follow(ctx, client) })
	start(func() { follow(ctx, a.inbox, a.cni.Changed(), func(m *mail, _ struct{}) { m.news = true }) })
	start(func() { follow(ctx, a.inbox, a.ovs.Changed(), func(*mail, struct{}) { a.looker.want() }) })
	start(func() { watchHost(ctx, a.looker.want, a.log) })
	start(func() { a.looker.run(ctx) })
	start(func() { watchSwitch(ctx, a.inbox, a.config.Process.OVSRunDir, a.log) })
	start(func() { a.tick(ctx) })
	start(func() { a.publisher.run(ctx) })
	a.startOps(ctx, start)
	a.startEgress(ctx, client, start)
	g.Go(func() error {
		return serveEgressHealth(ctx, a.config.Process.Egress, a.log, func() bool { return a.vitals.neglected(time.Now()) == "" })
	})
	g.Go(func() error { return a.checkVersions(ctx) })
	g.Go(func() error { return a.cni.Listen(ctx, pods) })
	g.Go(func() error { return a.serve(ctx, about) })
	g.Go(func() error { return a.loop(ctx) })
	return unlessEnded(outer, g.Wait())
}

// follow puts the newest Snapshot into the inbox. A source that cannot be opened is tried again.
func (a *agent) follow(ctx context.Context, client kubernetes.Interface) {
	for p := (pace{}); ctx.Err() == nil; {
		snapshots, err := a.source(ctx, client)
		if err == nil {
			follow(ctx, a.inbox, snapshots, func(m *mail, s *cluster.Snapshot) { m.snapshot, m.news = s, true })
			return
		}
		if p.pause == 0 {
			a.log.Warn("the cluster is not known yet", "error", err)
		}
		a.inbox.put(func(m *mail) { m.sourceErr = err })
		p.failed()
		select {
		case <-ctx.Done():
		case <-time.After(p.pause):
		}
	}
}

// source is where Snapshots come from.
func (a *agent) source(ctx context.Context, client kubernetes.Interface) (<-chan *cluster.Snapshot, error) {
	if client == nil {
		return watch.Files(ctx, a.config.Process.Manifests, a.config.Cluster)
	}
	return watch.Kube(withLog(ctx, a.log), client, a.node, a.config.Cluster)
}

func (a *agent) tick(ctx context.Context) {
	t := time.NewTicker(slowTimer)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			a.inbox.put(func(m *mail) { m.reread = true })
			a.looker.want()
		}
	}
}

// checkVersions lets the agent work when OVN and Open vSwitch are new enough, and ends it when they are not.
func (a *agent) checkVersions(ctx context.Context) error {
	if err := a.targets.checkVersions(ctx); err != nil {
		return err
	}
	a.supported.Store(true)
	a.inbox.poke()
	return nil
}
