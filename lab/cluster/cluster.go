package cluster

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"hairpin/image"
	"hairpin/lab"
)

// Names and addresses in the cluster's lab.
const (
	DefaultName = "cluster"
	ClientName  = "client" // a host on the external network that is not in the cluster
	APIPort     = 6443     // of the API server
	dnsAddress  = "10.96.0.10"
	// forwardPort is the machine's port for the API server, if it is free.
	forwardPort = 16443
)

//go:embed packages.txt
var packageList string

// Options describe the cluster to start.
type Options struct {
	Name  string   // of the lab; empty means "cluster"
	Root  string   // of the sources, with the results of make in bin and dist
	Nodes []string // the first has the control plane; empty means node-a, node-b, node-c
	// NodeConfList, if not empty, is written to the nodes' /etc/cni/net.d, and nothing is
	// installed: for the reference of a measurement.
	NodeConfList string
	Bare         bool // nothing is installed, as in a new cluster: the nodes are not ready
	// Release is a folder that `make release` wrote, below Root, to install instead of the build of
	// the sources; empty means none.
	Release string
	// Values are further options of the chart, as helm --set takes them.
	Values []string
	// DieWithCaller ends the cluster with the calling process, as tests require.
	DieWithCaller bool
	Out           io.Writer
}

// Cluster is a running cluster. Its methods may be called concurrently.
type Cluster struct {
	opt    Options
	begin  time.Time
	outMu  sync.Mutex
	lab    *lab.Lab
	kube   string // the program that is control plane, kubelet and kubectl
	images string // see template

	mu     sync.Mutex // protects what a restart of the control plane replaces
	server *lab.APIServer
	client kubernetes.Interface
}

func (o Options) withDefaults() Options {
	if o.Name == "" {
		o.Name = DefaultName
	}
	if o.Root == "" {
		o.Root = "."
	}
	if len(o.Nodes) == 0 {
		o.Nodes = []string{"node-a", "node-b", "node-c"}
	}
	if o.Out == nil {
		o.Out = io.Discard
	}
	return o
}

// Start starts a cluster and returns when every Node is ready, and DNS and the examples run, unless
// it is a bare cluster. A lab of the same name is removed first. After an error, what was started
// stays for inspection.
func Start(ctx context.Context, opt Options) (*Cluster, error) {
	c := &Cluster{opt: opt.withDefaults(), begin: time.Now()}
	if err := lab.Remove(c.opt.Name); err != nil {
		return nil, err
	}
	root, err := c.prepare(ctx)
	if err != nil {
		return nil, err
	}
	c.say("lab %q: the external network, an outside client, %d nodes, the control plane on %s", c.opt.Name,
		len(c.opt.Nodes), c.controlPlane())
	cfg := lab.Config{Name: c.opt.Name, Image: root, DieWithCaller: c.opt.DieWithCaller}
	if c.lab, err = lab.New(ctx, cfg); err != nil {
		return nil, err
	}
	if err := c.saveValues(); err != nil {
		return nil, err
	}
	apiReady := make(chan struct{})
	steps := []func() error{
		func() error { return c.startClient(ctx) },
		func() error { defer close(apiReady); return c.addFirst(ctx) },
	}
	for _, name := range c.opt.Nodes[1:] {
		steps = append(steps, func() error { return c.addNode(ctx, name, apiReady) })
	}
	if err := lab.Together(steps...); err != nil {
		return nil, err
	}
	if c.opt.Bare {
		return c, nil
	}
	return c, c.install(ctx)
}

// Open returns access to a cluster that another process started.
func Open(opt Options) (*Cluster, error) {
	c := &Cluster{opt: opt.withDefaults(), begin: time.Now()}
	var err error
	if c.lab, err = lab.Open(c.opt.Name); err != nil {
		return nil, err
	}
	if err := c.loadValues(); err != nil {
		return nil, err
	}
	server, err := lab.OpenAPIServer(c.lab.APIServerDir())
	if err != nil {
		return nil, err
	}
	if c.kube, err = lab.BuildKube(context.Background(), image.DefaultDir, nil); err != nil {
		return nil, err
	}
	return c, c.connect(server)
}

// prepare builds images and programs, which takes minutes the first time.
func (c *Cluster) prepare(ctx context.Context) (root string, err error) {
	list := image.List{Name: "cluster-node", Packages: image.ReadPackages(packageList)}
	err = lab.Together(
		func() (err error) {
			root, err = list.Build(ctx, image.DefaultDir, func(line string) { c.say("node image: %s", line) })
			return err
		},
		func() (err error) {
			c.kube, err = lab.BuildKube(ctx, image.DefaultDir, func(line string) { c.say("%s", line) })
			return err
		})
	if err != nil {
		return "", err
	}
	files, err := c.smallImages()
	if err != nil {
		return "", fmt.Errorf("%w (make cluster builds what is missing)", err)
	}
	c.images, err = c.template(ctx, root, files)
	return root, err
}

// say prints a line of progress.
func (c *Cluster) say(format string, args ...any) {
	c.outMu.Lock()
	defer c.outMu.Unlock()
	fmt.Fprintf(c.opt.Out, "%6.1f s  %s\n", time.Since(c.begin).Seconds(), fmt.Sprintf(format, args...))
}

