package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"

	"hairpin/image"
)

const apiDirName = "api"

// Config describes a lab. The zero value is valid.
type Config struct {
	// Name is the lab's directory under /run/hairpin-lab: lower-case letters, digits, "-" and ".".
	// Empty means "demo". Remains of a crashed lab of the same name are removed first.
	Name string
	// Underlay are the IP networks of the underlay; the first address of each is the gateway. Empty
	// means 172.18.0.0/16 and fc00:f853:ccd::/64.
	Underlay []netip.Prefix
	// Image is the root directory of the node image. Empty means that of image.Build, which is
	// built if missing.
	Image string
	// Offloads allows long frames without checksums on the underlay, as between NICs with
	// segmentation and receive offload. It is ignored with the userspace datapath, which needs each
	// frame as it is.
	Offloads bool
	// TSO starts Open vSwitch's userspace datapath with TSO, and gives hosts and nodes NICs that do
	// segmentation and compute checksums.
	TSO bool
	// DieWithCaller ends the lab with the calling process, however that ends. Without it the lab
	// stays until Remove.
	DieWithCaller bool
	// Progress gets a line of text for each step that takes long; it may be nil.
	Progress func(string)
}

func (c Config) withDefaults() Config {
	if c.Name == "" {
		c.Name = "demo"
	}
	if len(c.Underlay) == 0 {
		c.Underlay = []netip.Prefix{netip.MustParsePrefix("172.18.0.0/16"), netip.MustParsePrefix("fc00:f853:ccd::/64")}
	}
	if c.Progress == nil {
		c.Progress = func(string) {}
	}
	return c
}

// gateways returns the gateway address of each network, with its prefix length.
func (c Config) gateways() []netip.Prefix {
	var list []netip.Prefix
	for _, p := range c.Underlay {
		list = append(list, netip.PrefixFrom(p.Masked().Addr().Next(), p.Bits()))
	}
	return list
}

// Lab is an underlay with its hosts and nodes. Its methods may be called concurrently.
type Lab struct {
	cfg       Config
	mu        sync.Mutex
	record    record
	hosts     map[string]*Host
	nodes     map[string]*Node
	lifelines []io.Closer // kept open so that the holders live
	plugged   int         // number of allocated addresses of the underlay
}

// New starts a lab with only the underlay. It needs root.
func New(ctx context.Context, cfg Config) (*Lab, error) {
	cfg = cfg.withDefaults()
	if datapath, err := chooseDatapath(""); err != nil || datapath == "netdev" {
		cfg.Offloads = false
	}
	if !validName.MatchString(cfg.Name) {
		return nil, fmt.Errorf("start lab: %q is not a name for a lab", cfg.Name)
	}
	if r, err := load(cfg.Name); err == nil && r.running() {
		return nil, fmt.Errorf("start lab: %q runs already", cfg.Name)
	}
	if err := Remove(cfg.Name); err != nil {
		return nil, err
	}
	if cfg.Image == "" {
		root, err := image.Build(ctx, image.DefaultDir, cfg.Progress)
		if err != nil {
			return nil, fmt.Errorf("start lab: %w", err)
		}
		cfg.Image = root
	}
	if err := os.MkdirAll(labDir(cfg.Name), 0o755); err != nil {
		return nil, fmt.Errorf("start lab: %w", err)
	}
	l := &Lab{cfg: cfg, record: record{Name: cfg.Name, Image: cfg.Image}, hosts: map[string]*Host{},
		nodes: map[string]*Node{}}
	if cfg.DieWithCaller {
		l.record.Owner = thisProcess()
	}
	if err := l.startUnderlay(); err != nil {
		return nil, errors.Join(fmt.Errorf("start lab: %w", err), l.Close())
	}
	return l, nil
}

func (r *record) running() bool {
	for _, h := range r.Hosts {
		if h.Holder.alive() {
			return true
		}
	}
	return false
}

// Open returns access to a running lab that another process started.
func Open(name string) (*Lab, error) {
	r, err := load(name)
	if err != nil {
		return nil, err
	}
	l := &Lab{cfg: Config{Name: name, Image: r.Image}.withDefaults(), record: *r, hosts: map[string]*Host{},
		nodes: map[string]*Node{}}
	for _, h := range r.Hosts {
		host := &Host{lab: l, name: h.Name, holder: h.Holder, addresses: h.Addresses}
		l.hosts[h.Name] = host
		if h.Node != nil {
			l.nodes[h.Name] = &Node{Host: host, datapath: h.Node.Datapath, disk: h.Node.Disk}
		}
	}
	l.plugged = len(r.Hosts)
	if !r.running() {
		return nil, fmt.Errorf("open lab %q: nothing of it runs any more", name)
	}
	return l, nil
}

