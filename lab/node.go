package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
)

// GatewayBridge is the Open vSwitch bridge that has the node's addresses and eth0.
const GatewayBridge = "br-ex"

// ShowDefaultRoute returns a shell command that prints the default route of a family (-4 or -6) by
// the gateway bridge, without the words of `ip route show` that `ip route replace` does not
// understand.
func ShowDefaultRoute(family string) string {
	return "ip " + family + " -o route show default dev " + GatewayBridge + " | sed 's/ linkdown//; s/ dead//'"
}

// NodeConfig describes a Node. The zero value is a valid node for tests.
type NodeConfig struct {
	Name string // also the host name; empty means "node-a"
	// on br-ex; empty means the next free ones of the underlay, 172.18.0.3 and fc00:f853:ccd::3
	// first
	Addresses []netip.Prefix
	SystemID  string // external_ids:system-id, the OVN chassis name; empty means Name
	// Daemons are started with the node; nil means all: OVSDB, VSwitchd, NB, SB, Northd,
	// Controller. Without VSwitchd there is no br-ex and no network but lo and eth0.
	Daemons []string
	// Datapath is the type of br-ex: "netdev" (userspace), "system" (kernel), or "auto", which is
	// "system" where the kernel has openvswitch. Empty means "auto".
	Datapath string
	// Plain makes the node an ordinary machine: addresses on eth0, no daemon of Open vSwitch or
	// OVN, and nothing prepared for them.
	Plain bool
	// NoBridge leaves the uplink to the kernel: eth0 has the addresses, and Open vSwitch runs
	// without any bridge.
	NoBridge bool
	Binds    map[string]string // path in the node → file or directory of the machine, read-only
	Files    map[string]string // path in the node → content
	// Disk makes the node a plain machine for containers: it has control groups and mounts that
	// pods can share. Disk is a directory of the machine that keeps what the node writes; after
	// Stop, StartNode with the same one is a reboot. It is removed with the lab.
	Disk string
}

// Node looks like a separate machine to the programs in it. It has its own root file system (an
// overlay of the node image whose changes are kept in memory), network, processes and host name.
type Node struct {
	*Host
	datapath string
	disk     string   // NodeConfig.Disk
	daemons  sync.Map // name → *sync.Mutex, see hold
}

// StartNode plugs a node into the underlay and starts its daemons. When it returns, br-ex has its
// addresses, and ovs-vsctl, ovn-nbctl and ovn-sbctl work in the node. It takes about a second.
func (l *Lab) StartNode(ctx context.Context, cfg NodeConfig) (*Node, error) {
	if cfg.Name == "" {
		cfg.Name = "node-a"
	}
	if cfg.SystemID == "" {
		cfg.SystemID = cfg.Name
	}
	cfg.Plain = cfg.Plain || cfg.Disk != ""
	if cfg.Plain {
		cfg.Daemons = []string{}
	}
	if cfg.Daemons == nil {
		cfg.Daemons = []string{OVSDB, VSwitchd, NB, SB, Northd, Controller}
	}
	free, err := l.reserve(cfg.Name)
	if err != nil {
		return nil, fmt.Errorf("start node: %w", err)
	}
	if len(cfg.Addresses) == 0 {
		cfg.Addresses = free
	}
	n, err := l.holdNode(cfg)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start node: %w", err), l.forget(cfg.Name))
	}
	if err := n.bringUp(ctx, cfg); err != nil {
		return nil, errors.Join(fmt.Errorf("start node %s: %w", cfg.Name, err), n.Stop())
	}
	return n, nil
}

