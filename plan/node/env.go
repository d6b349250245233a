package node

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/cluster/annotation"
	"hairpin/cluster/trust"
	"hairpin/plan/admission"
)

// Env describes the planned node to features, with every address that follows from its node ID.
type Env struct {
	Config *cluster.Config
	Node   *cluster.Node
	Mode   cluster.Mode    // of the node's gateway
	Engine Engine          // of the node's Services
	Stacks []Stack         // the IP versions that the node has, IPv4 first; never empty
	Nodes  []*cluster.Node // all nodes, this one included
	Vetted *trust.Vetted   // which of their claims are accepted

	Pods            []*cluster.Pod        // of this node
	Peers           []*cluster.Node       // other nodes
	Frontends       []*admission.Frontend // of all Services that are served
	RestrictedPorts []RestrictedPort      // load balancers' ports with source ranges, sorted
	Redirect        []string              // links where eBPF programs redirect NodePort packets to the gateway router
}

// Stack holds the addresses of the planned node in one IP version. A Prefix is an address with its
// mask, except Subnet and the ranges, which are networks.
type Stack struct {
	Family cluster.Family

	Address  netip.Prefix // of the host on the gateway bridge, and of the gateway router
	Node     netip.Addr   // the node's address on the external network: Address, if the bridge has the uplink
	NextHops []netip.Addr // default gateways on the external network, which share the load; none without the uplink
	// Routers are MACs of next hops on the external network, those of NextHops first. OnLink are
	// its networks. RoutersKnown is false if no agent has observed them, as in a manifest.
	Routers      []cluster.MAC
	OnLink       []netip.Prefix
	RoutersKnown bool
	Secondary    []netip.Addr // other addresses of the host, sorted
	Redirect     []netip.Addr // those of Secondary on links of Env.Redirect that have NodePorts, sorted

	Subnet     netip.Prefix // the node's pods
	Router     netip.Prefix // first address of Subnet: the cluster router
	Management netip.Prefix // second address of Subnet: the host

	JoinRouter netip.Prefix // the cluster router on the join switch
	Join       netip.Prefix // the gateway router on the join switch
	Transit    netip.Prefix // the cluster router on the transit switch

	// The masquerade subnet and its addresses (docs/design/origins.md#masquerade-addresses).
	Masquerade      netip.Prefix
	MasqOVN         netip.Addr // clients of an endpoint on the host, as the host sees them
	MasqRouter      netip.Addr // the gateway router, as the host sees it
	MasqHost        netip.Addr // the host, as the gateway router sees it (engine ovn)
	MasqLocal       netip.Addr // no host has it: VIP of the node's own endpoints, for external clients
	MasqAll         netip.Addr // no host has it: VIP of all endpoints, where the cluster IP may have only some
	MasqNext        netip.Addr // no host has it: the next hop from the gateway router to the host, and back
	MasqHairpin     netip.Addr // source of a pod's packets that return to the pod itself (claims.MasqHairpin)
	MasqServiceHost netip.Addr // the host on claims.ServiceHost

	Local Local // the distributed gateway port, if there is one

	Cluster  []netip.Prefix // pods of all nodes
	Services []netip.Prefix // cluster IPs
}

// Fields of a Node as Problems name them.
const (
	FieldID        = "metadata.annotations[" + annotation.NodeID + "]"
	FieldGateway   = "metadata.annotations[" + annotation.Gateway + "]"
	fieldAddresses = "status.addresses"
	fieldPodCIDRs  = "spec.podCIDRs"
)

// Checker collects the problems of one Node.
type Checker struct {
	Owner    cluster.Owner
	Problems []cluster.Problem
}

// Problem adds a problem of a field of the Node, or of the configuration.
func (c *Checker) Problem(field, format string, args ...any) {
	c.Problems = append(c.Problems, cluster.Problem{Owner: c.Owner, Field: field,
		Message: fmt.Sprintf(format, args...)})
}

// NewEnv returns the Env of a node. If it returns false, the node cannot be planned, for the
// reasons in the problems.
func NewEnv(s *cluster.Snapshot, name string) (Env, []cluster.Problem, bool) {
	e := Env{Config: &s.Config, Node: s.Node(name), Nodes: s.Nodes}
	c := Checker{Owner: cluster.NodeOwner(name)}
	if e.Node == nil {
		c.Problem("", "there is no such Node")
		return e, c.Problems, false
	}
	c.node(&e)
	if len(c.Problems) > 0 {
		return e, c.Problems, false
	}
	for _, f := range cluster.Families {
		if st, ok := c.stack(&e, f); ok {
			e.Stacks = append(e.Stacks, st)
		}
	}
	if len(e.Stacks) == 0 && len(c.Problems) == 0 {
		c.Problem(fieldPodCIDRs, "no IP family has both a pod CIDR and an address on the gateway bridge")
	}
	c.redirect(&e)
	return e, c.Problems, len(e.Stacks) > 0
}

