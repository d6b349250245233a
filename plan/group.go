package plan

import (
	"fmt"

	"hairpin/cluster"
	"hairpin/plan/stablehash"
)

// Load balancer groups. Their members are the Services; the node switch and the gateway router name them once, so a
// Service is one row whatever it is attached to.
const (
	groupBoth   = "clusterLBGroup"       // the same on the node switch and on the gateway router
	groupSwitch = "clusterSwitchLBGroup" // for pods only
	groupRouter = "clusterRouterLBGroup" // for the host and the external network only
)

// groupParts is how many groups there are of each kind. When a load balancer changes, ovn-northd goes through all members of
// its group (the change is one of every row that names the row, for its database client), which took most of the time of an
// endpoint's change when 10 000 Services had one group.
const groupParts = 16

// groupOf returns the group of a kind that a Service's load balancers are in.
func groupOf(kind string, service cluster.Owner) string {
	return groupPart(kind, int(stablehash.String32(service.Namespace+"/"+service.Name)%groupParts))
}

func groupPart(kind string, i int) string { return fmt.Sprintf("%s-%02d", kind, i) }

// groupsOf returns all groups of some kinds.
func groupsOf(kinds ...string) []string {
	var list []string
	for _, k := range kinds {
		for i := range groupParts {
			list = append(list, groupPart(k, i))
		}
	}
	return list
}

// groupsOf returns all groups of some kinds, where Services are load balancers.
func (z *zone) groupsOf(kinds ...string) []string {
	if z.Node.Gateway.OpenFlow {
		return nil
	}
	return groupsOf(kinds...)
}