func (c *Cluster) startClient(ctx context.Context) error {
	p := netip.MustParsePrefix
	_, err := c.lab.StartHost(ctx, lab.HostConfig{Name: ClientName,
		Addresses: []netip.Prefix{p("172.18.0.100/16"), p("fc00:f853:ccd::64/64")}})
	return err
}

// controlPlane returns the node with the control plane, in its host network. So the API server
// reaches pods and Services as any process on a node does, for proxies, webhooks and aggregated
// APIs.
func (c *Cluster) controlPlane() string { return c.opt.Nodes[0] }

// apiAddress returns the address of the API server for nodes and pods.
func (c *Cluster) apiAddress() netip.Addr { return nodeAddresses(c.controlPlane())[0].Addr() }

// startAPI starts the control plane, and a forwarder to it from the machine.
func (c *Cluster) startAPI(ctx context.Context, on *lab.Host) (err error) {
	started, err := lab.StartAPIServer(ctx, c.serverConfig(on))
	if err != nil {
		return err
	}
	at := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port) }
	server := netip.AddrPortFrom(c.apiAddress(), APIPort)
	local, err := c.lab.Forward(on, server, at(forwardPort), at(0))
	if err != nil {
		return err
	}
	if err := c.writeKubeconfig(started, "https://"+local.String()); err != nil {
		return err
	}
	c.say("control plane: ready at %s in the lab, %s on this machine", server, local)
	return c.connect(started)
}

func (c *Cluster) serverConfig(on *lab.Host) lab.APIServerConfig {
	return lab.APIServerConfig{
		Binary: c.kube, Dir: c.lab.APIServerDir(), Address: c.apiAddress(), Netns: on.Netns(),
		// Identities are made for nodes that may be added later, too.
		Nodes: append([]string{"node-a", "node-b", "node-c", "node-d"}, c.opt.Nodes...), Kubelets: true,
		DieWithCaller: c.opt.DieWithCaller,
	}
}

// writeKubeconfig writes the administrator's kubeconfig for use on the machine, with the URL of the
// forwarder.
func (c *Cluster) writeKubeconfig(server *lab.APIServer, url string) error {
	cfg, err := clientcmd.LoadFromFile(server.Kubeconfig())
	if err != nil {
		return err
	}
	for _, cluster := range cfg.Clusters {
		cluster.Server = url
	}
	return clientcmd.WriteToFile(*cfg, c.Kubeconfig())
}

// Kubeconfig is the administrator's kubeconfig, for use on the machine.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.lab.Dir(), "kubeconfig") }

// Lab is the lab of the cluster.
func (c *Cluster) Lab() *lab.Lab { return c.lab }

// Server is the control plane.
func (c *Cluster) Server() *lab.APIServer {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.server
}

// Client is the administrator's client.
func (c *Cluster) Client() kubernetes.Interface {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.client
}

// connect makes server the control plane of the cluster.
func (c *Cluster) connect(server *lab.APIServer) error {
	cfg, err := server.RESTConfig()
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("make Kubernetes client: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.server, c.client = server, client
	return nil
}

// addFirst adds the node of the control plane, and starts the control plane.
func (c *Cluster) addFirst(ctx context.Context) error {
	n, err := c.newNode(ctx, c.controlPlane())
	if err != nil {
		return err
	}
	if err := c.startAPI(ctx, n.Host); err != nil {
		return err
	}
	return c.startKubelet(ctx, n, n.Addresses())
}

// addNode adds a node, and starts its kubelet once the control plane is ready.
func (c *Cluster) addNode(ctx context.Context, name string, apiReady <-chan struct{}) error {
	n, err := c.newNode(ctx, name)
	if err != nil {
		return err
	}
	<-apiReady
	if c.Client() == nil {
		return errors.New(name + ": there is no control plane")
	}
	return c.startKubelet(ctx, n, n.Addresses())
}

// newNode makes a node with an empty disk and boots it.
func (c *Cluster) newNode(ctx context.Context, name string) (*lab.Node, error) {
	if err := c.newDisk(name); err != nil {
		return nil, err
	}
	n, err := c.startNode(ctx, name)
	if err != nil {
		return nil, err
	}
	if list := c.opt.NodeConfList; list != "" {
		if err := n.WriteFile("/etc/cni/net.d/10-peer.conflist", list); err != nil {
			return nil, err
		}
	}
	if err := c.keepFound(ctx, n); err != nil {
		return nil, err
	}
	c.say("%s: containerd runs", name)
	return n, nil
}

// waitNodes waits until nodes are ready, with any network plugin.
func (c *Cluster) waitNodes(ctx context.Context, names ...string) error {
	for _, name := range names {
		err := wait(ctx, "Node "+name+" to be ready", func() (bool, error) {
			n, err := c.Client().CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return false, nil // not registered yet
			}
			for _, condition := range n.Status.Conditions {
				if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
					return true, nil
				}
			}
			return false, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Remove ends a cluster and removes all its files.
func Remove(name string) error {
	err := lab.Remove(name)
	// Empty unless the lab's record was lost.
	return errors.Join(err, os.RemoveAll(filepath.Join(image.DefaultDir, "disks", name)))
}
