package agent

import (
	"context"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"hairpin/apply/notice"
	"hairpin/claims"
)

// keepHostPorts restores host ports of pods when another program has removed rules of the plugin portmap.
func (a *agent) keepHostPorts(ctx context.Context) {
	l, err := notice.Listen(notice.Config{
		Protocol: unix.NETLINK_NETFILTER, Groups: []int{unix.NFNLGRP_NFTABLES}, Relevant: removesHostPorts,
	})
	if err != nil {
		a.log.Warn("host ports that are lost are not restored", "error", err)
		return
	}
	defer l.Close()
	a.cni.KeepHostPorts(ctx, l.Changed())
}

// removesHostPorts reports whether something of portmap's tables was removed.
func removesHostPorts(m syscall.NetlinkMessage) bool {
	removals := []uint16{unix.NFT_MSG_DELTABLE, unix.NFT_MSG_DELCHAIN, unix.NFT_MSG_DELRULE}
	if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || !slices.Contains(removals, m.Header.Type&0xff) || len(m.Data) < nl.SizeofNfgenmsg {
		return false
	}
	attrs, err := nl.ParseRouteAttr(m.Data[nl.SizeofNfgenmsg:])
	// In all three, attribute 1 is the table's name.
	return err != nil || len(attrs) > 0 && nl.BytesToString(attrs[0].Value) == claims.PortmapTable
}
