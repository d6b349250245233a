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

// devices are those that our chains of the family netdev name.
type devices struct {
	mu      sync.Mutex
	known   map[string]bool // a chain names it, or did
	waiting map[string]bool // a chain waits for it
}

// watchDevices listens to links, for the sake of kernels that know no devices by name.
func (t *Target) watchDevices() error {
	t.devices = &devices{known: map[string]bool{}, waiting: map[string]bool{}}
	var err error
	t.links, err = notice.Listen(notice.Config{
		NetNS: t.config.NetNS, Protocol: unix.NETLINK_ROUTE, Groups: []int{unix.RTNLGRP_LINK}, Lost: t.notice.Tell,
		Relevant: func(m syscall.NetlinkMessage) bool {
			if t.devices.concerned(m) {
				t.notice.Tell()
			}
			return false
		},
	})
	return err
}

// concerned reports whether a message says that a device went with its chain, or came for a chain
// that waits.
func (d *devices) concerned(m syscall.NetlinkMessage) bool {
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

// wait remembers for which devices chains were left out the last time.
func (d *devices) wait(missing map[string]bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting = missing
}

func (d *devices) see(chains map[string]*nft.Chain) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range chains {
		if c.Device != "" {
			d.known[c.Device] = true
		}
	}
}

// withoutMissing leaves out the chains whose device does not exist, and names those devices.
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
		t.devices.see(chains)
		return out
	}
	table.Chains.Add, table.Chains.Change, table.Remake = present(table.Chains.Add), present(table.Chains.Change),
		present(table.Remake)
	t.devices.wait(missing)
	tables := maps.Clone(d.Tables)
	tables[nft.Netdev] = table
	return nft.Delta{Tables: tables}, delta.Keys(missing), nil
}
