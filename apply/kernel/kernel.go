// Package kernel is the apply.Target of the kernel's network: links, addresses, routes,
// policy-routing rules, neighbours and sysctls of one network namespace, over rtnetlink.
//
// Attributes in the kernel mark what is Hairpin's: the protocol of routes (claims.RouteProtocol),
// the priority of rules, the link or range of addresses and permanent neighbours, and the protocol
// of single addresses on other links (claims.AddressProtocol). Sysctls, and the MAC and MTU of
// links, have no mark: Read returns those that are wanted, and sysctls with a recorded former
// value.
//
// Routes and OwnAddresses, for package hostnet, need no Target.
package kernel

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"hairpin/apply"
	"hairpin/apply/notice"
	"hairpin/datapath/host"
)

var _ apply.Target[host.State, host.Delta] = (*Target)(nil)

// Config describes which objects are Hairpin's.
type Config struct {
	NetNS string // path of a network namespace such as "/proc/123/ns/net"; empty = the caller's
	// Links are Hairpin's as a whole, with every global address and permanent neighbour on them.
	Links []string
	// Prefixes are Hairpin's on every link, such as the masquerade subnets.
	Prefixes []netip.Prefix
	// Wanted returns the State that is wanted now. It is called from several goroutines, at every
	// Read and for every event; nil = nothing is wanted.
	Wanted func() host.State
	// Former is a file with the former values of sysctls, from which any Target restores those that
	// are no longer wanted; empty = they are not restored.
	Former string
}

// Target is the network of one namespace.
type Target struct {
	config  Config
	notice  *notice.Listener
	links   *netlink.Handle
	socket  *nl.SocketHandle
	indexes atomic.Pointer[map[int]bool] // of the relevant links, at the last Read
	stop    context.CancelFunc
	tasks   sync.WaitGroup

	mu sync.Mutex // one Apply at a time
}

// timeout limits the wait for one reply of the kernel, which is normally immediate.
const timeout = 10 // seconds

// New returns a Target and starts to listen.
func New(c Config) (*Target, error) {
	if c.Wanted == nil {
		c.Wanted = func() host.State { return host.State{} }
	}
	t := &Target{config: c}
	ns := netns.None()
	if c.NetNS != "" {
		var err error
		if ns, err = netns.GetFromPath(c.NetNS); err != nil {
			return nil, fmt.Errorf("network namespace %s: %w", c.NetNS, err)
		}
		defer func() { _ = ns.Close() }()
	}
	s, err := nl.GetNetlinkSocketAt(ns, netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	t.socket = &nl.SocketHandle{Socket: s}
	// Strict checks make the kernel filter its lists: there may be a million foreign routes.
	err = unix.SetsockoptInt(s.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	if err == nil {
		err = s.SetReceiveTimeout(&unix.Timeval{Sec: timeout})
	}
	if err == nil {
		err = s.SetExtAck(true)
	}
	if err == nil {
		t.links, err = netlink.NewHandleAt(ns, unix.NETLINK_ROUTE)
	}
	if err == nil {
		t.notice, err = t.listen()
	}
	if err != nil {
		t.closeSockets()
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	t.stop = stop
	t.tasks.Go(func() { t.watchSysctls(ctx) })
	return t, nil
}

// Close stops listening.
func (t *Target) Close() {
	t.stop()
	t.tasks.Wait()
	t.notice.Close()
	t.closeSockets()
}

func (t *Target) closeSockets() {
	t.socket.Close()
	if t.links != nil {
		t.links.Close()
	}
}

// Changed signals changes: of links, addresses, routes, rules and permanent neighbours at once, of
// wanted sysctls within a second.
func (t *Target) Changed() <-chan struct{} { return t.notice.Changed() }

// ours reports whether an address on a link is Hairpin's by Config.
func (c *Config) ours(link string, a netip.Addr) bool {
	return slices.Contains(c.Links, link) ||
		slices.ContainsFunc(c.Prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

// kernelMade reports whether the kernel itself adds such addresses.
func kernelMade(a netip.Addr) bool {
	return a.IsLinkLocalUnicast() && a.Is6() || a.IsMulticast() || a.IsLoopback()
}
