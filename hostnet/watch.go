package hostnet

import (
	"context"
	"log/slog"
	"syscall"

	"golang.org/x/sys/unix"

	"hairpin/apply/notice"
	"hairpin/retry"
)

// Watch requests a scan when links, addresses, routes or rules of the host changed, until ctx ends.
func (sc *Scanner) Watch(ctx context.Context) {
	watch(ctx, sc.notices(), sc.Request, sc.log)
}

// notices returns the notifications that the Scanner subscribes to.
func (sc *Scanner) notices() notice.Config {
	bridge, prefixes := sc.config.Cluster.Gateway.Interface, sc.ownPrefixes()
	return notice.Config{
		Protocol: unix.NETLINK_ROUTE,
		Groups: []int{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE,
			unix.RTNLGRP_IPV6_ROUTE,
			unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_NEIGH},
		Relevant: func(m syscall.NetlinkMessage) bool { // it gets every message, in order
			sc.network.notified(m, bridge, prefixes)
			return sc.changesScan(m)
		},
		Lost: func() { sc.network.resync(bridge) },
	}
}

// watch calls changed after relevant messages, until ctx ends.
func watch(ctx context.Context, config notice.Config, changed func(), log *slog.Logger) {
	var l *notice.Listener
	for backoff := (retry.Backoff{}); ; {
		var err error
		if l, err = notice.Listen(config); err == nil {
			break
		}
		if backoff.Pause() == 0 {
			log.Warn("subscribe to changes of the host; until then they are noticed late", "error", err)
		}
		backoff.Sleep(ctx)
		if ctx.Err() != nil {
			return
		}
	}
	defer l.Close()
	changed() // for changes before the subscription
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.Changed():
			changed()
		}
	}
}
