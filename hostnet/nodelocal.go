package hostnet

import (
	"context"

	"hairpin/claims"
	"hairpin/ovsdb"
)

// applyNodeLocal makes the bridge of the distributed gateway port's network, or removes it. It
// removes the bridge only after a round of the agent has removed the host's port from it.
func (sc *Scanner) applyNodeLocal(ctx context.Context) (did []string, err error) {
	if !sc.config.Cluster.DistributedPort() {
		if ovsdb.Find(sc.ovs.View(), func(p *ovsdb.Port) bool {
			return p.Name == claims.LocalPort && p.ExternalIDs[claims.KeyOwner] != ""
		}) != nil {
			return nil, nil
		}
		return removeBridges(ctx, sc.ovs, keyNodeLocal)
	}
	return sc.makeBridges(ctx, newBridge{name: claims.LocalBridge, key: keyNodeLocal})
}

// LeaveNodeLocal removes the bridge of the distributed gateway port's network from a node that
// Hairpin leaves, and returns what it did.
func LeaveNodeLocal(ctx context.Context, ovs *ovsdb.Client) (did []string, err error) {
	return removeBridges(ctx, ovs, keyNodeLocal)
}
