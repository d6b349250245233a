// Package agent implements `hairpin node`, the process that configures one node.
//
// Run starts all goroutines. One of them, the loop (loop.go), owns the agent's state: the others
// put events into its inbox (inbox.go). Each of its rounds computes the desired State (package
// plan) and applies it (package apply), if all gates are open (gates.go). Package vswitch handles
// restarts of Open vSwitch. The agent reports the result of its last round (result.go, report.go),
// and measure.go computes its metrics.
package agent

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"hairpin/agent/packets"
	"hairpin/agent/vswitch"
	"hairpin/apply"
	"hairpin/apply/late"
	"hairpin/apply/redirect"
	"hairpin/cluster"
	"hairpin/cni"
	"hairpin/config"
	"hairpin/egress/probe"
	"hairpin/hostnet/logind"
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

// rereadInterval is the interval at which everything is read back without a change notification.
const rereadInterval = 5 * time.Minute

// agent configures one node. Its state belongs to the goroutine that calls loop: the Snapshot, what
// is planned, progress, and what host, egress, pods, vswitch and monitor do not document otherwise.
// Other goroutines read lastResult instead.
type agent struct {
	node       string
	config     config.Config
	log        *slog.Logger
	inbox      *inbox
	lastResult lastResult
	ovs        *ovsdb.Client
	api        *kube.Reach
	targets    *targets.Set
	pass       *apply.Pass
	background late.Worker // for calls that may hang

	host     *hostFacts
	egress   *egressHandler
	pods     *podHandler
	vswitch  *vswitch.Switch
	planned  planned
	progress progress
	monitor  *monitoring
	watches  packets.Watches

	supported   atomic.Bool       // OVN, Open vSwitch and nft are new enough
	snapshot    *cluster.Snapshot // of the cluster, with this agent's view of egress addresses
	sourceErr   error             // why there is no Snapshot yet
	noRedirect  error             // why nft serves NodePorts although the configuration wants eBPF programs
	noConntrack error             // why these programs do not recognize the node's own connections; nil if they do
}

// Run runs the agent of this node until ctx ends. Its configuration of the node stays, so that a
// restart interrupts nothing. It waits for Open vSwitch, OVN, the API server and the folder of
// manifests, and for the end of another agent of the same node, before it changes anything.
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
	a := &agent{
		node: node, config: c, log: log, inbox: newInbox(), ovs: ovs, api: api, targets: t,
		planned: planned{planner: plan.NewPlanner()}, progress: progress{log: log},
	}
	if c.Cluster.Gateway.NodePortPath == cluster.PathRedirect {
		if a.noRedirect = redirect.Supported(); a.noRedirect != nil {
			a.config.Cluster.Gateway.NodePortPath = cluster.PathNFT
		} else {
			a.noConntrack = redirect.Conntrack()
		}
	}
	ports, err := t.ProxyPorts(ctx, &a.config)
	if err != nil { // the agent starts all the same, and later reports that nft fails
		log.Warn("proxy ports of an earlier agent cannot be read: Services may get others", "error", err)
	}
	a.planned.planner.Keep(ports)
	a.background = late.NewWorker(a.inbox.notify)
	a.pods = newPodHandler(node, ovs, a.inbox, a.background, log)
	systems := t.Systems
	systems.NB = ovnTarget{t.NB, a.pods.cni}
	a.pass = apply.NewPass(systems)
	a.monitor = newMonitoring(node, client, a.measure, log)
	defer a.monitor.stop()
	a.egress = newEgressHandler(node, c.Process.Egress, client, api, a.inbox, a.monitor, log)
	a.host = newHostFacts(node, &a.config, client, ovs, t.NFT, a.inbox.addScan, log)
	a.vswitch = vswitch.New(ovs, t, a.background, late.NewWorker(a.inbox.notify), a.host.scanner.RequestNow, log)
	a.observeDurations()
	s := a.host.scanner
	s.AfterScan, s.PodPorts = a.pods.cni.CheckLinks, a.pods.cni.HostPorts
	s.MayRecord = a.supported.Load // before that, the agent writes nothing
	s.TakeOver(ctx)
	return a.run(ctx, client)
}

