package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hairpin/apply/kernel"
	"hairpin/apply/redirect"
	"hairpin/claims"
	"hairpin/config"
	"hairpin/datapath/host"
	"hairpin/datapath/nft"
	"hairpin/datapath/ovs"
	redirected "hairpin/datapath/redirect"
	"hairpin/hostnet"
	"hairpin/hostnet/uplink"
	"hairpin/netdev"
	"hairpin/ovsdb"
	"hairpin/targets"
)

// CleanupOptions has the locations of Hairpin's files on a node, as the cleanup process sees them.
type CleanupOptions struct {
	Installation
	StateDir string // folder of the databases
	// Stay keeps the process and its lock until ctx ends, so that no agent starts on the node.
	Stay bool
}

// cleanup is one run of Cleanup. It collects errors; later steps still run.
type cleanup struct {
	config config.Config
	out    io.Writer
	log    *slog.Logger
	ovs    *ovsdb.Client
	errs   []error
}

// daemonTimeout is how long a daemon may take to answer during a cleanup.
const daemonTimeout = 10 * time.Second

// Cleanup removes Hairpin from this node, and returns the network to the uplink. It waits until the
// agent has ended. Without running daemons, it does what is possible, and the error lists the rest;
// it may be called again. A bridge that another program made stays, without Hairpin's flows. Pods
// that still run lose their network.
func Cleanup(ctx context.Context, c config.Config, o CleanupOptions, out io.Writer, log *slog.Logger) error {
	release, err := targets.StandBy(ctx, c, log)
	if err != nil {
		return err
	}
	defer release()
	k := &cleanup{config: c, out: out, log: log}
	if k.ovs, err = targets.OpenOVS(c, log); err != nil {
		return err
	}
	defer k.ovs.Close()
	k.report("CNI plugin and configuration", Uninstall(o.Installation))
	k.report("eBPF programs", k.redirectPrograms(ctx))
	k.network(ctx)
	k.podLinks()
	k.files(o)
	if err := errors.Join(k.errs...); err != nil {
		return fmt.Errorf("not everything could be removed:\n%w", err)
	}
	fmt.Fprintln(out, "this node is as it was before Hairpin")
	if o.Stay {
		<-ctx.Done()
	}
	return nil
}

func (k *cleanup) print(format string, args ...any) { fmt.Fprintf(k.out, format+"\n", args...) }

// report records an error, or prints what was removed.
func (k *cleanup) report(what string, err error) {
	if err != nil {
		k.errs = append(k.errs, fmt.Errorf("%s: %w", what, err))
		return
	}
	k.print("removed: %s", what)
}

// reportCommands prints the commands of a change, and reports it.
func (k *cleanup) reportCommands(what string, commands []string, err error) {
	for _, c := range commands {
		k.print("%s", c)
	}
	k.report(what, err)
}

// redirectPrograms detaches the eBPF programs that redirect packets to the gateway bridge. The
// bridge's flows are removed next.
func (k *cleanup) redirectPrograms(ctx context.Context) error {
	t, err := redirect.New(redirect.Config{})
	if err != nil {
		return err
	}
	defer t.Close()
	have, err := t.Read(ctx)
	if err != nil {
		return err
	}
	return t.Apply(ctx, redirected.Diff(redirected.State{}, have))
}

// network removes Hairpin's flows, nft tables, routes, sysctls and bridges, in this order, and then
// returns the machine's network to the uplink. Without Open vSwitch, it removes what the kernel
// has, unless bridges still forward by it.
func (k *cleanup) network(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 4*daemonTimeout)
	defer cancel()
	t, err := targets.Open(k.config, k.log)
	if err != nil {
		k.report("network", err)
		return
	}
	defer t.Close()
	connecting, stop := context.WithTimeout(ctx, daemonTimeout)
	defer stop()
	err = k.ovs.WaitFor(connecting, func(ovsdb.View) bool { return k.ovs.Connected() })
	switch {
	case err == nil:
		k.flows(ctx, t)
		k.kernelState(ctx, t)
		k.bridges(ctx)
	case k.kernelHasBridges():
		k.report("bridges of Open vSwitch (start the container ovs and try again)", err)
		k.sysctls()
	default:
		k.print("Open vSwitch does not run, and has left no bridge in the kernel")
		k.kernelState(ctx, t)
	}
}

// flows removes what Hairpin has on the gateway bridge, which then forwards as a plain switch.
func (k *cleanup) flows(ctx context.Context, t *targets.Set) {
	ctx, stop := context.WithTimeout(ctx, daemonTimeout)
	defer stop()
	k.report("flow-restore-wait", t.Bridge.StopWaiting(ctx))
	bridge := k.config.Cluster.Gateway.Interface
	if ovsdb.BridgeNamed(k.ovs.View(), bridge) == nil {
		return
	}
	have, err := t.Bridge.Read(ctx)
	if err == nil {
		err = t.Bridge.Apply(ctx, ovs.Diff(ovs.State{Bridge: bridge}, have))
	}
	k.report("flows, ports and settings of Open vSwitch", err)
}

