package hostnet

import (
	"context"
	"log/slog"
	"syscall"

	"golang.org/x/sys/unix"

	"hairpin/apply/notice"
	"hairpin/retry"
)

// Watch calls changed, from one goroutine, when links, addresses, routes or rules of the host changed, until ctx ends.
func Watch(ctx context.Context, changed func(), log *slog.Logger) {
	var l *notice.Listener
	for p := (retry.Pace{}); ; {
		var err error
		l, err = notice.Listen(notice.Config{
			Protocol: unix.NETLINK_ROUTE, Relevant: func(syscall.NetlinkMessage) bool { return true },
			Groups: []int{unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE,
				unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE},
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
