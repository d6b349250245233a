package cni

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"unsafe"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// wiring is how an attachment's veth pair is set up.
type wiring struct {
	mtu      int
	gateways []netip.Addr
	// userspace: the host's end is read by a userspace switch. The kernel's own stack sees its frames too and must keep
	// quiet, and checksums must be in the packets (lab-notes: no offload on veth).
	userspace bool
}

// plug makes the veth pair of an attachment, one end in the sandbox. What an ADD that crashed left behind is removed
// first.
func plug(a *attachment, netnsPath string, w wiring) error {
	if err := unplug(a.host); err != nil {
		return err
	}
	sandbox, err := ns.GetNS(netnsPath)
	if err != nil {
		return fmt.Errorf("sandbox: %w", err)
	}
	defer sandbox.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = a.host, w.mtu
	pair := &netlink.Veth{
		LinkAttrs: attrs, PeerName: a.ifName, PeerNamespace: netlink.NsFd(int(sandbox.Fd())),
		PeerHardwareAddr: net.HardwareAddr(a.mac[:]), PeerMTU: uint32(w.mtu),
	}
	if err := netlink.LinkAdd(pair); err != nil {
		return fmt.Errorf("veth pair %s, %s: %w", a.host, a.ifName, err)
	}
	err = sandbox.Do(func(ns.NetNS) error { return configure(a, w) })
	if err == nil {
		err = hostEnd(a.host, w)
	}
	if err != nil {
		return errors.Join(err, unplug(a.host))
	}
	return nil
}

// configure sets up the sandbox's end, inside the sandbox.
func configure(a *attachment, w wiring) error {
	link, err := netlink.LinkByName(a.ifName)
	if err != nil {
		return fmt.Errorf("%s in the sandbox: %w", a.ifName, err)
	}
	if w.userspace {
		if err := noChecksumOffload(a.ifName); err != nil {
			return err
		}
	}
	for _, p := range a.addresses {
		if p.Addr().Is6() {
			// Container runtimes may leave IPv6 off in a new namespace.
			if err := writeSysctl("net/ipv6/conf/"+a.ifName+"/disable_ipv6", "0"); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		addr := &netlink.Addr{IPNet: ipNet(p)}
		if p.Addr().Is6() {
			addr.Flags = unix.IFA_F_NODAD // usable at once; the node gives each address to one pod
		}
		if err := netlink.AddrReplace(link, addr); err != nil {
			return fmt.Errorf("address %s: %w", p, err)
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("%s up: %w", a.ifName, err)
	}
	if lo, err := netlink.LinkByName("lo"); err == nil {
		if err := netlink.LinkSetUp(lo); err != nil {
			return fmt.Errorf("lo up: %w", err)
		}
	}
	for _, gw := range w.gateways {
		all := netip.PrefixFrom(zero(gw), 0)
		if err := netlink.RouteReplace(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: ipNet(all), Gw: gw.AsSlice()}); err != nil {
			return fmt.Errorf("default route via %s: %w", gw, err)
		}
	}
	return nil
}

// hostEnd makes the host's end ready for Open vSwitch.
func hostEnd(name string, w wiring) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if w.userspace {
		if err := writeSysctl("net/ipv6/conf/"+name+"/disable_ipv6", "1"); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		// Frames of the pod go to the router's address, never to this end's: the kernel drops them. Only ARP is
		// answered for anybody, so it is switched off.
		if err := netlink.LinkSetARPOff(link); err != nil {
			return fmt.Errorf("%s arp off: %w", name, err)
		}
		if err := noChecksumOffload(name); err != nil {
			return err
		}
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("%s up: %w", name, err)
	}
	return nil
}

// unplug removes the host's end, and with it the sandbox's. One that is gone is fine.
func unplug(name string) error {
	link, err := netlink.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil
	}
	if err == nil {
		err = netlink.LinkDel(link)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	return nil
}

func plugged(name string) bool {
	_, err := netlink.LinkByName(name)
	return err == nil
}

// inspect tells what is missing of an attachment in its sandbox.
func inspect(a *attachment, netnsPath string, gateways []netip.Addr) error {
	if !plugged(a.host) {
		return fmt.Errorf("the host's end %s is missing", a.host)
	}
	return ns.WithNetNSPath(netnsPath, func(ns.NetNS) error {
		link, err := netlink.LinkByName(a.ifName)
		if err != nil {
			return fmt.Errorf("%s in the sandbox: %w", a.ifName, err)
		}
		if link.Attrs().HardwareAddr.String() != a.mac.String() {
			return fmt.Errorf("%s has Ethernet address %s, not %s", a.ifName, link.Attrs().HardwareAddr, a.mac)
		}
		have, err := netlink.AddrList(link, netlink.FAMILY_ALL)
		if err != nil {
			return fmt.Errorf("addresses of %s: %w", a.ifName, err)
		}
		found := map[string]bool{}
		for _, x := range have {
			found[x.IPNet.String()] = true
		}
		for _, p := range a.addresses {
			if !found[p.String()] {
				return fmt.Errorf("%s has lost the address %s", a.ifName, p)
			}
		}
		for _, gw := range gateways {
			routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Gw: gw.AsSlice()}, netlink.RT_FILTER_GW)
			if err != nil || len(routes) == 0 {
				return fmt.Errorf("the default route via %s is missing", gw)
			}
		}
		return nil
	})
}

func zero(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func writeSysctl(path, value string) error {
	if err := os.WriteFile(filepath.Join("/proc/sys", path), []byte(value), 0o644); err != nil {
		return fmt.Errorf("sysctl %s: %w", path, err)
	}
	return nil
}

// noChecksumOffload does what `ethtool -K NAME tx off` does. There is no netlink library call for it.
func noChecksumOffload(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("checksums of %s: %w", name, err)
	}
	defer unix.Close(fd)
	value := struct{ cmd, data uint32 }{unix.ETHTOOL_STXCSUM, 0} // struct ethtool_value
	request := struct {                                          // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&value)}
	copy(request.name[:], name)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return fmt.Errorf("checksums of %s: %w", name, errno)
	}
	return nil
}

// gatewaysOf gives the router's address in each of the node's subnets: the first.
func gatewaysOf(addresses []netip.Prefix) []netip.Addr {
	var list []netip.Addr
	for _, p := range addresses {
		list = append(list, p.Masked().Addr().Next())
	}
	return list
}
