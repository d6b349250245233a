package knft

import (
	"fmt"
	"maps"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"hairpin/apply/inside"
	"hairpin/apply/notice"
	"hairpin/datapath/nft"
	"hairpin/delta"
	"hairpin/netdev"
)

// devices holds the devices of Hairpin's netdev chains.
type devices struct {
	mu      sync.Mutex
	known   map[string]bool // a chain refers to it, or did
	waiting map[string]bool // a chain waits for it
}

// watchDevices monitors links, for kernels whose netdev chains need an existing device.
func (t *Target) watchDevices() error {
	t.devices = &devices{known: map[string]bool{}, waiting: map[string]bool{}}
	var err error
	t.links, err = notice.Listen(notice.Config{
		NetNS: t.config.NetNS, Protocol: unix.NETLINK_ROUTE, Groups: []int{unix.RTNLGRP_LINK}, Lost: t.notice.Notify,
		Relevant: func(m syscall.NetlinkMessage) bool {
			if t.devices.relevant(m) {
				t.notice.Notify()
			}
			return false // Changed is that of t.notice
		},
	})
	return err
}

// relevant reports whether a message says that the device of a chain was removed, or that one
// appeared for which a chain waits.
func (d *devices) relevant(m syscall.NetlinkMessage) bool {
	if m.Header.Type != unix.RTM_NEWLINK && m.Header.Type != unix.RTM_DELLINK || len(m.Data) < unix.SizeofIfInfomsg {
		return false
	}
	attrs, err := nl.ParseRouteAttr(m.Data[unix.SizeofIfInfomsg:])
	if err != nil {
		return true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range attrs {
		if a.Attr.Type == unix.IFLA_IFNAME {
			name := nl.BytesToString(a.Value)
			return d.waiting[name] || m.Header.Type == unix.RTM_DELLINK && d.known[name]
		}
	}
	return false
}

// setWaiting records the devices for which chains were omitted.
func (d *devices) setWaiting(missing map[string]bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting = missing
}

// addKnown records the devices of chains.
func (d *devices) addKnown(chains map[string]*nft.Chain) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range chains {
		if c.Device != "" {
			d.known[c.Device] = true
		}
	}
}

// withoutMissing leaves out the chains whose device does not exist, and returns those devices.
func (t *Target) withoutMissing(d nft.Delta) (nft.Delta, []string, error) {
	table, found := d.Tables[nft.Netdev]
	if !found {
		return d, nil, nil
	}
	links := map[string]bool{}
	err := inside.Do(t.config.NetNS, func() error {
		list, err := netdev.List(netlink.LinkList)
		for _, l := range list {
			links[l.Attrs().Name] = true
		}
		return err
	})
	if err != nil {
		return d, nil, fmt.Errorf("links: %w", err)
	}
	missing := map[string]bool{}
	present := func(chains map[string]*nft.Chain) map[string]*nft.Chain {
		out := map[string]*nft.Chain{}
		for name, c := range chains {
			if c.Device == "" || links[c.Device] {
				out[name] = c
			} else {
				missing[c.Device] = true
			}
		}
		t.devices.addKnown(chains)
		return out
	}
	table.Chains.Add, table.Chains.Change, table.Recreate = present(table.Chains.Add), present(table.Chains.Change),
		present(table.Recreate)
	t.devices.setWaiting(missing)
	tables := maps.Clone(d.Tables)
	tables[nft.Netdev] = table
	return nft.Delta{Tables: tables}, delta.Keys(missing), nil
}
