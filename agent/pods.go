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
	"hairpin/apply/notice"
	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/cni"
	"hairpin/datapath"
	"hairpin/ovsdb"
	"hairpin/retry"
)

// podSide is the agent's half of the CNI plugin and what it needs of the loop: interfaces compared
// with Open vSwitch, ports on the bridge of the engine, flows that lead to them.
type podSide struct {
	log   *slog.Logger
	inbox *inbox
	ovs   *ovsdb.Client
	cni   *cni.Server
	reach *reach
	aside worker

	swept   bool      // interfaces have been compared with Open vSwitch, or that hangs
	sweeps  time.Time // since when that is tried
	settled bool      // OVN's flows are in the switch, or ports need not wait for them
	settles time.Time // since when they do
	waiting bool      // the last pass left out flows of pods whose ports are not there yet
}

func newPodSide(node string, ovs *ovsdb.Client, b *inbox, aside worker, log *slog.Logger) *podSide {
	s := cni.NewServer(ovs, node, log)
	return &podSide{log: log, inbox: b, ovs: ovs, cni: s, reach: newReach(s.Reached), aside: aside}
}

func (p *podSide) start(ctx context.Context, sync func(context.Context) error, start func(func())) {
	start(func() { follow(ctx, p.inbox, p.cni.Changed(), func(m *events, _ struct{}) { m.news = true }) })
	start(func() { p.keepHostPorts(ctx) })
	start(func() { p.reach.run(ctx, sync) })
}

// sweepTime is how long the comparison of interfaces may hold up everything else, at the start.
const sweepTime = time.Second

// sweep compares pods' interfaces with Open vSwitch. It returns when to call it again.
func (p *podSide) sweep(ctx context.Context) time.Duration {
	if !p.ovs.Synced() || !p.cni.NeedsSweep() {
		return 0
	}
	if p.sweeps.IsZero() {
		p.sweeps = time.Now()
	}
	p.aside.do(ctx, p.cni.Sweep, func(err error) {
		if err != nil {
			p.log.Warn("compare pod interfaces with Open vSwitch", "error", err)
		} else {
			p.swept = true
		}
	})
	hangs := time.Since(p.sweeps) > sweepTime
	p.swept = p.swept || hangs && p.aside.Busy()
	switch {
	case !p.cni.NeedsSweep():
		return 0
	case hangs:
		return retry.Last
	}
	return sweepTime / 10
}

// settling is how long OVN may take, at the agent's start, before pods' ports move all the same.
const settling = 15 * time.Second

// settle waits with everything until OVN's flows are in the switch, if pods' ports are to move at
// the agent's start. An ovn-controller that started beside the agent leaves the former flows for
// five seconds, and they lead to where the ports were. It returns when to call it again.
func (p *podSide) settle(ctx context.Context, restarting bool, sync func(context.Context) error) time.Duration {
	if p.settled || !p.ovs.Synced() {
		return 0
	}
	if p.settles.IsZero() {
		p.settles = time.Now()
	}
	if !p.cni.Astray() || restarting || time.Since(p.settles) > settling {
		p.settled = true
		return 0
	}
	p.aside.do(ctx, sync, func(err error) { p.settled = p.settled || err == nil })
	return retry.Last / 10
}

// move moves pods' ports that are on another bridge than OVN takes them to be, as when another
// program moved them. It returns when to call it again.
func (p *podSide) move(ctx context.Context) time.Duration {
	if !p.cni.Astray() {
		return 0
	}
	p.aside.do(ctx, p.cni.Move, func(err error) {
		if err != nil {
			p.log.Warn("move ports of pods", "error", err)
		}
	})
	return retry.Last / 10
}

// noteReach records what the last pass has done for the planned pods. It returns the errors that
// concern others: a port of a pod that is not there yet, or cannot be opened, does not. And whether
// OVN is in order.
func (p *podSide) noteReach(status []apply.Status, pods []*cluster.Pod, openFlow bool) (err error, inOVN bool) {
	var errs []error
	var missing []string // devices
	written, inOVN := true, true
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
	if openFlow {
		written = written && !slices.Contains(missing, claims.ServiceBridge)
		p.reach.note(pods, func(port string) bool { return written && !slices.Contains(missing, port) }, inOVN)
	}
	return errors.Join(errs...), inOVN
}

// keepHostPorts restores host ports of pods when another program has removed rules of the plugin
// portmap.
func (p *podSide) keepHostPorts(ctx context.Context) {
	l, err := notice.Listen(notice.Config{
		Protocol: unix.NETLINK_NETFILTER, Groups: []int{unix.NFNLGRP_NFTABLES}, Relevant: removesHostPorts,
	})
	if err != nil {
		p.log.Warn("host ports that are lost are not restored", "error", err)
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
