package scale

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"hairpin/cluster"
	"hairpin/image"
	"hairpin/lab"
)

// DefaultName is the name of the lab.
const DefaultName = "scale"

// Options configure a measurement.
type Options struct {
	Name      string // of the lab; empty = DefaultName
	Hairpin   string // the binary under test
	CRDs      string // folder of the resource definitions
	Engine    string // the service engine; empty = the default
	Nodes     int    // at the end; measured at 10, 100, … before
	Services  int    // from the beginning
	Pods      int    // at the end; a node always has its share
	EgressIPs int    // at the end
	Slices    int    // EndpointSlices that change per second of churn
	Rounds    int    // changes, joins and leaves measured for each size
	Window    time.Duration
	Push      string        // a kind of object whose number grows, instead of nodes; empty = none
	Sizes     []int         // numbers of them
	Away      time.Duration // how long the API server is stopped, after a cold start; 0: neither is measured
	Slow      int
	JSON      string // file for the table; empty = none
	SVG       string // file for graphs of it; empty = none
	Out       io.Writer
}

// agentConfig is the path of the agents' configuration.
const agentConfig = "/etc/hairpin/hairpin.conf"

// Names of the lab's daemons besides those of Open vSwitch and OVN.
const (
	agentDaemon      = "hairpin"
	controllerDaemon = "hairpin-controller"
)

// world is the lab, its API server and what was written to it.
type world struct {
	opt          Options
	begin        time.Time
	lab          *lab.Lab
	server       *lab.APIServer
	serverConfig lab.APIServerConfig
	client       kubernetes.Interface
	nodes        []*lab.Node // the real ones; the second may carry egress addresses
	pods         [2]*lab.Pod // of the first node: servers
	senders      []*lab.Pod  // one of each real node
	others       *others
	api          *lab.Host // of the API server
	kubelets     *kubelets
	agentPods    int // number created, for the first nodes
	size         size
	table        Table

	flipped    int            // the current server of the probed Service
	changed    int            // number of slices that churn has changed
	replaced   map[int]int    // number of pods that churn has replaced, by the number of nodes
	generation map[[2]int]int // number of replacements, by node and pod
}

// size is the size of the cluster, without the real nodes.
type size struct{ nodes, egressIPs int }

// Run measures and prints a table. It removes the lab before it returns.
func Run(ctx context.Context, opt Options) (t Table, err error) {
	if opt.Nodes < len(realNodes)+1 || opt.Services < 1 || opt.Rounds < 1 {
		return t, fmt.Errorf("at least %d nodes, a Service and a round are needed", len(realNodes)+1)
	}
	opt.Name, opt.Engine = cmp.Or(opt.Name, DefaultName), cmp.Or(opt.Engine, cluster.DefaultConfig().ServiceEngine)
	opt.Slow = max(1, opt.Slow)
	w := &world{opt: opt, begin: time.Now(), replaced: map[int]int{}, generation: map[[2]int]int{},
		table: Table{Of: "nodes"}}
	measure := w.measureAll
	if opt.Push != "" {
		measure = w.push
	}
	defer func() { err = errors.Join(err, w.close()) }()
	for _, step := range []func(context.Context) error{w.start, w.startNodes, measure} {
		if err = step(ctx); err != nil {
			err = fmt.Errorf("%w%s", err, w.logs())
			break
		}
	}
	w.table.Print(opt.Out) // also after an error, because the measurements took long
	if opt.JSON != "" {
		err = errors.Join(err, w.table.Write(opt.JSON))
	}
	if opt.SVG != "" {
		err = errors.Join(err, os.WriteFile(opt.SVG, []byte(w.table.Graphs()), 0o644))
	}
	return w.table, err
}

// measureAll grows the cluster, and measures at each size.
func (w *world) measureAll(ctx context.Context) error {
	for _, n := range sizes(w.opt.Nodes) {
		if err := w.grow(ctx, n); err != nil {
			return err
		}
		if err := w.measure(ctx); err != nil {
			return fmt.Errorf("measure with %d nodes: %w", n, err)
		}
	}
	return w.end(ctx)
}

// sizes returns 10, 100, … and last.
func sizes(last int) (list []int) {
	for n := 10; n < last; n *= 10 {
		list = append(list, n)
	}
	return append(list, last)
}

// say prints a line of progress.
func (w *world) say(format string, args ...any) {
	fmt.Fprintf(w.opt.Out, "%7.1f s  %s\n", time.Since(w.begin).Seconds(), fmt.Sprintf(format, args...))
}

// patience returns the time limit for what takes the usual time on an idle, usual machine.
func (w *world) patience(usual time.Duration) time.Duration {
	return 20 * usual * time.Duration(w.opt.Slow)
}

// logs returns the ends of the logs, for an error.
func (w *world) logs() (text string) {
	const keep = 2000
	for _, n := range w.nodes {
		for _, name := range []string{agentDaemon, controllerDaemon} {
			if log, err := os.ReadFile(n.LogFile(name)); err == nil {
				text += fmt.Sprintf("\n%s, %s:\n%s", n.Name(), name, log[max(0, len(log)-keep):])
			}
		}
	}
	return text
}

