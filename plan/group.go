package plan

import (
	"fmt"
	"net/netip"

	"hairpin/cluster"
	"hairpin/datapath/nb"
	"hairpin/plan/admission"
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

// groups makes the rows that load balancers need.
func (z *zone) groups() {
	for _, name := range z.groupsOf(groupBoth, groupSwitch, groupRouter) {
		z.rows.Add(&nb.Group{Name: name, Owner: z.owner})
	}
	if !z.Node.Gateway.OpenFlow {
		z.placeholderLB()
	}
}

// placeholderLB keeps connections to the proxy addresses of Services, even after the last Service using it is deleted: a
// gateway router translates only packets to addresses of a load balancer.
func (z *zone) placeholderLB() {
	row := &nb.LoadBalancer{
		Name: "held", Protocol: cluster.TCP, Owner: z.owner, Groups: []string{groupOf(groupRouter, z.owner)},
		Options: map[string]string{"reject": "true", "event": "false", "skip_snat": "true", "neighbor_responder": "none"},
	}
	for i := range z.Stacks {
		for _, a := range []netip.Addr{z.Stacks[i].MasqLocal, z.Stacks[i].MasqAll} {
			row.VIPs = append(row.VIPs, nb.VIP{Addr: netip.AddrPortFrom(a, admission.PlaceholderPort)})
		}
	}
	z.rows.Add(row)
}
