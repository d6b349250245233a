package veth

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hairpin/netdev"
)

// UnplugFrom removes the veth pair of an interface of the sandbox, if this package made the pair.
// The caller need not know the name of the host's end: the row with it may have been removed by
// hand.
func UnplugFrom(sandbox ns.NetNS, ifName string) error {
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
	ends, err := HostEnds()
	if err != nil {
		return err
	}
	for host, l := range ends {
		if id >= 0 && l.Attrs().NetNsID == id && l.Attrs().ParentIndex == inside.Attrs().Index {
			return Unplug(host)
		}
	}
	return nil
}

// configureSandboxEnd sets the addresses of the sandbox's end, inside the sandbox. The end stays
// down.
func (p *Pair) configureSandboxEnd(o Options) error {
	link, err := netlink.LinkByName(p.IfName)
	if err != nil {
		return fmt.Errorf("%s in the sandbox: %w", p.IfName, err)
	}
	if err := o.offload(p.IfName); err != nil {
		return err
	}
	// The pod must have only the routes that Activate adds. Otherwise it would accept router
	// advertisements of other pods, even if it has no IPv6 address.
	if err := netdev.SetSysctl("net/ipv6/conf/"+p.IfName+"/accept_ra", "0"); err != nil &&
		!errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, x := range p.Addresses {
		addr := &netlink.Addr{IPNet: IPNet(x)}
		if x.Addr().Is6() {
			// Container runtimes may disable IPv6 in a new namespace.
			if err := netdev.SetSysctl("net/ipv6/conf/"+p.IfName+"/disable_ipv6", "0"); err != nil &&
				!errors.Is(err, os.ErrNotExist) {
				return err
			}
			addr.Flags = unix.IFA_F_NODAD // usable at once: the node allocates each address to one pod only
		}
		if err := netlink.AddrReplace(link, addr); err != nil {
			return fmt.Errorf("address %s of the sandbox: %w", x, err)
		}
	}
	return nil
}

// Activate sets the sandbox's end up and adds its routes, inside the sandbox. It comes last:
// packets that the pod sends before its flows are installed would be dropped, and the datapath flow
// for that would drop later packets for a while, too.
func (p *Pair) Activate() error {
	for _, name := range []string{"lo", p.IfName} {
		link, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetUp(link)
		}
		if err != nil {
			return fmt.Errorf("%s of the sandbox up: %w", name, err)
		}
	}
	link, err := netlink.LinkByName(p.IfName)
	if err != nil {
		return fmt.Errorf("%s in the sandbox: %w", p.IfName, err)
	}
	for _, gw := range p.Gateways() {
		if err := netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: IPNet(DefaultRoute(gw)),
			Gw: gw.AsSlice()}); err != nil {
			return fmt.Errorf("default route of the sandbox via %s: %w", gw, err)
		}
	}
	return nil
}

// Inspect returns an error for what is missing of the pair, for CNI CHECK.
func (p *Pair) Inspect(sandbox ns.NetNS) error {
	host, err := netlink.LinkByName(p.Host)
	if err != nil {
		return fmt.Errorf("the host's end %s: %w", p.Host, err)
	}
	if host.Attrs().Flags&net.FlagUp == 0 {
		return fmt.Errorf("the host's end %s is down", p.Host)
	}
	return sandbox.Do(func(ns.NetNS) error {
		link, err := netlink.LinkByName(p.IfName)
		if err != nil {
			return fmt.Errorf("%s in the sandbox: %w", p.IfName, err)
		}
		attrs := link.Attrs()
		switch {
		case attrs.HardwareAddr.String() != p.MAC.String():
			return fmt.Errorf("%s in the sandbox has MAC %s, not %s", p.IfName, attrs.HardwareAddr, p.MAC)
		case attrs.ParentIndex != host.Attrs().Index:
			return fmt.Errorf("%s in the sandbox is not the other end of %s", p.IfName, p.Host)
		case attrs.MTU != host.Attrs().MTU:
			return fmt.Errorf("%s in the sandbox has MTU %d, the host's end %s has %d", p.IfName, attrs.MTU, p.Host,
				host.Attrs().MTU)
		case attrs.Flags&net.FlagUp == 0:
			return fmt.Errorf("%s in the sandbox is down", p.IfName)
		}
		return errors.Join(p.inspectAddresses(link), p.inspectRoutes(link))
	})
}

func (p *Pair) inspectAddresses(link netlink.Link) error {
	have, err := netlink.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("addresses of %s in the sandbox: %w", p.IfName, err)
	}
	for _, x := range p.Addresses {
		if !slices.ContainsFunc(have, func(h netlink.Addr) bool { return h.IPNet.String() == x.String() }) {
			return fmt.Errorf("%s in the sandbox has lost the address %s", p.IfName, x)
		}
	}
	return nil
}

func (p *Pair) inspectRoutes(link netlink.Link) error {
	for _, gw := range p.Gateways() {
		want := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: IPNet(DefaultRoute(gw)), Gw: gw.AsSlice()}
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

// DefaultRoute returns the destination of a default route via a gateway.
func DefaultRoute(gateway netip.Addr) netip.Prefix { return netip.PrefixFrom(gateway, 0).Masked() }

// IPNet returns a prefix in netlink's type. It keeps the bits after the prefix.
func IPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
