package hostnet

import (
	"cmp"
	"errors"
	"net"

	"github.com/vishvananda/netlink"

	"hairpin/cluster"
	"hairpin/hostnet/uplink"
	"hairpin/ovsdb"
)

// ExternalLink is the state of the device that connects the node to the others: the gateway
// bridge's uplink, or in mode detached the link with the node's address.
type ExternalLink struct {
	Device    string
	Missing   bool // there is no device of that name
	OwnBridge bool // the agent made the gateway bridge
	Down      bool // it is set down, or has no carrier
	MTU       int
}

// Bytes that a tunnel adds to a pod's packet: the outer IP header, UDP, Geneve with OVN's option,
// and the inner Ethernet header.
const (
	Overhead4 = 20 + 8 + 16 + 14
	Overhead6 = Overhead4 + 20
)

// externalLink returns the state of the uplink or, in mode detached, of the link with the node's
// address.
func externalLink(v ovsdb.View, g *cluster.Gateway) (x ExternalLink) {
	x.Device = cmp.Or(g.Uplink, g.Device)
	if x.Device == "" {
		return x
	}
	b := ovsdb.BridgeNamed(v, g.Bridge)
	x.OwnBridge = b != nil && b.ExternalIDs[uplink.KeyUplink] != ""
	l, err := netlink.LinkByName(x.Device)
	switch {
	case errors.As(err, new(netlink.LinkNotFoundError)):
		x.Missing = true
	case err == nil:
		a := l.Attrs()
		x.Down, x.MTU = a.Flags&net.FlagUp == 0 || a.OperState == netlink.OperDown, a.MTU
	}
	return x
}