// kernelState removes Hairpin's sysctls, nft tables, routes, rules and addresses.
func (k *cleanup) kernelState(ctx context.Context, t *targets.Set) {
	ctx, stop := context.WithTimeout(ctx, daemonTimeout)
	defer stop()
	k.sysctls() // before nft: some of them are safe only with the nft rules
	tables, err := t.NFT.Read(ctx)
	if err == nil {
		err = t.NFT.Apply(ctx, nft.Diff(nft.State{}, tables))
	}
	k.report("nft tables", err)
	have, err := t.Host.Read(ctx)
	if err == nil {
		err = t.Host.Apply(ctx, host.Diff(host.State{}, have))
	}
	k.report("routes, rules, addresses and neighbors", err)
}

func (k *cleanup) sysctls() {
	k.report("sysctls", kernel.RestoreSysctls(targets.FormerSysctls(k.config)))
}

// bridges removes Hairpin's bridges, and returns the machine's network to the uplink.
func (k *cleanup) bridges(ctx context.Context) {
	k.report("records on the gateway bridge", hostnet.ForgetNetwork(ctx, k.ovs, k.config.Cluster))
	did, err := uplink.GiveBack(ctx, k.ovs, hostnet.UplinkConfig(k.config))
	k.reportCommands("uplink and gateway bridge", did, err)
	did, err = hostnet.LeaveDetached(ctx, k.ovs, k.config.Cluster)
	k.reportCommands("bridges of mode detached", did, err)
	did, err = hostnet.LeaveNodeLocal(ctx, k.ovs)
	k.reportCommands("bridge "+claims.LocalBridge, did, err)
	k.report("bridge "+claims.IntegrationBridge, k.removeOVN(ctx))
}

// removeOVN removes from Open vSwitch OVN's bridge with the pods' ports, OVN's ports of other
// bridges, and the keys of Hairpin and OVN. It waits for ovs-vswitchd.
func (k *cleanup) removeOVN(ctx context.Context) error {
	row := ovsdb.First[ovsdb.OpenVSwitch](k.ovs.View())
	if row == nil {
		return nil
	}
	ops := []ovsdb.Op{ovsdb.Mutate("Open_vSwitch", ovsdb.Add("next_cfg", 1)).All()}
	for column, all := range map[string]map[string]string{"external_ids": row.ExternalIDs,
		"other_config": row.OtherConfig} {
		var keys []string
		for key := range all {
			if strings.HasPrefix(key, "hairpin-") || strings.HasPrefix(key, "ovn-") {
				keys = append(keys, key)
			}
		}
		if len(keys) > 0 {
			ops = append(ops, ovsdb.Mutate("Open_vSwitch", ovsdb.DeleteFrom(column, keys)).All())
		}
	}
	if b := ovsdb.BridgeNamed(k.ovs.View(), claims.IntegrationBridge); b != nil {
		ops = append(ops, ovsdb.Mutate("Open_vSwitch", ovsdb.DeleteFrom("bridges", b.UUID)).All())
	}
	ops = append(ops, removePatchPorts(k.ovs.View())...)
	if _, err := k.ovs.Transact(ctx, ops...); err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(ctx, daemonTimeout)
	defer stop()
	return k.ovs.WaitFor(ctx, func(v ovsdb.View) bool {
		now := ovsdb.First[ovsdb.OpenVSwitch](v)
		return now != nil && now.CurCfg > row.NextCfg
	})
}

// removePatchPorts returns operations that remove ovn-controller's ports from other bridges.
func removePatchPorts(v ovsdb.View) (ops []ovsdb.Op) {
	for p := range ovsdb.Rows[ovsdb.Port](v) {
		if _, localnet := p.ExternalIDs["ovn-localnet-port"]; localnet {
			ops = append(ops, ovsdb.Mutate("Bridge", ovsdb.DeleteFrom("ports", p.UUID)).All())
		}
	}
	return ops
}

// kernelHasBridges reports whether the kernel has a datapath of Open vSwitch, or the device of a
// bridge.
func (k *cleanup) kernelHasBridges() bool {
	for _, name := range []string{k.config.Cluster.Gateway.Interface, claims.IntegrationBridge, "ovs-system",
		"ovs-netdev"} {
		if _, err := netlink.LinkByName(name); err == nil {
			return true
		}
	}
	return false
}

// podLinks removes the pods' links, which does not need Open vSwitch.
func (k *cleanup) podLinks() {
	links, err := netdev.List(netlink.LinkList)
	if err != nil {
		k.report("links of pods", err)
		return
	}
	for _, l := range links {
		name := l.Attrs().Name
		if l.Type() == "veth" && strings.HasPrefix(name, claims.PodInterface) {
			k.report("link "+name, ignore(netlink.LinkDel(l), unix.ENODEV))
		}
	}
}

// ignore returns nil in place of an error that is ignored.
func ignore(err, ignored error) error {
	if errors.Is(err, ignored) {
		return nil
	}
	return err
}