// unlessEnded returns nil if ctx has ended: err is a consequence of that then.
func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// run starts all goroutines. It ends when ctx ends or one of them fails, and ends all others too.
func (a *agent) run(ctx context.Context, client *kubeapi.Client) error {
	cniSocket, err := ops.ListenUnix(a.config.Process.RunDir, cni.Socket)
	if err != nil {
		return err
	}
	agentSocket, err := ops.ListenUnix(a.config.Process.RunDir, report.AgentSocket)
	if err != nil {
		return err
	}
	// Before the first request: without a reason in them, the node would count as ready.
	a.updateCNIFacts()
	a.publishResult(0)
	outer := ctx
	g, ctx := errgroup.WithContext(ctx)
	start := func(f func()) { g.Go(func() error { f(); return nil }) }
	start(func() { a.followCluster(ctx, client) })
	start(func() { follow(ctx, a.inbox, a.ovs.Changed(), func(*events, struct{}) { a.host.scanner.Request() }) })
	start(func() { vswitch.WatchStarts(ctx, a.inbox.notify, a.config.Process.OVSRunDir, a.log) })
	start(func() { a.rereadPeriodically(ctx) })
	a.host.start(ctx, start)
	a.pods.cni.DeleteMegaflowsWith(a.targets.Bridge.Forget)
	a.pods.start(ctx, a.targets.NB.Sync, start)
	a.monitor.start(ctx, &a.config.Process, a.targets.NB.Sync, start)
	a.egress.start(ctx, client, start)
	if client != nil {
		start(func() {
			logind.Watch(ctx, logind.Bus, a.log,
				func(ctx context.Context, down bool) { a.onShutdown(ctx, client, down) })
		})
	}
	start(func() { probe.Serve(ctx, a.config.Process.Egress, a.log, a.monitor.dataplaneOK) })
	g.Go(func() error { return a.checkVersions(ctx) })
	g.Go(func() error { return a.pods.cni.Listen(ctx, cniSocket) })
	g.Go(func() error { return a.serve(ctx, agentSocket) })
	g.Go(func() error { return a.loop(ctx) })
	return unlessEnded(outer, g.Wait())
}

// followCluster puts the newest Snapshot into the inbox. It retries a source that cannot be opened.
func (a *agent) followCluster(ctx context.Context, client *kubeapi.Client) {
	for p := (retry.Backoff{}); ctx.Err() == nil; {
		snapshots, err := a.source(ctx, client)
		if err == nil {
			follow(ctx, a.inbox, snapshots, (*events).addSnapshot)
			return
		}
		if p.Pause() == 0 {
			a.log.Warn("the cluster is not known yet", "error", err)
		}
		a.inbox.enqueue(func(m *events) { m.sourceErr = err })
		p.Sleep(ctx)
	}
}

// source opens the source of Snapshots: the folder of manifests or the API.
func (a *agent) source(ctx context.Context, client *kubeapi.Client) (<-chan *cluster.Snapshot, error) {
	if client == nil {
		return watch.Files(ctx, a.config.Process.Manifests, a.config.Cluster)
	}
	return watch.Kube(kube.WithLog(ctx, a.log), client, a.node, a.config.Cluster)
}

func (a *agent) rereadPeriodically(ctx context.Context) {
	retry.Every(ctx, rereadInterval, func() {
		a.inbox.enqueue(func(m *events) { m.reread = true })
		a.host.scanner.Request()
	})
}

// checkVersions enables the agent's work if OVN, Open vSwitch and nft are new enough. Otherwise it
// ends the agent.
func (a *agent) checkVersions(ctx context.Context) error {
	if err := a.targets.CheckVersions(ctx, a.log); err != nil {
		return err
	}
	a.supported.Store(true)
	a.host.scanner.Request()
	a.inbox.notify()
	return nil
}
