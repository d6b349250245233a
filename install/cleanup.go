package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
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

// Remains has the locations of Hairpin's files on a node, as the cleanup process sees them.
type Remains struct {
	Installation
	State string // folder of the databases
	// Stay keeps the process and its lock until ctx ends, so that no agent starts on the node.
	Stay bool
}

// cleaning is one run of Cleanup. It collects errors; later steps still run.
type cleaning struct {
	config config.Config
	out    io.Writer
	log    *slog.Logger
	ovs    *ovsdb.Client
	errs   []error
}

// patienceWith is how long a daemon may take to answer during a cleanup.
const patienceWith = 10 * time.Second

// Cleanup removes Hairpin from this node, and returns the network to the uplink. It waits until the
// agent has ended. Without running daemons, it does what is possible, and the error lists the rest;
// it may be called again. A bridge that another program made stays, without Hairpin's flows. Pods
// that still run lose their network.
func Cleanup(ctx context.Context, c config.Config, what Remains, out io.Writer, log *slog.Logger) error {
	release, err := targets.StandBy(ctx, c, log)
	if err != nil {
		return err
	}
	defer release()
	k := &cleaning{config: c, out: out, log: log}
	if k.ovs, err = targets.OpenOVS(c, log); err != nil {
		return err
	}
	defer k.ovs.Close()
	k.try("CNI plugin and configuration", Uninstall(what.Installation))
	k.try("eBPF programs", k.programs(ctx))
	k.switches(ctx)
	k.try("sysctls", kernel.RestoreSysctls(targets.FormerSysctls(c)))
	k.kernel(ctx)
	k.files(what)
	if err := errors.Join(k.errs...); err != nil {
		return fmt.Errorf("not everything could be removed:\n%w", err)
	}
	fmt.Fprintln(out, "this node is as it was before Hairpin")
	if what.Stay {
		<-ctx.Done()
	}
	return nil
}

func (k *cleaning) did(format string, args ...any) { fmt.Fprintf(k.out, format+"\n", args...) }

// try records an error, or prints what was removed.
func (k *cleaning) try(what string, err error) bool {
	if err != nil {
		k.errs = append(k.errs, fmt.Errorf("%s: %w", what, err))
		return false
	}
	k.did("removed: %s", what)
	return true
}

// programs detaches the eBPF programs that redirect packets to the gateway bridge, whose flows are
// removed next.
func (k *cleaning) programs(ctx context.Context) error {
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

// switches cleans up Open vSwitch and returns the machine's network to the uplink.
func (k *cleaning) switches(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 3*patienceWith)
	defer cancel()
	soon, stop := context.WithTimeout(ctx, patienceWith)
	defer stop()
	if err := k.ovs.WaitFor(soon, func(ovsdb.View) bool { return k.ovs.Connected() }); err != nil {
		if k.withoutSwitch() {
			k.did("Open vSwitch does not run, and has left nothing in the kernel")
			return
		}
		k.try("bridges of Open vSwitch (start the container ovs and try again)", err)
		return
	}
	t, err := targets.Open(k.config, k.log)
	if err != nil {
		k.try("flows", err)
		return
	}
	defer t.Close()
	soon, stop = context.WithTimeout(ctx, patienceWith)
	defer stop()
	// Until here Open vSwitch forwards by Hairpin's flows; from here on as a plain switch.
	k.try("flow-restore-wait", t.Bridge.StopWaiting(soon))
	if len(bridgesNamed(k.ovs.View(), k.config.Cluster.Gateway.Interface)) > 0 {
		have, err := t.Bridge.Read(soon)
		if err == nil {
			err = t.Bridge.Apply(soon, ovs.Diff(ovs.State{Bridge: k.config.Cluster.Gateway.Interface}, have))
		}
		k.try("flows, ports and settings of Open vSwitch", err)
	}
	// Sysctls come first: the nft rules, removed next, make some of them safe.
	k.try("sysctls", kernel.RestoreSysctls(targets.FormerSysctls(k.config)))
	have, err := t.NFT.Read(soon)
	if err == nil {
		err = t.NFT.Apply(soon, nft.Diff(nft.State{}, have))
	}
	k.try("nft tables", err)
	found, err := t.Host.Read(soon)
	if err == nil {
		err = t.Host.Apply(soon, host.Diff(host.State{}, found))
	}
	k.try("routes, rules, addresses and neighbours", err)
	k.try("notes on the gateway bridge", hostnet.ForgetNetwork(ctx, k.ovs, k.config.Cluster))
	did, err := uplink.GiveBack(ctx, k.ovs, hostnet.UplinkConfig(k.config))
	for _, d := range did {
		k.did("%s", d)
	}
	k.try("uplink and gateway bridge", err)
	gone, err := hostnet.LeaveDetached(ctx, k.ovs, k.config.Cluster)
	for _, d := range gone {
		k.did("%s", d)
	}
	k.try("bridges of mode detached", err)
	gone, err = hostnet.LeaveNodeLocal(ctx, k.ovs)
	for _, d := range gone {
		k.did("%s", d)
	}
	k.try("bridge "+claims.LocalBridge, err)
	k.try("bridge "+claims.IntegrationBridge, k.integrationBridge(ctx))
}

