package agent

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"hairpin/apply"
	"hairpin/apply/late"
	"hairpin/apply/notice"
	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/cni"
	"hairpin/datapath"
	"hairpin/ovsdb"
	"hairpin/retry"
)

// podHandler has the CNI server, and the steps of a round for pods: compare interfaces with Open
// vSwitch, move ports to the engine's bridge, record which pods are reachable.
type podHandler struct {
	log        *slog.Logger
	inbox      *inbox
	ovs        *ovsdb.Client
	cni        *cni.Server
	reach      *podReach
	background late.Worker

	compared  bool      // interfaces have been compared with Open vSwitch, or the comparison hangs
	comparing time.Time // when the comparison was tried first
	ovnReady  bool      // OVN's flows are in the switch, or ports need not wait for them
	awaiting  time.Time // when the wait for OVN began
	waiting   bool      // the last pass failed only for pods' ports that are missing or cannot be opened

	compareErr, moveErr retry.LastError
}

func newPodHandler(node string, ovs *ovsdb.Client, b *inbox, background late.Worker, log *slog.Logger) *podHandler {
	s := cni.NewServer(ovs, node, log)
	return &podHandler{log: log, inbox: b, ovs: ovs, cni: s, reach: newPodReach(s.Reached), background: background}
}

func (p *podHandler) start(ctx context.Context, sync func(context.Context) error, start func(func())) {
	start(func() { follow(ctx, p.inbox, p.cni.Changed(), func(m *events, _ struct{}) { m.changed = true }) })
	start(func() { p.keepHostPorts(ctx) })
	start(func() { p.reach.run(ctx, sync) })
}

// compareLimit limits how long, at the start, the comparison of interfaces may delay everything
// else.
const compareLimit = time.Second

// compare compares pods' interfaces with Open vSwitch. It returns when to call it again.
func (p *podHandler) compare(ctx context.Context) time.Duration {
	if !p.ovs.Synced() || !p.cni.NeedsReconcile() {
		return 0
	}
	if p.comparing.IsZero() {
		p.comparing = time.Now()
	}
	p.background.Do(ctx, p.cni.Reconcile, func(err error) {
		p.compareErr.Warn(p.log, "compare pod interfaces with Open vSwitch", err)
		p.compared = p.compared || err == nil
	})
	late := time.Since(p.comparing) > compareLimit
	p.compared = p.compared || late && p.background.Busy() // it hangs
	switch {
	case !p.cni.NeedsReconcile():
		return 0
	case late:
		return retry.Last
	}
	return compareLimit / 10
}

// ovnLimit limits how long, at the agent's start, pods' ports wait for OVN before they move.
const ovnLimit = 15 * time.Second

// awaitOVN delays everything until OVN's flows are in the switch, if pods' ports are to move at the
// agent's start. An ovn-controller that starts at the same time keeps its old flows for five
// seconds, and they lead to the ports' old bridge. awaitOVN returns when to call it again.
func (p *podHandler) awaitOVN(ctx context.Context, restarting bool, sync func(context.Context) error) time.Duration {
	if p.ovnReady || !p.ovs.Synced() {
		return 0
	}
	if p.awaiting.IsZero() {
		p.awaiting = time.Now()
	}
	// A release of a restarted switch waits for OVN itself.
	if !p.cni.Misplaced() || restarting || time.Since(p.awaiting) > ovnLimit {
		p.ovnReady = true
		return 0
	}
	p.background.Do(ctx, sync, func(err error) { p.ovnReady = p.ovnReady || err == nil })
	return retry.Last / 10
}

// move moves pods' ports that are not on the bridge of the service engine, for example because
// another program moved them. It returns when to call it again.
func (p *podHandler) move(ctx context.Context) time.Duration {
	if !p.cni.Misplaced() {
		return 0
	}
	p.background.Do(ctx, p.cni.Move, func(err error) { p.moveErr.Warn(p.log, "move ports of pods", err) })
	return retry.Last / 10
}

// recordReach records the result of the last pass for the planned pods. It returns the pass's
// errors, except for ports of pods that are missing or cannot be opened. It also reports whether
// OVN is in order.
func (p *podHandler) recordReach(status []apply.Status, pods []*cluster.Pod, openFlow bool) (err error, inOVN bool) {
	var errs []error
	var missing []string         // ports without a device, or that cannot be opened
	written, inOVN := true, true // the plan is in the bridges, in OVN's database
	for _, s := range status {
		var waiting *apply.Waiting
		switch {
		case s.Err == nil:
		case s.System == datapath.Bridge.System && errors.As(s.Err, &waiting):
			missing = waiting.Devices
			if slices.ContainsFunc(missing, func(d string) bool { return !strings.HasPrefix(d, claims.PodInterface) }) {
				errs = append(errs, s.Err)
			}
		default:
			errs = append(errs, s.Err)
			written = written && s.System != datapath.Bridge.System
			inOVN = inOVN && s.System != datapath.NB.System
		}
	}
	if openFlow { // with the other engine, OVN reports which pods are reachable
		written = written && !slices.Contains(missing, claims.ServiceBridge)
		p.reach.record(pods, func(port string) bool { return written && !slices.Contains(missing, port) }, inOVN)
	}
	return errors.Join(errs...), inOVN
}

// keepHostPorts restores host ports of pods when another program has removed rules of the plugin
// portmap.
func (p *podHandler) keepHostPorts(ctx context.Context) {
	l, err := notice.Listen(notice.Config{
		Protocol: unix.NETLINK_NETFILTER, Groups: []int{unix.NFNLGRP_NFTABLES}, Relevant: removesHostPorts,
	})
	if err != nil {
		p.log.Warn("listen for removed host ports", "error", err)
		return
	}
	defer l.Close()
	p.cni.KeepHostPorts(ctx, l.Changed())
}

// removesHostPorts reports whether something of portmap's tables was removed.
func removesHostPorts(m syscall.NetlinkMessage) bool {
	removals := []uint16{unix.NFT_MSG_DELTABLE, unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_DELRULE}
	if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || !slices.Contains(removals, m.Header.Type&0xff) ||
		len(m.Data) < nl.SizeofNfgenmsg {
		return false
	}
	attrs, err := nl.ParseRouteAttr(m.Data[nl.SizeofNfgenmsg:])
	// In all three, attribute 1 is the table's name.
	return err != nil || len(attrs) > 0 && nl.BytesToString(attrs[0].Value) == claims.PortmapTable
}
