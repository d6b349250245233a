package nft

import (
	"fmt"

	"hairpin/cluster"
	"hairpin/datapath/nft"
	"hairpin/walk/path"
)

// conntrackPriority is the priority at which the kernel looks connections up: earlier chains see no
// connection (NF_IP_PRI_CONNTRACK).
const conntrackPriority = -200

// ctState compares a rule with the state of the packet's connection.
func (h *Hook) ctState(c *chain, state nft.CTState) (bool, error) {
	t := h.Track
	switch {
	case t == nil:
		return false, fmt.Errorf("ct state %s: at hook %s no connection is looked up", state, h.Name)
	case c.Priority <= conntrackPriority && (h.Name == "prerouting" || h.Name == "output") && h.In != Loopback:
		return false, nil // untracked
	}
	switch state {
	case nft.CTRelated: // a refusal is related to the connection that it rejects (nf_ct_attach)
		return t.Refusal(), nil
	case nft.CTEstablished:
		return !t.Refusal() && t.Established(), nil
	case nft.CTNewOrInvalid:
		return !t.Refusal() && !t.Established(), nil
	}
	return false, fmt.Errorf("ct state %s is not known", state)
}

// etherSrc compares a rule with the source MAC of the packet's frame. A packet that the host itself
// sends has not arrived in a frame.
func (h *Hook) etherSrc(pkt *path.Path, m nft.EtherSrc) (bool, error) {
	switch {
	case h.In == "" || h.In == Loopback:
		return false, nil
	case pkt.EthSrc != cluster.MAC{}:
		return pkt.EthSrc == m.MAC, nil
	case h.Host.IsNodeMAC(m.MAC):
		return false, nil // the sender is not a node
	}
	return false, fmt.Errorf("ether saddr %s: neither the owner of the MAC nor the sender of the packet is known", m.MAC)
}
