package hostnet

import (
	"context"
	"fmt"

	"hairpin/claims"
	"hairpin/hostnet/uplink"
	"hairpin/ovsdb"
)

// applyNodeLocal makes the bridge of the distributed gateway port's network, or removes it. The
// removal is last: before it, the agent removes the host's port, when nothing uses that port any
// more.
func (sc *Scanner) applyNodeLocal(ctx context.Context) (did []string, err error) {
	v := sc.ovs.View()
	if !sc.config.Cluster.DistributedPort() {
		if ovsdb.Find(v, func(p *ovsdb.Port) bool {
			return p.Name == claims.LocalPort && p.ExternalIDs[claims.KeyOwner] != ""
		}) != nil {
			return nil, nil
		}
		return removeBridges(ctx, sc.ovs, keyNodeLocal)
	}
	b := newBridge{name: claims.LocalBridge, key: keyNodeLocal}
	ops := b.ops(v, uplink.DatapathType(v), sc.node)
	if len(ops) == 0 {
		return nil, nil
	}
	if _, err := sc.ovs.Transact(ctx, ops...); err != nil {
		return nil, fmt.Errorf("make bridge %s: %w", b.name, err)
	}
	return []string{"ovs-vsctl add-br " + b.name}, nil
}

// LeaveNodeLocal removes the bridge of the distributed gateway port's network from a node that
// Hairpin leaves, and returns what it did.
func LeaveNodeLocal(ctx context.Context, ovs *ovsdb.Client) (did []string, err error) {
	return removeBridges(ctx, ovs, keyNodeLocal)
}
