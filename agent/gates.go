package agent

import (
	"cmp"
	"fmt"
	"slices"

	"hairpin/cluster"
)

// gate is a condition that must hold before the agent applies anything.
type gate struct {
	open   bool   // the condition holds
	reason string // why nothing is applied while the gate is closed
	err    error  // the cause of reason; may be nil
}

// firstClosed returns the reason and cause of the first closed gate; empty if all are open.
func firstClosed(gates []gate) string {
	i := slices.IndexFunc(gates, func(g gate) bool { return !g.open })
	switch {
	case i < 0:
		return ""
	case gates[i].err != nil:
		return fmt.Sprintf("%s: %v", gates[i].reason, gates[i].err)
	}
	return gates[i].reason
}

// gates returns the gates, in the order in which they open after a start.
func (a *agent) gates() []gate {
	return []gate{
		{a.ovs.Synced(), "Open vSwitch cannot be reached", a.ovs.Err()},
		{a.pods.compared, "pods' interfaces are being compared with Open vSwitch", nil},
		{a.host.known(), "the gateway bridge is not known yet", a.host.scan.Err},
		{a.snapshot != nil, "the cluster is not known yet", cmp.Or(a.sourceErr, a.api.Failing())},
		{a.ownNode() != nil, "the cluster has no Node " + a.node, nil},
		// A node that cannot be planned stays as it is.
		{a.planned.want.NB != nil, "the node cannot be planned", a.planned.problemOf(a.node)},
		{a.supported.Load(), "the versions of OVN, Open vSwitch and nft are not known yet", a.targets.VersionError()},
		{a.pods.ovnReady, "pods' ports go to another bridge when OVN's flows are in the switch", nil},
	}
}

// problemOf returns the first problem of a Node; nil if it has none.
func (p *planned) problemOf(node string) error {
	for _, x := range p.problems {
		if x.Owner == cluster.NodeOwner(node) {
			return x
		}
	}
	return nil
}

// closedGate returns why nothing can be applied yet; empty if all gates are open.
func (a *agent) closedGate() string { return firstClosed(a.gates()) }
