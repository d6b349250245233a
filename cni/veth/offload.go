package veth

import (
	"errors"
	"os"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hairpin/netdev"
)

// offload sets the offloads of one end of the pair. Checksums and segmentation that are offloaded
// are left to the switch that reads the host's end.
func (o Options) offload(name string) error {
	switch {
	case !o.Userspace:
		return nil
	case o.TSO:
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

// SetOffloads sets the offloads of both ends. path is the network namespace of the sandbox. A
// missing end is no error.
func (p *Pair) SetOffloads(path string, host netlink.Link, o Options) error {
	sandbox, err := ns.GetNS(path)
	if errors.Is(err, os.ErrNotExist) || errors.As(err, new(ns.NSPathNotExistErr)) {
		return nil
	}
	if err != nil {
		return err
	}
	defer sandbox.Close()
	err = sandbox.Do(func(ns.NetNS) error {
		link, err := netlink.LinkByName(p.IfName)
		if errors.As(err, new(netlink.LinkNotFoundError)) || err == nil &&
			link.Attrs().ParentIndex != host.Attrs().Index {
			return nil
		}
		if err != nil {
			return err
		}
		return o.offload(p.IfName)
	})
	if err != nil {
		return err
	}
	return OnHostEnd(p.Host, func(netlink.Link) error { return o.offload(p.Host) })
}