func (l *Lab) holdNode(cfg NodeConfig) (*Node, error) {
	datapath, err := chooseDatapath(cfg.Datapath)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(l.Dir(), cfg.Name)
	stage, logs := filepath.Join(dir, "root"), filepath.Join(dir, "log")
	if err := errors.Join(os.MkdirAll(stage, 0o755), os.MkdirAll(logs, 0o755)); err != nil {
		return nil, err
	}
	image := l.cfg.Image
	if image == "" {
		return nil, errors.New("this lab was opened, not started, and knows no image")
	}
	link := GatewayBridge
	if cfg.Plain || cfg.NoBridge {
		link = "eth0"
	}
	holder := holderConfig{
		Name: cfg.Name,
		Root: &rootConfig{
			Image: image, Stage: stage, Log: logs, Binds: cfg.Binds, Files: cfg.Files,
			Disk: cfg.Disk, Group: cgroupOf(l.Name(), cfg.Name),
		},
		Network: networkConfig{
			Link: link, Addresses: cfg.Addresses, Gateways: l.gatewaysOf(cfg.Addresses),
			MAC: underlayMAC(cfg.Addresses), Router: !cfg.Plain,
		},
	}
	h, err := l.hold(holder, &nodeRecord{Datapath: datapath, Disk: cfg.Disk, Daemons: map[string][]string{}})
	if err != nil {
		return nil, err
	}
	n := &Node{Host: h, datapath: datapath, disk: cfg.Disk}
	l.mu.Lock()
	defer l.mu.Unlock()
	if cfg.Disk != "" && !slices.Contains(l.record.Disks, cfg.Disk) {
		l.record.Disks = append(l.record.Disks, cfg.Disk)
		if err := l.record.save(); err != nil {
			return nil, errors.Join(err, h.holder.kill(10*time.Second))
		}
	}
	l.nodes[cfg.Name] = n
	return n, nil
}

// bringUp configures a node as the boot of a real node does.
func (n *Node) bringUp(ctx context.Context, cfg NodeConfig) error {
	wanted := func(name string) bool { return slices.Contains(cfg.Daemons, name) }
	mac := underlayMAC(cfg.Addresses)
	if cfg.Plain {
		if err := n.plug(ctx, mac); err != nil {
			return err
		}
		return n.waitForAddresses(ctx, "eth0")
	}
	wire := func() error {
		if err := n.plug(ctx, mac); err != nil || cfg.NoBridge {
			return err
		}
		return n.Do(setUpUplink)
	}
	switchDB := func() error {
		if !wanted(OVSDB) {
			return nil
		}
		if err := n.Start(ctx, OVSDB); err != nil {
			return err
		}
		_, err := n.Exec(ctx, n.switchSetup(cfg, mac, wanted(VSwitchd) && !cfg.NoBridge)...)
		return err
	}
	start := func(name string, then ...string) func() error {
		return func() error {
			if !wanted(name) {
				return nil
			}
			err := n.Start(ctx, name)
			if err == nil && len(then) > 0 {
				_, err = n.Exec(ctx, then...)
			}
			return err
		}
	}
	if err := Together(wire, switchDB, start(NB, "ovn-nbctl", "init"), start(SB, "ovn-sbctl", "init")); err != nil {
		return err
	}
	if err := Together(start(VSwitchd), start(Northd), start(Controller)); err != nil {
		return err
	}
	if cfg.NoBridge {
		return n.waitForAddresses(ctx, "eth0")
	}
	if !wanted(VSwitchd) {
		return nil
	}
	return n.waitForAddresses(ctx, GatewayBridge)
}

// switchSetup returns the command that configures Open vSwitch's identity and the gateway bridge.
func (n *Node) switchSetup(cfg NodeConfig, mac string, bridge bool) []string {
	args := []string{
		"ovs-vsctl", "--no-wait", "init", "--", "set", "Open_vSwitch", ".",
		"external_ids:system-id=" + strconv.Quote(cfg.SystemID), "external_ids:hostname=" + strconv.Quote(cfg.Name),
	}
	if n.datapath == "netdev" {
		// Otherwise ovn-controller creates a br-int that cannot work here. After the agent's
		// correction it retries within 8 s; until then, neighbor solicitations get no reply.
		args = append(args, "external_ids:ovn-bridge-datapath-type=netdev")
	}
	if n.lab.cfg.TSO && n.datapath == "netdev" {
		args = append(args, "other_config:userspace-tso-enable=true", "external_ids:hairpin-tso=true")
	}
	if !bridge {
		return args
	}
	return append(args, "--", "--may-exist", "add-br", GatewayBridge, "--", "set", "Bridge", GatewayBridge,
		"datapath_type="+n.datapath, "fail_mode=standalone", "other_config:hwaddr="+strconv.Quote(mac),
		"--", "--may-exist", "add-port", GatewayBridge, "eth0")
}

