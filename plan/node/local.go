package node

import (
	"fmt"
	"net/netip"

	"hairpin/claims"
	"hairpin/cluster"
)

// Local holds addresses of the node-local subnet of a family, with the subnet's mask. It is zero if
// the host reaches Services through the gateway bridge.
type Local struct {
	Host, Router, Management netip.Prefix
}

// localSubnets checks the subnets of the node's families. With a wrong one, NewEnv fails.
func (c *Checker) localSubnets(e *Env) {
	for _, p := range e.Node.PodCIDRs {
		f := cluster.FamilyOf(p.Addr())
		subnet, masquerade := cluster.PrefixOf(e.Config.Gateway.NodeLocalSubnets, f),
			cluster.PrefixOf(e.Config.Gateway.MasqueradeSubnets, f)
		if subnet.Overlaps(masquerade) {
			c.Problem(localField(f), "%s overlaps the masquerade subnet %s", subnet, masquerade)
		} else {
			c.local(subnet, f) // for its problems
		}
	}
}

func localField(f cluster.Family) string {
	return fmt.Sprintf("[gateway] v%s-node-local-subnet", Vocab(f).digit)
}

func (c *Checker) local(subnet netip.Prefix, f cluster.Family) Local {
	return Local{
		Host:       c.Nth(subnet, claims.NodeLocalHost, localField(f)),
		Router:     c.Nth(subnet, claims.NodeLocalRouter, localField(f)),
		Management: c.Nth(subnet, claims.NodeLocalManagement, localField(f)),
	}
}