func bridgesNamed(v ovsdb.View, name string) (list []ovsdb.UUID) {
	for b := range ovsdb.Rows[ovsdb.Bridge](v) {
		if b.Name == name {
			list = append(list, b.UUID)
		}
	}
	return list
}

// integrationBridge deletes OVN's bridge with the pods' ports, and the keys of Hairpin and OVN, and
// waits for Open vSwitch.
func (k *cleaning) integrationBridge(ctx context.Context) error {
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
	for _, id := range bridgesNamed(k.ovs.View(), claims.IntegrationBridge) {
		ops = append(ops, ovsdb.Mutate("Open_vSwitch", ovsdb.DeleteFrom("bridges", id)).All())
	}
	ops = append(ops, patchPorts(k.ovs.View())...)
	if _, err := k.ovs.Transact(ctx, ops...); err != nil {
		return err
	}
	soon, stop := context.WithTimeout(ctx, patienceWith)
	defer stop()
	return k.ovs.WaitFor(soon, func(v ovsdb.View) bool {
		now := ovsdb.First[ovsdb.OpenVSwitch](v)
		return now != nil && now.CurCfg > row.NextCfg
	})
}

// patchPorts returns operations that remove ovn-controller's ports from other bridges.
func patchPorts(v ovsdb.View) (ops []ovsdb.Op) {
	for p := range ovsdb.Rows[ovsdb.Port](v) {
		if _, localnet := p.ExternalIDs["ovn-localnet-port"]; localnet {
			ops = append(ops, ovsdb.Mutate("Bridge", ovsdb.DeleteFrom("ports", p.UUID)).All())
		}
	}
	return ops
}

// withoutSwitch reports whether Open vSwitch has no device in the kernel.
func (k *cleaning) withoutSwitch() bool {
	for _, name := range []string{k.config.Cluster.Gateway.Interface, claims.IntegrationBridge, "ovs-system",
		"ovs-netdev"} {
		if _, err := netlink.LinkByName(name); err == nil {
			return false
		}
	}
	return true
}

// kernel removes the pods' links, which does not need Open vSwitch.
func (k *cleaning) kernel(ctx context.Context) {
	links, err := netdev.List(netlink.LinkList)
	if err != nil {
		k.try("links of pods", err)
		return
	}
	for _, l := range links {
		name := l.Attrs().Name
		if l.Type() == "veth" && strings.HasPrefix(name, claims.PodInterface) {
			k.try("link "+name, ignore(netlink.LinkDel(l), unix.ENODEV))
		}
	}
}

func ignore(err error, which error) error {
	if errors.Is(err, which) {
		return nil
	}
	return err
}

// serves reports whether a daemon listens on a socket in a folder.
func serves(dir string) bool {
	sockets, _ := filepath.Glob(filepath.Join(dir, "*.sock")) // the pattern is good
	for _, s := range sockets {
		if c, err := net.Dial("unix", s); err == nil {
			_ = c.Close()
			return true
		}
	}
	return false
}

// locked reports whether a process holds a lock.
func locked(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	return targets.Flock(f, unix.LOCK_EX|unix.LOCK_NB) != nil
}
