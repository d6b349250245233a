// Package veth makes, checks and removes the interface of a pod: a veth pair with one end on the
// host and one in the pod's sandbox.
//
// Input: a Pair, and the sandbox as a network namespace. Output: devices, addresses, offloads and
// routes in the kernel.
//
// Invariants: Plug removes everything again when it fails. A pod can send only after Activate. Each
// host's end has a name that no other pair ever has, with a prefix (claims.PodInterface). Only
// pairs with such a name are removed.
package veth

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/netdev"
)

// Pair is the veth pair of a pod.
type Pair struct {
	Host      string // name of the host's end
	IfName    string // of the sandbox's end
	MAC       cluster.MAC
	Addresses []netip.Prefix // with the node subnet's length, IPv4 first
}

// Gateways returns the router's address, the first, in each of the node's subnets.
func (p *Pair) Gateways() (list []netip.Addr) {
	for _, a := range p.Addresses {
		list = append(list, a.Masked().Addr().Next())
	}
	return list
}

// Options are the configuration of all pairs of a node.
type Options struct {
	MTU int // bytes, of both ends
	// Userspace: a userspace switch reads the host's end. It reads packets without the kernel's
	// metadata, so packets must have their checksums.
	Userspace bool
	// TSO: that switch reads metadata for checksums and TCP segmentation, and no other.
	TSO bool
}

// NewHostName returns a name for the host's end of a pod's veth pair, of 15 characters. It is never
// used again: Open vSwitch does not detect that another device of the same name replaces a device.
func NewHostName() string {
	digits := make([]byte, 4)
	_, _ = rand.Read(digits) // never fails (crypto/rand)
	return claims.PodInterface + hex.EncodeToString(digits)
}

// IsHostName reports whether NewHostName can have returned a name.
func IsHostName(name string) bool {
	digits, is := strings.CutPrefix(name, claims.PodInterface)
	raw, err := hex.DecodeString(digits)
	return is && err == nil && len(raw) == 4
}

// Plug makes the pair, with one end in the sandbox. That end gets its addresses, and stays down.
func (p *Pair) Plug(sandbox ns.NetNS, o Options) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = p.Host, o.MTU
	pair := &netlink.Veth{
		LinkAttrs: attrs, PeerName: p.IfName, PeerNamespace: netlink.NsFd(int(sandbox.Fd())),
		PeerHardwareAddr: net.HardwareAddr(p.MAC[:]), PeerMTU: uint32(o.MTU),
	}
	if err := netlink.LinkAdd(pair); err != nil {
		return fmt.Errorf("make veth pair of %s and the sandbox's %s: %w", p.Host, p.IfName, err)
	}
	err := sandbox.Do(func(ns.NetNS) error { return p.configureSandboxEnd(o) })
	if err == nil {
		err = p.configureHostEnd(o)
	}
	if err != nil {
		return errors.Join(err, Unplug(p.Host))
	}
	return nil
}

// configureHostEnd configures the host's end for Open vSwitch, and so that the kernel's own stack
// ignores it: on the userspace datapath the stack receives every frame of the pod, too. The stack
// drops frames to the router's MAC, but it would reply to ARP and neighbor discovery of any sender.
func (p *Pair) configureHostEnd(o Options) error {
	link, err := netlink.LinkByName(p.Host)
	if err != nil {
		return fmt.Errorf("%s: %w", p.Host, err)
	}
	if err := netdev.SetSysctl("net/ipv6/conf/"+p.Host+"/disable_ipv6", "1"); err != nil &&
		!errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := netlink.LinkSetARPOff(link); err != nil {
		return fmt.Errorf("%s arp off: %w", p.Host, err)
	}
	if err := o.offload(p.Host); err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("%s up: %w", p.Host, err)
	}
	return nil
}

// OnHostEnd calls do with the host's end of a pair. A missing link is no error.
func OnHostEnd(host string, do func(netlink.Link) error) error {
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

// Unplug removes the host's end. The sandbox's end goes with it.
func Unplug(host string) error { return OnHostEnd(host, netlink.LinkDel) }

// HostEnds returns the host's ends of all pods, by name.
func HostEnds() (map[string]netlink.Link, error) {
	links, err := netdev.List(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	ends := map[string]netlink.Link{}
	for _, l := range links {
		if l.Type() == "veth" && IsHostName(l.Attrs().Name) {
			ends[l.Attrs().Name] = l
		}
	}
	return ends, nil
}