// Close ends everything in the lab and removes its directory.
func (l *Lab) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.record.removeAll()
	for _, c := range l.lifelines {
		_ = c.Close()
	}
	l.lifelines = nil
	if err != nil {
		return fmt.Errorf("close lab %q: %w", l.cfg.Name, err)
	}
	return nil
}

// Name is the lab's name.
func (l *Lab) Name() string { return l.cfg.Name }

// Dir is the lab's directory. It is gone after Close.
func (l *Lab) Dir() string { return labDir(l.cfg.Name) }

// APIServerDir is where a lab's API server keeps its state (APIServerConfig.Dir); Close and Remove
// stop it.
func (l *Lab) APIServerDir() string { return filepath.Join(l.Dir(), apiDirName) }

// Node returns a node by name, or nil.
func (l *Lab) Node(name string) *Node {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.nodes[name]
}

// Host returns a node or host by name, or nil. "underlay" is the underlay itself.
func (l *Lab) Host(name string) *Host {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hosts[name]
}

// Underlay is the network between hosts and nodes: a bridge in a network namespace.
func (l *Lab) Underlay() *Host { return l.Host(underlayName) }

// Hosts returns all hosts and nodes in the order in which they were started; the underlay is the
// first.
func (l *Lab) Hosts() []*Host {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []*Host
	for _, h := range l.record.Hosts {
		list = append(list, l.hosts[h.Name])
	}
	return list
}

// Nodes returns the nodes by name.
func (l *Lab) Nodes() []*Node {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []*Node
	for _, h := range l.record.Hosts {
		if n := l.nodes[h.Name]; n != nil {
			list = append(list, n)
		}
	}
	slices.SortFunc(list, func(a, b *Node) int { return strings.Compare(a.name, b.name) })
	return list
}

// startUnderlay creates the underlay: a bridge that is also the gateway.
func (l *Lab) startUnderlay() error {
	h, err := l.hold(holderConfig{Name: underlayName}, nil)
	if err != nil {
		return err
	}
	return h.Do(func() error {
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: UnderlayBridge}}
		if err := netlink.LinkAdd(bridge); err != nil {
			return fmt.Errorf("make bridge of the underlay: %w", err)
		}
		return configureLink(bridge, networkConfig{Addresses: l.cfg.gateways()})
	})
}

// hold starts a holder and records it.
func (l *Lab) hold(cfg holderConfig, node *nodeRecord) (*Host, error) {
	dir := filepath.Join(l.Dir(), cfg.Name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	cfg.Lifeline = l.cfg.DieWithCaller
	holder, lifeline, err := startHolder(cfg, dir)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", cfg.Name, err)
	}
	h := &Host{lab: l, name: cfg.Name, holder: holder, addresses: cfg.Network.Addresses}
	l.mu.Lock()
	defer l.mu.Unlock()
	if lifeline != nil {
		l.lifelines = append(l.lifelines, lifeline)
	}
	l.hosts[cfg.Name] = h
	l.record.Hosts = append(l.record.Hosts,
		hostRecord{Name: cfg.Name, Holder: holder, Addresses: h.addresses, Node: node})
	return h, l.record.save()
}

// reserve reserves a name and allocates the next free address of each network: .3, .4, …
func (l *Lab) reserve(name string) ([]netip.Prefix, error) {
	if !validName.MatchString(name) {
		return nil, fmt.Errorf("%q is not a name for a host", name)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, taken := l.hosts[name]; taken {
		return nil, fmt.Errorf("there is a %q already", name)
	}
	l.hosts[name] = nil
	var list []netip.Prefix
	for _, g := range l.cfg.gateways() {
		a := g.Addr().Next()
		for range l.plugged + 1 {
			a = a.Next()
		}
		list = append(list, netip.PrefixFrom(a, g.Bits()))
	}
	l.plugged++
	return list, nil
}

// forget removes a host that has ended from the record.
func (l *Lab) forget(name string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.hosts, name)
	delete(l.nodes, name)
	for i, h := range l.record.Hosts {
		if h.Name == name {
			l.record.Hosts = append(l.record.Hosts[:i], l.record.Hosts[i+1:]...)
			break
		}
	}
	return l.record.save()
}