// RejectsNode reports whether n claims something of another node. The problem is among those of the
// Snapshot.
func (e *Env) RejectsNode(n *cluster.Node) bool { return len(e.Vetted.Rejected[n.Name]) > 0 }

// CheckReachable checks the facts that every node needs to be planned and to be reached.
func (c *Checker) CheckReachable(n *cluster.Node) {
	if n.ID == 0 {
		c.Problem(FieldID, "the node has no node ID yet")
	}
	if len(n.Addresses) == 0 {
		c.Problem(fieldAddresses, "the node has no InternalIP")
	}
	if len(n.PodCIDRs) == 0 {
		c.Problem(fieldPodCIDRs, "the node has no pod CIDR")
	}
}

// node checks the facts that do not depend on the IP version.
func (c *Checker) node(e *Env) {
	n, g := e.Node, &e.Node.Gateway
	c.CheckReachable(n)
	c.mode(e)
	if g.NodeLocal {
		c.localSubnets(e)
	}
	if e.Config.EncapPort != 0 && e.Config.EncapPort != Geneve {
		c.Problem("[default] encap-port", "%d is not served yet, only %d", e.Config.EncapPort, Geneve)
	}
	switch {
	case g.MAC == cluster.MAC{}:
		c.Problem(FieldGateway, "mac-address: the gateway bridge has none")
	case g.Bridge == "":
		c.Problem(FieldGateway, "bridge-id: there is no gateway bridge")
	case e.Mode.Uplink && g.Uplink == "":
		c.Problem(FieldGateway, "uplink: mode %s needs one, bridge %s has none", e.Mode.Name, g.Bridge)
	case !e.Mode.Uplink && g.Uplink != "":
		c.Problem(FieldGateway, "uplink: mode %s has none, but %s is a port of bridge %s", e.Mode.Name, g.Uplink,
			g.Bridge)
	case len(g.Addresses) == 0:
		c.Problem(FieldGateway, "ip-addresses: the gateway bridge has none")
	}
}

// mode finds the node's gateway mode.
func (c *Checker) mode(e *Env) {
	e.Mode, e.Engine = e.Config.ModeOf(e.Node), engineOf(&e.Node.Gateway)
	name, field := e.Node.Gateway.Mode, FieldGateway
	if name == "" {
		name, field = e.Config.Gateway.Mode, "[gateway] mode"
	}
	if names := cluster.ModeNames(); name != "" && name != e.Mode.Name {
		last := len(names) - 1
		c.Problem(field, "%q is not a gateway mode: %s or %s", name, strings.Join(names[:last], ", "), names[last])
	}
}

// stack returns the addresses of one IP version, or false if the cluster or the node does not have
// it.
func (c *Checker) stack(e *Env, f cluster.Family) (Stack, bool) {
	s := Stack{Family: f, Subnet: e.Node.PodCIDR(f), Address: e.Node.GatewayAddress(f)}
	if !s.Subnet.IsValid() {
		return s, false
	}
	switch {
	case s.Address.IsValid():
	case e.Mode.Uplink:
		c.Problem(FieldGateway, "ip-addresses: the gateway bridge has no %s address, but spec.podCIDRs has a range", f)
		return s, false
	default:
		c.Problem("[gateway] advertise-address",
			"has no %s address for the gateway bridge, but spec.podCIDRs has a range", f)
		return s, false
	}
	for _, r := range e.Config.ClusterSubnets {
		if cluster.FamilyOf(r.CIDR.Addr()) == f {
			s.Cluster = append(s.Cluster, r.CIDR.Masked())
		}
	}
	if !slices.ContainsFunc(s.Cluster, func(r netip.Prefix) bool { return contains(r, s.Subnet) }) {
		c.Problem(fieldPodCIDRs, "%s is not within [default] cluster-subnets", s.Subnet)
		return s, false
	}
	if shortest, longest := prefixLengths(s.Cluster); longest-shortest > maxLengthDifference {
		c.Problem("[default] cluster-subnets", "the largest and the smallest range of %s differ by more than %d bits",
			f, maxLengthDifference)
		return s, false
	}
	for _, r := range e.Config.ServiceCIDRs {
		if cluster.FamilyOf(r.Addr()) == f {
			s.Services = append(s.Services, r.Masked())
		}
	}
	s.Node = s.Address.Addr()
	if e.Mode.Uplink {
		s.NextHops = nextHops(e, f)
		s.externalNetwork(&e.Node.Gateway)
	} else if a := e.Node.Address(f); a.IsValid() {
		s.Node = a
	}
	s.Secondary = otherAddresses(e, &s)
	if e.Node.Gateway.NodeLocal {
		s.Local = c.local(cluster.PrefixOf(e.Config.Gateway.NodeLocalSubnets, f), f)
	}
	return s, c.offsets(e, &s)
}