func (w *world) close() error {
	var err error
	if w.others != nil {
		w.others.close()
	}
	if w.server != nil {
		err = w.server.Stop()
	}
	if w.lab != nil {
		err = errors.Join(err, w.lab.Close())
	}
	return err
}

// start starts the underlay, the API server and the host of all other nodes.
func (w *world) start(ctx context.Context) error {
	progress := func(line string) { w.say("%s", line) }
	binary, err := lab.BuildKube(ctx, image.DefaultDir, progress)
	if err != nil {
		return err
	}
	if w.lab, err = lab.New(ctx, lab.Config{Name: w.opt.Name, DieWithCaller: true, Progress: progress}); err != nil {
		return err
	}
	if w.api, err = w.lab.StartHost(ctx,
		lab.HostConfig{Name: "api", Addresses: []netip.Prefix{netip.MustParsePrefix("172.18.0.10/16")}}); err != nil {
		return err
	}
	if w.others, err = startOthers(ctx, w.lab); err != nil {
		return err
	}
	w.serverConfig = lab.APIServerConfig{
		Binary: binary, Dir: w.lab.APIServerDir(), Address: w.api.Addresses()[0].Addr(), Netns: w.api.Netns(),
		DieWithCaller: true,
		ClusterCIDRs:  podRanges(),
	}
	if w.server, err = lab.StartAPIServer(ctx, w.serverConfig); err != nil {
		return err
	}
	config, err := w.server.RESTConfig()
	if err != nil {
		return err
	}
	config.ContentType = runtime.ContentTypeProtobuf // the client of the measurement must cost little itself
	if w.client, err = kubernetes.NewForConfig(config); err != nil {
		return fmt.Errorf("make Kubernetes client: %w", err)
	}
	w.say("the API server is ready")
	return w.define(ctx)
}

// startNodes starts the real nodes, with the objects that they need, their agents and pods.
func (w *world) startNodes(ctx context.Context) error {
	for i, name := range realNodes {
		if err := w.makeNode(ctx, realNode(i), nil); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	hairpin, err := filepath.Abs(w.opt.Hairpin)
	if err != nil {
		return err
	}
	access, err := os.ReadFile(w.server.Kubeconfig())
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	for i, name := range realNodes {
		n, err := w.lab.StartNode(ctx, lab.NodeConfig{
			Name: name, Addresses: realNode(i).addresses(),
			Binds: map[string]string{"/usr/local/bin/hairpin": hairpin, "/opt/cni/bin/hairpin": hairpin},
			Files: map[string]string{
				agentConfig: "[default]\ncluster-subnets = " + podSubnets + "\nservice-engine = " +
					w.opt.Engine + "\n[kubernetes]\nkubeconfig = /etc/hairpin/kubeconfig\n",
				"/etc/hairpin/kubeconfig":    string(access),
				"/etc/cni/net.d/10.conflist": `{"cniVersion": "1.1.0", "name": "hairpin", "plugins": [{"type": "hairpin"}]}`,
			},
		})
		if err != nil {
			return err
		}
		w.nodes = append(w.nodes, n)
	}
	w.others.userspace = w.nodes[0].Datapath() == "netdev"
	if w.kubelets, err = w.startKubelets(); err != nil {
		return err
	}
	if err := w.nodes[0].StartDaemon(ctx, controllerDaemon, "hairpin", "controller", "--config-file="+
		agentConfig); err != nil {
		return err
	}
	for _, n := range w.nodes {
		if err := n.StartDaemon(ctx, agentDaemon, "hairpin", "node", "--config-file="+agentConfig); err != nil {
			return err
		}
	}
	for _, n := range w.nodes {
		if err := w.ready(ctx, n); err != nil {
			return err
		}
	}
	return w.startPods(ctx)
}

// ready waits until an agent has completed its first run.
func (w *world) ready(ctx context.Context, n *lab.Node) error {
	all := func(string) bool { return true }
	return n.WaitFor(ctx, w.patience(10*time.Second), all, "hairpin", "probe", "readyz", "--config-file="+agentConfig)
}

// startPods gives the first node two servers, and each node a pod that sends.
func (w *world) startPods(ctx context.Context) error {
	add := func(n *lab.Node, name string) (*lab.Pod, error) {
		made, err := w.makePod(ctx, &corev1.Pod{ObjectMeta: named("default", name),
			Spec: corev1.PodSpec{NodeName: n.Name()}})
		if err != nil {
			return nil, err
		}
		return n.RunPod(ctx, w.client, made, nil)
	}
	for _, n := range w.nodes {
		p, err := add(n, "sender-"+n.Name())
		if err != nil {
			return err
		}
		w.senders = append(w.senders, p)
	}
	for i := range w.pods {
		p, err := add(w.nodes[0], fmt.Sprintf("server-%d", i))
		if err != nil {
			return err
		}
		if _, err := lab.Serve(ctx, p, p.Name(), serverPort); err != nil {
			return err
		}
		w.pods[i] = p
	}
	if err := w.makeService(ctx, probedService, clusterIP(w.opt.Services), w.pods[0].IPs()[:1]); err != nil {
		return err
	}
	return w.makeServices(ctx)
}
