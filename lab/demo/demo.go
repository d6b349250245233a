// Package demo demonstrates Hairpin with three nodes and an external client on one machine. It has
// a folder of manifests or a real Kubernetes API, and a matrix of traffic between all places.
package demo

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"hairpin/cluster"
	"hairpin/image"
	"hairpin/lab"
	"hairpin/lab/progress"
)

// Names of places in the demo's lab.
const (
	DefaultName = "demo"
	clientName  = "client"
	apiName     = "api"
)

const agentConfig = "/etc/hairpin/hairpin.conf"

// Options configure a demo.
type Options struct {
	Name    string // name of the lab; empty means "demo"
	Objects string // folder of manifests, examples/demo
	Hairpin string // the binary under test
	API     string // Kubernetes = an API server, whose first build takes minutes; empty = agents read the manifests
	Slow    int    // factor by which all time limits grow; 0 means 1
	// Mode is the gateway mode of the nodes, or a comma-separated list with one for each node in
	// turn. Empty means shared. With detached, the kernel keeps eth0.
	Mode         string
	NodePortPath string // [gateway] nodeport-path of the nodes; empty = nft
	OVS          string // of the node image, see image.Node
	TSO          bool   // of Open vSwitch's userspace datapath
	NodeLocal    string // [gateway] node-local of the nodes; empty = policy
	Engine       string // [default] service-engine of the nodes, one or a list as in Mode; empty = the default
	Config       string // more lines of the configuration file
	// DieWithCaller ends the lab with the calling process, as tests need it.
	DieWithCaller bool
	Out           io.Writer
}

// Demo is a running demonstration.
type Demo struct {
	opt     Options
	begin   time.Time
	board   *progress.Board
	lab     *lab.Lab
	objects *objects
	source  source
}