// setUpUplink sets eth0 up as a bridge's port: without addresses, not even link-local ones.
func setUpUplink() error {
	if err := setSysctl("net/ipv6/conf/eth0/disable_ipv6", "1"); err != nil {
		return err
	}
	link, err := netlink.LinkByName("eth0")
	if err != nil {
		return fmt.Errorf("find eth0: %w", err)
	}
	return netlink.LinkSetUp(link)
}

// Together calls all functions at once and returns all their errors.
func Together(all ...func() error) error {
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, f := range all {
		wg.Go(func() { errs[i] = f() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// chooseDatapath resolves "auto".
func chooseDatapath(want string) (string, error) {
	switch want {
	case "netdev", "system":
		return want, nil
	case "", "auto":
	default:
		return "", fmt.Errorf("%q is not a datapath type", want)
	}
	if _, err := netlink.GenlFamilyGet("ovs_datapath"); err == nil {
		return "system", nil
	}
	return "netdev", nil
}

// Datapath is the datapath type of br-ex: "netdev" or "system".
func (n *Node) Datapath() string { return n.datapath }

// Path returns the path of a node's file or socket on the machine, which is valid while the node
// runs. The path in the node must be absolute and should have no symbolic link in it (write /run,
// not /var/run): the machine would follow it from its own root.
func (n *Node) Path(inNode string) string {
	return fmt.Sprintf("/proc/%d/root%s", n.holder.PID, filepath.Clean(inNode))
}

// Argv returns the command line that runs a command in the node.
func (n *Node) Argv(args ...string) []string {
	argv := []string{"nsenter", "--target", strconv.Itoa(n.holder.PID), "--mount", "--uts", "--net", "--pid"}
	if n.disk != "" {
		argv = append(argv, "--cgroup")
	}
	return append(append(argv, "--"), args...)
}

// Command prepares a command in the node. It ends with the node, and with ctx.
func (n *Node) Command(ctx context.Context, args ...string) *exec.Cmd {
	return enter(ctx, n.Argv(args...))
}

// WriteFile writes a file of the node, with its directories.
func (n *Node) WriteFile(inNode, content string) error {
	path := n.Path(inNode)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("%s: write file: %w", n.name, err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		return fmt.Errorf("%s: write file: %w", n.name, err)
	}
	return nil
}

// Exec runs a command in the node and returns its standard output. The error of a failed command
// has the end of its standard error.
func (n *Node) Exec(ctx context.Context, args ...string) (string, error) {
	return output(n.name, n.Command(ctx, args...), args)
}

// ExecInput is Exec with a standard input.
func (n *Node) ExecInput(ctx context.Context, input string, args ...string) (string, error) {
	cmd := n.Command(ctx, args...)
	cmd.Stdin = strings.NewReader(input)
	return output(n.name, cmd, args)
}

// WaitFor runs a command until it succeeds and ok accepts its standard output. The error after
// timeout has the last output or error.
func (n *Node) WaitFor(ctx context.Context, timeout time.Duration, ok func(stdout string) bool, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	last := "nothing"
	for {
		begin := time.Now()
		out, err := n.Exec(ctx, args...)
		switch {
		case err == nil && ok(out):
			return nil
		case err == nil:
			last = out
		case ctx.Err() == nil:
			last = strings.TrimSpace(err.Error() + "\n" + out)
		}
		// Leave most of the CPU to what is waited for, also when the command takes seconds.
		pause := max(20*time.Millisecond, 2*time.Since(begin))
		if pause > 2*time.Second {
			pause *= 3
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: wait for %s: %w; last: %s", n.name, strings.Join(args, " "), ctx.Err(), last)
		case <-time.After(pause):
		}
	}
}
