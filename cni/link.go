package cni

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hairpin/netdev"
)

// wiring is the configuration of an attachment's veth pair.
type wiring struct {
	mtu int // bytes, of both ends
	// userspace: a userspace switch reads the host's end. It reads packets without the kernel's
	// metadata, so packets must have their checksums.
	userspace bool
	// tso: that switch reads metadata for checksums and TCP segmentation, and no other.
	tso bool
}

// plug makes the veth pair of an attachment, with one end in the sandbox. That end gets its
// addresses, and stays down.
func plug(a *attachment, sandbox ns.NetNS, w wiring) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = a.host, w.mtu
	pair := &netlink.Veth{
		LinkAttrs: attrs, PeerName: a.ifName, PeerNamespace: netlink.NsFd(int(sandbox.Fd())),
		PeerHardwareAddr: net.HardwareAddr(a.mac[:]), PeerMTU: uint32(w.mtu),
	}
	if err := netlink.LinkAdd(pair); err != nil {
		return fmt.Errorf("make veth pair of %s and the sandbox's %s: %w", a.host, a.ifName, err)
	}
	err := sandbox.Do(func(ns.NetNS) error { return configure(a, w) })
	if err == nil {
		err = hostEnd(a, w)
	}
	if err != nil {
		return errors.Join(err, unplug(a.host))
	}
	return nil
}

// hostEnd configures the host's end for Open vSwitch, and so that the kernel's own stack ignores
// it: on the userspace datapath the stack receives every frame of the pod, too. The stack drops
// frames to the router's MAC, but it would reply to ARP and neighbor discovery of any sender.
func hostEnd(a *attachment, w wiring) error {
	link, err := netlink.LinkByName(a.host)
	if err != nil {
		return fmt.Errorf("%s: %w", a.host, err)
	}
	if err := netdev.SetSysctl("net/ipv6/conf/"+a.host+"/disable_ipv6", "1"); err != nil &&
		!errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := netlink.LinkSetARPOff(link); err != nil {
		return fmt.Errorf("%s arp off: %w", a.host, err)
	}
	if err := w.offload(a.host); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("%s up: %w", a.host, err)
	}
	return nil
}

// onHostEnd calls do with the host's end of an attachment. A missing link is no error.
func onHostEnd(host string, do func(netlink.Link) error) error {
	link, err := netlink.LinkByName(host)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil
	}
	if err == nil {
		err = do(link)
	}
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("%s: %w", host, err)
	}
	return nil
}

// unplug removes the host's end. The sandbox's end goes with it.
func unplug(host string) error { return onHostEnd(host, netlink.LinkDel) }

// hostEnds returns the host's ends of all pods, by name.
func hostEnds() (map[string]netlink.Link, error) {
	links, err := netdev.List(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	ends := map[string]netlink.Link{}
	for _, l := range links {
		if isHostEnd(l) {
			ends[l.Attrs().Name] = l
		}
	}
	return ends, nil
}

func isHostEnd(l netlink.Link) bool { return l.Type() == "veth" && isHostName(l.Attrs().Name) }

// offload sets which work on sent packets the kernel leaves to the switch, for one end of the pair.
func (w wiring) offload(name string) error {
	switch {
	case !w.userspace:
		return nil
	case w.tso:
		return netdev.SetFeatures(name, supportedFeatures())
	}
	_, err := netdev.Ethtool(name, unix.ETHTOOL_STXCSUM, 0) // without checksum offload there is no segmentation offload
	return err
}

// supportedFeatures returns the features of a veth that ovs-vswitchd supports with
// userspace-tso-enable, and those that it does not. It drops or corrupts UDP and SCTP packets that
// need segmentation, such packets in a tunnel of the pod, and SCTP without its checksum.
func supportedFeatures() map[string]bool {
	on := map[string]bool{"tx-checksum-ip-generic": true, "tx-tcp-segmentation": true, "tx-tcp6-segmentation": true}
	for _, f := range []string{
		"tx-checksum-sctp", "tx-sctp-segmentation", "tx-udp-segmentation", "tx-gso-list", "tx-gre-segmentation",
		"tx-gre-csum-segmentation",
		"tx-ipxip4-segmentation", "tx-ipxip6-segmentation", "tx-udp_tnl-segmentation", "tx-udp_tnl-csum-segmentation",
	} {
		on[f] = false
	}
	return on
}