// offsets computes the addresses that are defined by their offset in a subnet. It returns false if
// a subnet is missing or too small.
func (c *Checker) offsets(e *Env, s *Stack) bool {
	v := map[cluster.Family]string{cluster.IPv4: "v4", cluster.IPv6: "v6"}[s.Family]
	masq := cluster.PrefixOf(e.Config.Gateway.MasqueradeSubnets, s.Family)
	join, transit := cluster.PrefixOf(e.Config.JoinSubnets, s.Family),
		cluster.PrefixOf(e.Config.TransitSubnets, s.Family)
	masqField, joinField, transitField := "[gateway] "+v+"-masquerade-subnet", "[gateway] "+v+"-join-subnet",
		"[clustermanager] "+v+"-transit-subnet"
	s.Masquerade = masq.Masked()
	for _, p := range []struct {
		to     *netip.Addr
		offset int
	}{
		{&s.MasqOVN, claims.MasqOVN}, {&s.MasqHost, claims.MasqHost}, {&s.MasqLocal, claims.MasqLocal},
		{&s.MasqAll, claims.MasqAll}, {&s.MasqNext, claims.MasqNext}, {&s.MasqHairpin, claims.MasqHairpin},
		{&s.MasqServiceHost, claims.MasqServiceHost},
	} {
		*p.to = c.Nth(masq, p.offset, masqField).Addr()
	}
	if s.MasqRouter = s.MasqOVN; e.Engine.ServiceBridge {
		s.MasqRouter = s.MasqHost // free, because the host has MasqServiceHost with this engine
	}
	s.Router = c.Nth(s.Subnet, claims.PodRouter, fieldPodCIDRs)
	s.Management = c.Nth(s.Subnet, claims.PodManagement, fieldPodCIDRs)
	s.JoinRouter = c.Nth(join, claims.JoinRouter, joinField)
	s.Join = c.Nth(join, e.Node.ID+claims.NodeOffset, joinField)
	s.Transit = c.Nth(transit, e.Node.ID+claims.NodeOffset, transitField)
	for _, p := range []netip.Addr{s.MasqOVN, s.MasqHost, s.MasqLocal, s.MasqAll, s.MasqNext, s.MasqHairpin,
		s.MasqServiceHost, s.Router.Addr(), s.Management.Addr(), s.JoinRouter.Addr(), s.Join.Addr(), s.Transit.Addr()} {
		if !p.IsValid() {
			return false
		}
	}
	return true
}

// Nth returns an address of a subnet with the subnet's mask, or the zero Prefix and a Problem.
func (c *Checker) Nth(subnet netip.Prefix, offset int, field string) netip.Prefix {
	if !subnet.IsValid() {
		c.Problem(field, "is not set, but spec.podCIDRs has a range of this IP version")
		return netip.Prefix{}
	}
	a, err := cluster.Nth(subnet, offset)
	if err != nil {
		c.Problem(field, "%v", err)
		return netip.Prefix{}
	}
	return netip.PrefixFrom(a, subnet.Bits())
}

// nextHops returns the default gateways of a family: the configured ones, else those of the node.
func nextHops(e *Env, f cluster.Family) (hops []netip.Addr) {
	for _, list := range [][]netip.Addr{e.Config.Gateway.NextHops, e.Node.Gateway.NextHops} {
		for _, a := range list {
			if cluster.FamilyOf(a) == f {
				hops = append(hops, a)
			}
		}
		if len(hops) > 0 {
			break
		}
	}
	return hops
}

