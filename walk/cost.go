package walk

import (
	"cmp"
	"fmt"
	"net/netip"
)

// Cost counts the work that a packet causes on the nodes of its path. dpctl/dump-flows and the
// hosts' conntrack show the same numbers.
type Cost struct {
	// Passes counts ct actions of Open vSwitch's datapath, those for tunnels' outer packets
	// included, and InHosts.
	Passes  int
	InHosts int // of these, in conntrack of the hosts' own kernels
	Lookups int // in Open vSwitch's datapath: one when a packet enters it, and one for each recirculation
}

// Costs are those of the packets of one connection. A packet that was not sent has the zero Cost.
type Costs struct {
	First Cost
	Later Cost // of the sender, after a reply arrived; only Walker.WalkOn sends one
	Reply Cost
}

// byKernel adds passes through a host's own conntrack.
func (c *Cost) byKernel(passes int) {
	c.Passes += passes
	c.InHosts += passes
}

// sendTunnelled adds the work of the sending node for a tunnel's outer packet. The kernel datapath
// passes it to the host. The host tracks it and sends it by its own link, through the gateway
// bridge if that has the uplink. The userspace datapath builds the frame itself. It needs the host
// only for routing, where no bridge has the uplink (plan/gateway/encap.go).
func (c *Cost) sendTunnelled(n *node) {
	uplink := n.uplink() != ""
	if !n.userspace() {
		c.byKernel(1)
		if uplink {
			c.Lookups++
		}
	} else if !uplink {
		c.byKernel(1)
	}
}

// takeTunnelled adds the work of the node where the tunnel ends. nft takes the packets of a
// userspace datapath before the host tracks them.
func (c *Cost) takeTunnelled(n *node) {
	if n.userspace() || n.uplink() != "" {
		c.Lookups++
	}
	if !n.userspace() {
		c.byKernel(1)
	}
}

func (n *node) userspace() bool { return n.info != nil && n.info.Gateway.Userspace }

// String returns "conntrack passes: 2, datapath lookups: 3".
func (c Cost) String() string {
	s := fmt.Sprintf("conntrack passes: %d", c.Passes)
	if c.InHosts > 0 {
		s += fmt.Sprintf(" (%d in hosts' kernels)", c.InHosts)
	}
	return s + fmt.Sprintf(", datapath lookups: %d", c.Lookups)
}

// WalkOn is Walk, followed by a later packet of the sender if the first was answered: the Trace has
// the cost of the later packet.
func (w *Walker) WalkOn(at Point, p Packet, prefer ...netip.AddrPort) (Trace, error) {
	r := &run{w: w, prefer: prefer}
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
	t.Costs.Later = r.cost
	if end.At != t.Verdict.At || end.Seen.Dst != t.Verdict.Seen.Dst || end.Seen.DstPort != t.Verdict.Seen.DstPort {
		return t, fmt.Errorf("a later packet takes another path: %s", cmp.Or(end.Reason, end.Seen.String()))
	}
	return t, nil
}
