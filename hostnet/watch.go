package hostnet

import (
	"context"
	"log/slog"
	"syscall"

	"golang.org/x/sys/unix"

	"hairpin/apply/notice"
	"hairpin/retry"
)

// Watch asks for a look when links, addresses, routes or rules of the host changed, until ctx ends.
func (l *Looker) Watch(ctx context.Context) {
	prefixes := l.prefixes()
	relevant := func(m syscall.NetlinkMessage) bool {
		l.network.note(m, l.config.Cluster.Gateway.Interface, prefixes)
		return l.relevant(m)
	}
	watch(ctx, relevant, l.Want, l.log)
}

// watch calls changed, from one goroutine, when there were relevant messages, until ctx ends.
func watch(ctx context.Context, relevant func(syscall.NetlinkMessage) bool, changed func(), log *slog.Logger) {
	var l *notice.Listener
	for p := (retry.Pace{}); ; {
		var err error
		l, err = notice.Listen(notice.Config{
			Protocol: unix.NETLINK_ROUTE, Relevant: relevant,
			Groups: []int{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
				unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_NEIGH},
		})
		if err == nil {
			break
		}
		if p.Pause == 0 {
			log.Warn("host changes may be noticed late", "error", err)
		}
		p.Wait(ctx)
		if ctx.Err() != nil {
			return
		}
	}
	defer l.Close()
	changed() // what was before
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.Changed():
			changed()
		}
	}
}
