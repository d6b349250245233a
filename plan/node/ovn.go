package node

import (
	"fmt"
	"net/netip"
	"strings"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/nb"
	"hairpin/plan/stablehash"
)

// Zone writes the rows of one node's OVN zone.
type Zone struct {
	Env
	Rows  nb.State
	Owner cluster.Owner
}

// NewZone returns a Zone without rows. Its rows will belong to the planned node.
func NewZone(e Env) *Zone {
	return &Zone{Env: e, Rows: nb.State{}, Owner: cluster.NodeOwner(e.Node.Name)}
}

// Load balancer groups. Their members are the Services. The node switch and the gateway router
// refer to the groups, so a Service is one row wherever it is served.
const (
	GroupBoth   = "clusterLBGroup"       // the same on the node switch and on the gateway router
	GroupSwitch = "clusterSwitchLBGroup" // for pods only
	GroupRouter = "clusterRouterLBGroup" // for the host and the external network only
)

// groupParts is the number of groups of each kind. When a load balancer changes, ovn-northd
// processes all members of its group: for its database client, every row that refers to the row
// changes. With 10 000 Services in one group, this took most of the time of an endpoint's change.
const groupParts = 16

// GroupOf returns the group of the given kind that has a Service's load balancers.
func GroupOf(kind string, service cluster.Owner) string {
	return groupPart(kind, int(stablehash.String32(service.Namespace+"/"+service.Name)%groupParts))
}

func groupPart(kind string, i int) string { return fmt.Sprintf("%s-%02d", kind, i) }

// GroupsOf returns all groups of the given kinds, if Services are load balancers.
func (z *Zone) GroupsOf(kinds ...string) (list []string) {
	if !z.Engine.LoadBalancers {
		return nil
	}
	for _, k := range kinds {
		for i := range groupParts {
			list = append(list, groupPart(k, i))
		}
	}
	return list
}

// Geneve is the UDP port of the tunnels.
const Geneve = 6081

// Names in the node's zone; they are those of OVN-Kubernetes.
func RouterToSwitch(node string) string { return "rtos-" + node }

func SwitchToRouter(node string) string { return "stor-" + node }

func GatewayRouter(node string) string { return "GR_" + node }

func ExternalSwitch(node string) string { return "ext_" + node }

func ManagementPort(node string) string { return "k8s-" + node }

func RouterToJoin(router string) string { return "rtoj-" + router }

func JoinToRouter(router string) string { return "jtor-" + router }

func RouterToExternal(node string) string { return "rtoe-" + GatewayRouter(node) }

func ExternalToRouter(node string) string { return "etor-" + GatewayRouter(node) }

func RouterToTransit(node string) string { return "rtots-" + node }

func TransitToRouter(node string) string { return "tstor-" + node }

func Localnet(bridge, node string) string { return bridge + "_" + node }

// patchPort is the bridge's end of the patch that ovn-controller makes for the localnet port.
func patchPort(bridge, node string) string { return "patch-" + Localnet(bridge, node) + "-to-br-int" }

// Addresses returns the prefix that pick selects for each IP version.
func (e *Env) Addresses(pick func(*Stack) netip.Prefix) []netip.Prefix {
	list := make([]netip.Prefix, 0, len(e.Stacks))
	for i := range e.Stacks {
		list = append(list, pick(&e.Stacks[i]))
	}
	return list
}

// Link connects a router port to its switch port. The router port's MAC follows from its first
// address.
func (z *Zone) Link(p nb.RouterPort, sw, peer string, options map[string]string) {
	if p.MAC == (cluster.MAC{}) {
		p.MAC = cluster.MACFor(p.Networks[0].Addr())
	}
	p.Owner = z.Owner
	o := map[string]string{"router-port": p.Name}
	addresses := "router" // OVN takes the router port's own
	for k, v := range options {
		o[k] = v
	}
	if o["nat-addresses"] != "" {
		addresses = p.MAC.String()
	}
	z.Rows.Add(&p, &nb.SwitchPort{Name: peer, Switch: sw, Type: "router", Addresses: []string{addresses}, Options: o,
		Owner: z.Owner})
}

// HostsSet is the address set of all nodes' addresses.
func HostsSet(f cluster.Family) string { return "hosts_" + Vocab(f).Match }

// RouterToHost adds a policy of the gateway router that sends packets to the host. A policy's next
// hop must be in a network of the router, so it is the router's own address in place of MasqNext,
// with the same MAC.
func (z *Zone) RouterToHost(gr string, s *Stack, priority int, match string, options map[string]string) {
	own := s.Address.Addr()
	z.Rows.Add(
		&nb.MACBinding{Port: RouterToExternal(z.Node.Name), IP: own, MAC: MasqMAC(), Owner: z.Owner},
		&nb.Policy{Router: gr, Priority: priority, Match: match, Action: nb.Reroute, NextHops: []netip.Addr{own},
			Options: options, Owner: z.Owner},
	)
}

// PodsToHost routes pods' packets to destinations that match to the host, through the management
// port. to is an address, a range or a set of OVN; and is a further condition, or empty. The match
// ends with the node's name, as in OVN-Kubernetes.
func (z *Zone) PodsToHost(s *Stack, priority int, to, and string) {
	name := z.Node.Name
	z.Rows.Add(&nb.Policy{
		Router: claims.ClusterRouter, Priority: priority,
		Match: `inport == "` + RouterToSwitch(name) + `" && ` + Vocab(s.Family).Match + `.dst == ` + to + and +
			` /* ` + name + ` */`,
		Action: nb.Reroute, NextHops: []netip.Addr{s.Management.Addr()}, Owner: z.Owner,
	})
}

// AddressSet returns the addresses of one family as an address set.
func (z *Zone) AddressSet(prefix string, f cluster.Family, list []netip.Addr) *nb.AddressSet {
	set := &nb.AddressSet{Name: prefix + Vocab(f).Match, Owner: z.Owner}
	for _, a := range list {
		if cluster.FamilyOf(a) == f {
			set.Addresses = append(set.Addresses, HostPrefix(a))
		}
	}
	return set
}

// MatchSet formats ranges as the right side of an OVN match.
func MatchSet(list []netip.Prefix) string {
	texts := make([]string, len(list))
	for i, p := range list {
		texts[i] = p.String()
	}
	if len(texts) == 1 {
		return texts[0]
	}
	return "{" + strings.Join(texts, ", ") + "}"
}
