// Package agent makes one node what it must be: the process of `hairpin node`, with its goroutines and their shutdown.
package agent

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"hairpin/apply"
	"hairpin/apply/late"
	"hairpin/apply/redirect"
	"hairpin/cluster"
	"hairpin/cni"
	"hairpin/config"
	"hairpin/datapath"
	"hairpin/egress/probe"
	"hairpin/egress/view"
	"hairpin/egress/wire"
	"hairpin/hostnet"
	"hairpin/kube"
	"hairpin/kubeapi"
	"hairpin/ops"
	"hairpin/ovsdb"
	"hairpin/plan"
	"hairpin/report"
	"hairpin/retry"
	"hairpin/targets"
	"hairpin/watch"
)

// slowTimer is how often everything is read back without a notification of a change.
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
	targets   *targets.Set
	pass      *apply.Pass
	planner   *plan.Planner
	local     hostnet.Local
	carried   wire.Announced // egress addresses
	prober    *probe.Prober
	egress    *view.View
	listener  *wire.Listener
	neighbors *wire.Neighbors
	publisher *hostnet.Publisher
	notes     *kube.Events

	health      ops.Health
	watches     watches
	listeners   *ops.Listeners
	api         *kube.Reach
	checks      *ops.ServiceChecks
	condition   *kube.Condition
	meters      *ops.Meters
	programming *programming
	figures     atomic.Pointer[figures] // for meters

	looker    *hostnet.Looker
	seen      hostnet.Sight // the last look at the host
	found     hostnet.Found // by the last look that could tell
	sourceErr error         // why there is no Snapshot yet
	snapshot  *cluster.Snapshot
	swept     bool      // pods' interfaces have been compared with Open vSwitch, or that hangs
	sweeps    time.Time // since when that is tried
	settled   bool      // OVN's flows are in the switch, or pods' ports need not wait for them
	settles   time.Time // since when they do
	aside     *late.Task[func()]
	releasing *late.Task[func()] // the release of a restarted Open vSwitch, which waits for nothing else

	planned          inputs            // what want and problems were planned from
	all              *cluster.Snapshot // the Snapshot of planned, with what this node knows better
	want             datapath.State
	problems         []cluster.Problem         // of the Snapshot and of this node's plan
	healthCheckState map[uint16]ops.LocalState // what checks should answer
	duplicatePorts   []cluster.Problem         // Services that healthCheckState has no port for
	listenErrors     []cluster.Problem         // and those whose port cannot be listened on, too

	noRedirect  error // why nft serves NodePorts although the configuration wants eBPF programs
	noConntrack error // why these programs do not know the node's own connections; nil if they do

	passErr  error
	failing  time.Time     // since when passErr is not nil
	warned   string        // the passErr that the log has
	pace     retry.Backoff // of finishing a restart
	remaking retry.Backoff // of ports whose devices are gone
	synced   bool          // everything was in order once
	fresh    bool          // want is another than that of the last pass

	hostOnly    bool        // Open vSwitch forwards for the node itself only: nothing more was known
	supported   atomic.Bool // OVN, Open vSwitch and nft are new enough
	vswitchdID  string      // the ovs-vswitchd that was let go
	restart     *restart    // of ovs-vswitchd, when it was not let go yet
	restarts    uint64
	stirring    stirring
	introducing introducing
	reach       *reach
	waits       bool // the last pass left out flows of pods whose ports are not there yet

	versionOf     string // the ovs-vswitchd that was asked for its version
	switchVersion string
}

// Run runs the agent of this node until ctx ends. What it made stays, so that a restart interrupts nothing. It waits
// for whatever is not there yet: Open vSwitch, OVN, the API server, the folder of manifests; and for the end of another
// agent of the same node, before it touches anything.
func Run(ctx context.Context, c config.Config, log *slog.Logger) error {
	node, err := config.NodeName(c)
	if err != nil {
		return err
	}
	log = log.With("node", node)
	var client *kubeapi.Client
	api := &kube.Reach{}
	if c.Process.Manifests == "" {
		if client, err = kube.Connect(c.Process.Kubeconfig, api); err != nil {
			return err
		}
		c.Cluster.APIServers = kube.Servers(client)
	}
	release, err := targets.StandBy(ctx, c, log)
	if err != nil {
		return unlessEnded(ctx, err)
	}
	defer release()
	ovs, err := targets.OpenOVS(c, log)
	if err != nil {
		return err
	}
	defer ovs.Close()
	t, err := targets.Open(c, log)
	if err != nil {
		return err
	}
	defer t.Close()
	pods := cni.NewServer(ovs, node, log)
	systems := t.Pass
	systems.NB = moving{t.NB, pods}
	a := &agent{
		node: node, config: c, log: log, inbox: newInbox(), board: &board{}, ovs: ovs, cni: pods,
		reach:   newReach(pods.Reached),
		targets: t, pass: apply.NewPass(systems), planner: plan.NewPlanner(), local: hostnet.NewLocal(node),
		publisher: hostnet.NewPublisher(annotator(client, node), ovs, log), notes: kube.NewEvents(client, "hairpin-node", log),
		listeners: ops.NewListeners(log), api: api, condition: kube.NewCondition(client, node, log), programming: newProgramming(time.Now()),
	}
	if c.Cluster.Gateway.NodePortPath == cluster.PathRedirect {
		if a.noRedirect = redirect.Supported(); a.noRedirect != nil {
			c.Cluster.Gateway.NodePortPath = cluster.PathNFT
			a.config = c
		} else {
			a.noConntrack = redirect.Conntrack()
		}
	}
	a.planner.Keep(t.ProxyPorts(ctx, &c))
	a.aside, a.releasing = late.NewTask[func()](a.inbox.notify), late.NewTask[func()](a.inbox.notify)
	a.looker = hostnet.NewLooker(node, c, ovs, t.NFT, a.inbox.found, log)
	a.looker.Links, a.looker.MayRecord = pods.CheckLinks, a.supported.Load
	a.looker.TakeOver(ctx)
	a.prober = probe.New(c.Process.Egress, log, func() bool { return false })
	a.egress = view.New(node, a.prober, api.Answers, client == nil, log)
	a.listener = wire.NewListener(a.claimed, log, a.dropClaim)
	a.neighbors = wire.NewNeighbors(log)
	defer a.notes.Stop()
	a.notes.Reason = egressReason
	a.observe()
	defer a.checks.Stop()
	return a.run(ctx, client)
}