// externalNetwork sets the routers and networks of the family on the external network.
func (s *Stack) externalNetwork(g *cluster.Gateway) {
	hops := slices.Clone(s.NextHops)
	for a := range g.NextHopMACs {
		if cluster.FamilyOf(a) == s.Family && !slices.Contains(s.NextHops, a) {
			hops = append(hops, a)
		}
	}
	slices.SortFunc(hops[len(s.NextHops):], netip.Addr.Compare)
	for _, a := range hops {
		if mac, ok := g.NextHopMACs[a]; ok && !slices.Contains(s.Routers, mac) {
			s.Routers = append(s.Routers, mac)
		}
	}
	for _, p := range slices.Concat(g.Addresses, g.OnLink) {
		if cluster.FamilyOf(p.Addr()) == s.Family {
			s.OnLink = append(s.OnLink, p.Masked())
		}
	}
	if s.Family == cluster.IPv6 {
		s.OnLink = append(s.OnLink, Vocab(s.Family).LinkLocal)
	}
	slices.SortFunc(s.OnLink, cluster.ComparePrefixes)
	s.OnLink = slices.Compact(s.OnLink)
	s.RoutersKnown = g.NextHopMACs != nil
}

// RoutesByHost reports whether the host routes packets of Services to endpoints elsewhere.
// It does if the mode requires it (docs/design/origins.md#host-to-service), or if the gateway
// router can reach no default gateway (docs/design/origins.md#detached-gateway).
func (e *Env) RoutesByHost(s *Stack) bool { return e.Mode.ServicesByHost || len(s.NextHops) == 0 }

// otherAddresses returns the addresses of the host that pods reach, without the one that the
// gateway router shares.
func otherAddresses(e *Env, s *Stack) []netip.Addr {
	var list []netip.Addr
	for _, p := range slices.Concat(e.Node.HostAddresses, e.Node.Gateway.Addresses) {
		a := p.Addr()
		if cluster.FamilyOf(a) == s.Family && a != s.Address.Addr() && (a.IsGlobalUnicast() || cluster.HostOnly(a)) &&
			!s.Subnet.Contains(a) && !InRanges(e.Config.Gateway.MasqueradeSubnets, a) {
			list = append(list, a)
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list)
}

func contains(outer, inner netip.Prefix) bool {
	return outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
}

// Stack returns the node's addresses of a family, or nil.
func (e *Env) Stack(f cluster.Family) *Stack {
	for i := range e.Stacks {
		if e.Stacks[i].Family == f {
			return &e.Stacks[i]
		}
	}
	return nil
}

// HostPrefix returns the Prefix of a single address.
func HostPrefix(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// InRanges reports whether one of the ranges contains the address.
func InRanges(ranges []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) })
}

// RestrictedPort is one port of a load balancer's address that loadBalancerSourceRanges restrict.
// Other ports of the address belong to NodePorts, other Services, the node or another machine.
type RestrictedPort struct {
	Addr     netip.Addr
	Protocol cluster.Protocol
	Port     uint16
}

func (g RestrictedPort) Compare(h RestrictedPort) int {
	return cmp.Or(cmp.Compare(g.Protocol, h.Protocol), cmp.Compare(g.Port, h.Port), g.Addr.Compare(h.Addr))
}

// ManagementAddress returns the host's address in a node's pod subnet. It is invalid if the subnet
// has no room for it.
func ManagementAddress(podCIDR netip.Prefix) netip.Addr {
	a, err := cluster.Nth(podCIDR, claims.PodManagement)
	if err != nil {
		return netip.Addr{}
	}
	return a
}

// AddressOf returns a pod's MAC and addresses in OVN's format. It is empty if no address is in the
// node's pod subnets.
func (e *Env) AddressOf(p *cluster.Pod) (address string, problems []cluster.Problem) {
	for _, ip := range p.IPs {
		if s := e.Stack(cluster.FamilyOf(ip)); s != nil && s.Subnet.Contains(ip) {
			address += " " + ip.String()
		} else {
			problems = append(problems, cluster.Problem{Owner: p.Owner, Field: "status.podIPs", Message: ip.String() +
				" is not in the pod subnets of node " + e.Node.Name})
		}
	}
	if address != "" {
		address = p.MAC.String() + address
	}
	return address, problems
}

// InternalRanges returns the ranges that parts of the datapath use between each other. Pods send
// only replies to them, and only to Join.
func (s *Stack) InternalRanges() []netip.Prefix {
	return []netip.Prefix{s.Masquerade, s.Join.Masked(), s.Transit.Masked()}
}

// TunnelFamily returns the IP family of the tunnels' addresses.
func (e *Env) TunnelFamily() cluster.Family { return cluster.FamilyOf(e.Node.Addresses[0]) }
