package cni

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hairpin/netdev"
)

// openSandbox opens the network namespace of a sandbox. It must not be the node's own.
func openSandbox(path string) (ns.NetNS, *types.Error) {
	own, err := ns.GetCurrentNS()
	if err != nil {
		return nil, errInternal("the node's network namespace", err)
	}
	defer own.Close()
	sandbox, err := ns.GetNS(path)
	if err != nil {
		return nil, errInvalidEnv("CNI_NETNS: %v", err)
	}
	var a, b unix.Stat_t
	if err := errors.Join(unix.Fstat(int(own.Fd()), &a), unix.Fstat(int(sandbox.Fd()), &b)); err != nil {
		return nil, errInternal("CNI_NETNS "+path, errors.Join(err, sandbox.Close()))
	}
	if a.Dev == b.Dev && a.Ino == b.Ino {
		_ = sandbox.Close()
		return nil, types.NewError(types.ErrInvalidNetNS, "CNI_NETNS "+path+" is the node's own network namespace", "")
	}
	return sandbox, nil
}

// unplugFrom removes the veth pair of an interface of the sandbox, if this package made the pair.
// It is for an attachment whose rows were removed by hand.
func unplugFrom(sandbox ns.NetNS, ifName string) error {
	var inside netlink.Link
	err := sandbox.Do(func(ns.NetNS) (err error) {
		inside, err = netlink.LinkByName(ifName)
		return err
	})
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s in the sandbox: %w", ifName, err)
	}
	id, err := netlink.GetNetNsIdByFd(int(sandbox.Fd()))
	if err != nil {
		return fmt.Errorf("id of the sandbox: %w", err)
	}
	links, err := netdev.List(netlink.LinkList)
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		a := l.Attrs()
		if isHostEnd(l) && id >= 0 && a.NetNsID == id && a.ParentIndex == inside.Attrs().Index {
			return unplug(a.Name)
		}
	}
	return nil
}

// configure sets the addresses of the sandbox's end, inside the sandbox. The end stays down.
func configure(a *attachment, w wiring) error {
	link, err := netlink.LinkByName(a.ifName)
	if err != nil {
		return fmt.Errorf("%s in the sandbox: %w", a.ifName, err)
	}
	if err := w.offload(a.ifName); err != nil {
		return err
	}
	// The pod must have only the routes that activate adds. Otherwise it would accept router
	// advertisements of other pods, even if it has no IPv6 address.
	if err := netdev.SetSysctl("net/ipv6/conf/"+a.ifName+"/accept_ra", "0"); err != nil &&
		!errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, p := range a.addresses {
		addr := &netlink.Addr{IPNet: ipNet(p)}
		if p.Addr().Is6() {
			// Container runtimes may disable IPv6 in a new namespace.
			if err := netdev.SetSysctl("net/ipv6/conf/"+a.ifName+"/disable_ipv6", "0"); err != nil &&
				!errors.Is(err, os.ErrNotExist) {
				return err
			}
			addr.Flags = unix.IFA_F_NODAD // usable at once: the node allocates each address to one pod only
		}
		if err := netlink.AddrReplace(link, addr); err != nil {
			return fmt.Errorf("address %s of the sandbox: %w", p, err)
		}
	}
	return nil
}

// activate sets the sandbox's end up and adds its routes, inside the sandbox. It comes last:
// packets that the pod sends before its flows are installed would be dropped, and Open vSwitch
// would continue to drop for a while.
func activate(a *attachment) error {
	for _, name := range []string{"lo", a.ifName} {
		link, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetUp(link)
		}
		if err != nil {
			return fmt.Errorf("%s of the sandbox up: %w", name, err)
		}
	}
	link, err := netlink.LinkByName(a.ifName)
	if err != nil {
		return fmt.Errorf("%s in the sandbox: %w", a.ifName, err)
	}
	for _, gw := range gatewaysOf(a.addresses) {
		if err := netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: everything(gw),
			Gw: gw.AsSlice()}); err != nil {
			return fmt.Errorf("default route of the sandbox via %s: %w", gw, err)
		}
	}
	return nil
}

// inspect returns what is missing of an attachment's veth pair.
func inspect(a *attachment, sandbox ns.NetNS) error {
	host, err := netlink.LinkByName(a.host)
	if err != nil {
		return fmt.Errorf("the host's end %s: %w", a.host, err)
	}
	if host.Attrs().Flags&net.FlagUp == 0 {
		return fmt.Errorf("the host's end %s is down", a.host)
	}
	return sandbox.Do(func(ns.NetNS) error {
		link, err := netlink.LinkByName(a.ifName)
		if err != nil {
			return fmt.Errorf("%s in the sandbox: %w", a.ifName, err)
		}
		attrs := link.Attrs()
		switch {
		case attrs.HardwareAddr.String() != a.mac.String():
			return fmt.Errorf("%s in the sandbox has MAC %s, not %s", a.ifName, attrs.HardwareAddr, a.mac)
		case attrs.ParentIndex != host.Attrs().Index:
			return fmt.Errorf("%s in the sandbox is not the other end of %s", a.ifName, a.host)
		case attrs.MTU != host.Attrs().MTU:
			return fmt.Errorf("%s in the sandbox has MTU %d, the host's end %s has %d", a.ifName, attrs.MTU, a.host,
				host.Attrs().MTU)
		case attrs.Flags&net.FlagUp == 0:
			return fmt.Errorf("%s in the sandbox is down", a.ifName)
		}
		return errors.Join(inspectAddresses(a, link), inspectRoutes(a, link))
	})
}

func inspectAddresses(a *attachment, link netlink.Link) error {
	have, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("addresses of %s in the sandbox: %w", a.ifName, err)
	}
	for _, p := range a.addresses {
		if !slices.ContainsFunc(have, func(x netlink.Addr) bool { return x.IPNet.String() == p.String() }) {
			return fmt.Errorf("%s in the sandbox has lost the address %s", a.ifName, p)
		}
	}
	return nil
}

func inspectRoutes(a *attachment, link netlink.Link) error {
	for _, gw := range gatewaysOf(a.addresses) {
		want := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: everything(gw), Gw: gw.AsSlice()}
		filter := netlink.RT_FILTER_OIF | netlink.RT_FILTER_DST | netlink.RT_FILTER_GW
		routes, err := netlink.RouteListFiltered(familyOf(gw), want, filter)
		if err != nil {
			return fmt.Errorf("routes of the sandbox: %w", err)
		}
		if len(routes) == 0 {
			return fmt.Errorf("the sandbox has lost the default route via %s", gw)
		}
	}
	return nil
}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return netlink.FAMILY_V4
	}
	return netlink.FAMILY_V6
}

// everything returns the destination of a default route.
func everything(of netip.Addr) *net.IPNet {
	return &net.IPNet{IP: make(net.IP, of.BitLen()/8), Mask: net.CIDRMask(0, of.BitLen())}
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