// annotator sets annotations of a Node; nil without an API.
func annotator(client *kubeapi.Client, node string) func(context.Context, map[string]string) error {
	if client == nil {
		return nil
	}
	return func(ctx context.Context, all map[string]string) error {
		return kube.AnnotateNode(ctx, client, node, all)
	}
}

// unlessEnded is nil if ctx has ended: then other errors do not matter.
func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// run starts all goroutines and ends when one fails or ctx ends, with all of them.
func (a *agent) run(ctx context.Context, client *kubeapi.Client) error {
	pods, err := ops.ListenUnix(a.config.Process.RunDir, cni.Socket)
	if err != nil {
		return err
	}
	about, err := ops.ListenUnix(a.config.Process.RunDir, report.AgentSocket)
	if err != nil {
		return err
	}
	outer := ctx
	g, ctx := errgroup.WithContext(ctx)
	start := func(f func()) { g.Go(func() error { f(); return nil }) }
	start(func() { a.follow(ctx, client) })
	start(func() { follow(ctx, a.inbox, a.cni.Changed(), func(m *events, _ struct{}) { m.news = true }) })
	start(func() { follow(ctx, a.inbox, a.ovs.Changed(), func(*events, struct{}) { a.looker.Want() }) })
	start(func() { a.looker.Watch(ctx) })
	start(func() { a.looker.Confirm(ctx) })
	start(func() { a.looker.Run(ctx) })
	start(func() { watchSwitch(ctx, a.inbox.notify, a.config.Process.OVSRunDir, a.log) })
	start(func() { a.tick(ctx) })
	start(func() { a.publisher.Run(ctx) })
	start(func() { a.keepHostPorts(ctx) })
	start(func() { a.reach.run(ctx, a.targets.NB.Sync) })
	a.startOps(ctx, start)
	a.startEgress(ctx, client, start)
	start(func() {
		serves := func() bool { return a.health.DataplaneError(time.Now()) == "" }
		probe.Serve(ctx, a.config.Process.Egress, a.log, serves)
	})
	g.Go(func() error { return a.checkVersions(ctx) })
	g.Go(func() error { return a.cni.Listen(ctx, pods) })
	g.Go(func() error { return a.serve(ctx, about) })
	g.Go(func() error { return a.loop(ctx) })
	return unlessEnded(outer, g.Wait())
}

// follow puts the newest Snapshot into the inbox. A source that cannot be opened is tried again.
func (a *agent) follow(ctx context.Context, client *kubeapi.Client) {
	for p := (retry.Backoff{}); ctx.Err() == nil; {
		snapshots, err := a.source(ctx, client)
		if err == nil {
			follow(ctx, a.inbox, snapshots, func(m *events, s *cluster.Snapshot) { m.snapshot, m.news = s, true })
			return
		}
		if p.Pause() == 0 {
			a.log.Warn("the cluster is not known yet", "error", err)
		}
		a.inbox.enqueue(func(m *events) { m.sourceErr = err })
		p.Sleep(ctx)
	}
}

// source is where Snapshots come from.
func (a *agent) source(ctx context.Context, client *kubeapi.Client) (<-chan *cluster.Snapshot, error) {
	if client == nil {
		return watch.Files(ctx, a.config.Process.Manifests, a.config.Cluster)
	}
	return watch.Kube(kube.WithLog(ctx, a.log), client, a.node, a.config.Cluster)
}

func (a *agent) tick(ctx context.Context) {
	retry.Every(ctx, slowTimer, func() {
		a.inbox.enqueue(func(m *events) { m.reread = true })
		a.looker.Want()
	})
}

// checkVersions lets the agent work when OVN, Open vSwitch and nft are new enough, and ends it when they are not.
func (a *agent) checkVersions(ctx context.Context) error {
	if err := a.targets.CheckVersions(ctx, a.log); err != nil {
		return err
	}
	a.supported.Store(true)
	a.looker.Want()
	a.inbox.notify()
	return nil
}
