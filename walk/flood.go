package walk

import (
	"net/netip"
	"slices"
	"strings"

	"hairpin/cluster"
	"hairpin/walk/openflow"
)

// broadcastMAC is the broadcast MAC: every port of a link receives its frames.
var broadcastMAC = cluster.MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// groupMAC returns the MAC of a multicast address or of the limited broadcast address (RFC 1112,
// 6.4; RFC 2464, 7).
func groupMAC(a netip.Addr) (cluster.MAC, bool) {
	b := a.As16()
	switch {
	case a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return broadcastMAC, true
	case !a.IsMulticast():
		return cluster.MAC{}, false
	case a.Is4():
		return cluster.MAC{0x01, 0x00, 0x5e, b[13] & 0x7f, b[14], b[15]}, true
	}
	return cluster.MAC{0x33, 0x33, b[12], b[13], b[14], b[15]}, true
}

// flooded ends a packet that one of our bridges sends out of several ports. It lists the receivers.
func (r *run) flooded(n *node, b *openflow.Bridge, outputs []openflow.Output) (location, error) {
	var to []string
	for _, out := range outputs {
		name := "port " + out.Port
		for _, pod := range n.pods {
			if mac, is := b.Pods[out.Port]; is && pod.MAC == mac {
				name = "pod " + pod.Owner.Namespace + "/" + pod.Owner.Name
			}
		}
		if id, ok := n.logicalPort(n.state.Bridge.Ports[out.Port].Peer); ok {
			name = "OVN's port " + id
		}
		to = append(to, name)
	}
	slices.Sort(to)
	r.done = true
	r.verdict = Verdict{Flooded: true, Reason: "flooded to " + strings.Join(to, ", ")}
	return location{}, nil
}