// Start starts everything and returns when all agents are healthy. It first removes a lab of the
// same name. After an error, the started parts remain for inspection.
func Start(ctx context.Context, opt Options) (*Demo, error) {
	if opt.Name == "" {
		opt.Name = DefaultName
	}
	d := &Demo{opt: opt, begin: time.Now(), board: progress.New(opt.Out)}
	defer d.board.Close()
	var err error
	if d.objects, err = readObjects(opt.Objects); err != nil {
		return nil, err
	}
	if d.source, err = newSource(opt.API); err != nil {
		return nil, err
	}
	list, err := image.Node(opt.OVS)
	if err != nil {
		return nil, err
	}
	if err := lab.Remove(opt.Name); err != nil {
		return nil, err
	}
	var root string
	if err := lab.Together(
		func() (err error) {
			return d.board.Each("node image", func(s *progress.Step) error {
				root, err = list.Build(ctx, image.DefaultDir, func(line string) { s.Say("%s", line) })
				return err
			})
		},
		func() error { return d.source.prepare(ctx, d) },
	); err != nil {
		return nil, err
	}
	d.say("lab %q: starting the external network, %d nodes and an outside client", opt.Name, len(d.objects.nodes))
	if d.lab, err = lab.New(ctx, lab.Config{Name: opt.Name, Image: root, TSO: opt.TSO,
		DieWithCaller: opt.DieWithCaller}); err != nil {
		return nil, err
	}
	if err := lab.Together(
		func() error { return d.startNodes(ctx) },
		func() error { return d.startClient(ctx) },
		func() error { return d.source.start(ctx, d) },
	); err != nil {
		return nil, err
	}
	for _, step := range []func(context.Context) error{d.startAgents, d.addPods, d.settle} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// say prints a line of progress.
func (d *Demo) say(format string, args ...any) {
	fmt.Fprintf(d.board, "%6.1f s  %s\n", time.Since(d.begin).Seconds(), fmt.Sprintf(format, args...))
}

func (d *Demo) startNodes(ctx context.Context) error {
	var starts []func() error
	for _, n := range d.objects.nodes {
		starts = append(starts, func() error { return d.startNode(ctx, &n) })
	}
	if err := lab.Together(starts...); err != nil {
		return err
	}
	return d.addSecondary()
}

// startNode starts a node, without its agent.
func (d *Demo) startNode(ctx context.Context, n *corev1.Node) error {
	ips, err := addresses(n)
	if err != nil {
		return err
	}
	cfg := lab.NodeConfig{
		Name: n.Name, Addresses: ips, NoBridge: !cluster.ModeNamed(d.turn(d.opt.Mode, n.Name)).Uplink,
		Binds: map[string]string{"/usr/local/bin/hairpin": d.opt.Hairpin, "/opt/cni/bin/hairpin": d.opt.Hairpin},
		Files: map[string]string{"/etc/cni/net.d/10-hairpin.conflist": networkList, agentConfig: d.agentConfig(n.Name)},
	}
	if err := d.source.join(d.lab, &cfg); err != nil {
		return err
	}
	node, err := d.lab.StartNode(ctx, cfg)
	if err != nil {
		return err
	}
	_, err = lab.Serve(ctx, node.Host, hostPlace(n.Name), hostPort)
	d.say("%s: Open vSwitch and OVN are up (%s datapath)", n.Name, node.Datapath())
	return err
}

// networkList is the network configuration that an installation writes to /etc/cni/net.d.
const networkList = `{"cniVersion": "1.1.0", "name": "hairpin", "plugins": [{"type": "hairpin"}]}
`

// turn returns the item of a comma-separated list that applies to a node.
func (d *Demo) turn(list, node string) string {
	all := strings.Split(list, ",")
	i := slices.IndexFunc(d.objects.nodes, func(n corev1.Node) bool { return n.Name == node })
	return all[max(0, i)%len(all)]
}

func (d *Demo) agentConfig(node string) string {
	config := d.source.config()
	for _, o := range []struct{ section, key, value string }{
		{"gateway", "mode", d.turn(d.opt.Mode, node)}, {"gateway", "nodeport-path", d.opt.NodePortPath},
		{"gateway", "node-local", d.opt.NodeLocal},
		{"default", "service-engine", d.turn(d.opt.Engine, node)},
	} {
		if o.value != "" {
			config += "[" + o.section + "]\n" + o.key + " = " + o.value + "\n"
		}
	}
	return config + d.opt.Config
}

// hostPlace returns the name of a node's host in the matrix: "host-a" for "node-a".
func hostPlace(node string) string { return "host-" + strings.TrimPrefix(node, "node-") }

// addSecondary adds to the first node's host the address of Service hostsecondary's endpoint.
func (d *Demo) addSecondary() error {
	for _, s := range d.objects.slices {
		for _, e := range s.Endpoints {
			if !strings.HasPrefix(s.Name, "hostsecondary") || e.NodeName == nil {
				continue
			}
			ip, err := netip.ParseAddr(e.Addresses[0])
			if err != nil {
				return fmt.Errorf("EndpointSlice %s: %w", s.Name, err)
			}
			if err := d.lab.Node(*e.NodeName).AddAddress("lo", netip.PrefixFrom(ip, ip.BitLen())); err != nil {
				return err
			}
		}
	}
	return nil
}

func (d *Demo) startClient(ctx context.Context) error {
	p := netip.MustParsePrefix
	h, err := d.lab.StartHost(ctx, lab.HostConfig{Name: clientName,
		Addresses: []netip.Prefix{p("172.18.0.100/16"), p("fc00:f853:ccd::64/64")}})
	if err != nil {
		return err
	}
	// Routes of an external router: to the Services' addresses and to the first node's secondary
	// address.
	for prefix, node := range map[string]string{
		"172.20.0.1/32": "172.18.0.3", "fd00:20::1/128": "fc00:f853:ccd::3",
		"203.0.113.0/24": "172.18.0.3", "10.96.0.0/16": "172.18.0.3", "2001:db8:113::/64": "fc00:f853:ccd::3",
		"fd00:10:96::/112": "fc00:f853:ccd::3",
	} {
		if _, err := h.Exec(ctx, "ip", "route", "replace", prefix, "via", node); err != nil {
			return err
		}
	}
	_, err = lab.Serve(ctx, h, clientName, clientPort)
	return err
}

// Client returns the administrator's client, nil without an API.
func (d *Demo) Client() kubernetes.Interface {
	if a, ok := d.source.(*kubeAPI); ok {
		return a.client
	}
	return nil
}

// Lab returns the lab of the demo.
func (d *Demo) Lab() *lab.Lab { return d.lab }
