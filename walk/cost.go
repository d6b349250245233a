package walk

import (
	"cmp"
	"fmt"
	"net/netip"

	"hairpin/walk/packet"
)

// Costs are those of the packets of one connection. A packet that was not sent has the zero Cost.
type Costs struct {
	First packet.Cost
	Later packet.Cost // of the sender, after a reply arrived; only Walker.WalkWithLater sends one
	Reply packet.Cost
}

// sendTunnelled adds the work of the sending node for a tunnel's outer packet. The kernel datapath
// passes it to the host. The host tracks it and sends it by its own link, through the gateway
// bridge if that has the uplink. The userspace datapath builds the frame itself. It needs the host
// only for routing, where no bridge has the uplink (plan/gateway/encap.go).
func sendTunnelled(c *packet.Cost, n *node) {
	uplink := n.uplink() != ""
	if !n.userspace() {
		c.ByKernel(1)
		if uplink {
			c.Lookups++
		}
	} else if !uplink {
		c.ByKernel(1)
	}
}

// receiveTunnelled adds the work of the node where the tunnel ends. nft takes the packets of a
// userspace datapath before the host tracks them.
func receiveTunnelled(c *packet.Cost, n *node) {
	if n.userspace() || n.uplink() != "" {
		c.Lookups++
	}
	if !n.userspace() {
		c.ByKernel(1)
	}
}

// WalkWithLater is Walk, followed by a later packet of the sender if the first was answered: the
// Trace has the cost of the later packet.
func (w *Walker) WalkWithLater(at Point, p packet.Packet, prefer ...netip.AddrPort) (Trace, error) {
	r := w.run(prefer)
	t, err := r.walk(at, p)
	if err != nil || !t.Verdict.Answered || t.Verdict.Rejected {
		return t, err
	}
	p = t.Sent
	start, err := r.start(at, &p)
	var end Verdict
	if err == nil {
		end, err = r.follow(start, p)
	}
	if err != nil {
		return t, fmt.Errorf("later packet: %w", err)
	}
	t.Costs.Later = r.Cost
	if end.At != t.Verdict.At || end.Seen.Dst != t.Verdict.Seen.Dst || end.Seen.DstPort != t.Verdict.Seen.DstPort {
		return t, fmt.Errorf("a later packet takes another path: %s", cmp.Or(end.Reason, end.Seen.String()))
	}
	return t, nil
}
