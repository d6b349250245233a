package hostnet

import (
	"errors"
	"net"

	"github.com/vishvananda/netlink"

	"hairpin/cluster"
	"hairpin/hostnet/uplink"
	"hairpin/ovsdb"
)

// Wire is the state of the device that connects the node to the others: the gateway bridge's
// uplink, or in mode detached the link with the node's address.
type Wire struct {
	Device  string
	Missing bool // there is no device of that name
	Own     bool // the agent made the bridge
	Down    bool // it is set down, or has no carrier
	MTU     int
}

// Bytes that a tunnel adds to a pod's packet: the outer IP header, UDP, Geneve with OVN's option,
// and the inner Ethernet header.
const (
	Overhead4 = 20 + 8 + 16 + 14
	Overhead6 = Overhead4 + 20
)

// wireOf returns the state of that device.
func wireOf(v ovsdb.View, g *cluster.Gateway) (w Wire) {
	if w.Device = g.Uplink; w.Device == "" {
		w.Device = g.Device
	}
	if w.Device == "" {
		return w
	}
	b := ovsdb.BridgeNamed(v, g.Bridge)
	w.Own = b != nil && b.ExternalIDs[uplink.KeyUplink] != ""
	l, err := netlink.LinkByName(w.Device)
	switch {
	case errors.As(err, new(netlink.LinkNotFoundError)):
		w.Missing = true
	case err == nil:
		a := l.Attrs()
		w.Down, w.MTU = a.Flags&net.FlagUp == 0 || a.OperState == netlink.OperDown, a.MTU
	}
	return w
}
