package walk

import (
	"fmt"
	"slices"

	"hairpin/cluster"
	"hairpin/datapath/nft"
)

// conntrackPriority is the priority at which the kernel looks connections up: earlier chains see no
// connection (NF_IP_PRI_CONNTRACK).
const conntrackPriority = -200

// ctState compares a rule with the state of the packet's connection.
func (h *hooked) ctState(c *chain, state nft.CTState) (bool, error) {
	t := h.track
	switch {
	case t == nil:
		return false, fmt.Errorf("ct state %s: at hook %s no connection is looked up", state, h.hook)
	case c.Priority <= conntrackPriority && (h.hook == "prerouting" || h.hook == "output") && h.in != loopback:
		return false, nil // untracked
	}
	switch state {
	case nft.CTRelated: // a refusal is related to the connection that it rejects (nf_ct_attach)
		return t.refusal, nil
	case nft.CTEstablished:
		return !t.refusal && t.established(), nil
	case nft.CTUnknown:
		return !t.refusal && !t.established(), nil
	}
	return false, fmt.Errorf("ct state %s is not known", state)
}

// established reports whether both sides have sent packets.
func (t *hostTrack) established() bool { return t.entry != nil && (t.reply || t.entry.answered) }

// etherSrc compares a rule with the source MAC of the packet's frame. A packet that the host itself
// sends has not arrived in a frame.
func (r *run) etherSrc(h hooked, m nft.EtherSrc) (bool, error) {
	switch {
	case h.in == "" || h.in == loopback:
		return false, nil
	case r.p.EthSrc != cluster.MAC{}:
		return r.p.EthSrc == m.MAC, nil
	case r.w.isNodes(m.MAC):
		return false, nil // the sender is not a node
	}
	return false, fmt.Errorf("ether saddr %s: whose that is, and who sent the packet, is not known", m.MAC)
}

// isNodes reports whether a MAC belongs to a node's link to a network.
func (w *Walker) isNodes(m cluster.MAC) bool {
	return slices.ContainsFunc(w.world.Snapshot.Nodes, func(n *cluster.Node) bool {
		return ExternalMAC(n) == m || n.Gateway.MAC == m || n.Gateway.DeviceMAC == m ||
			slices.ContainsFunc(n.Links, func(l cluster.HostLink) bool { return l.MAC == m })
	})
}
