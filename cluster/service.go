package cluster

import (
	"cmp"
	"net/netip"
	"slices"
	"time"
)

// MaxExternal is the largest product of a Service's external addresses and its ports. Each pair
// needs memory for each endpoint, so two objects that the API accepts could need gigabytes.
const MaxExternal = 10_000

// Frontend is one address family, one protocol and one port of one Service: a dual-stack Service
// with two ports is four Frontends.
type Frontend struct {
	Owner     Owner
	UID       string    // of the Service
	Created   time.Time // the Service's creationTimestamp, zero when unknown
	PortName  string    // name of the Service port; empty when the Service has one port without a name
	Family    Family
	Protocol  Protocol
	ClusterIP netip.Addr
	Port      uint16
	NodePort  uint16 // 0 = none
	// ExternalIPs and LoadBalancerIPs are further addresses at which Port is served.
	ExternalIPs     []netip.Addr
	LoadBalancerIPs []netip.Addr
	// Restricted reports that only clients within SourceRanges may reach LoadBalancerIPs. If there
	// is no range of this family, no client may. The ranges are sorted, and none is within another.
	Restricted   bool
	SourceRanges []netip.Prefix
	// HealthCheckNodePort is the port at which external load balancers ask each node whether it has
	// endpoints; 0 = none.
	HealthCheckNodePort uint16
	// Affinity is the session affinity timeout (ClientIP), 0 = none; whole seconds.
	Affinity      time.Duration
	ExternalLocal bool // externalTrafficPolicy: Local
	InternalLocal bool // internalTrafficPolicy: Local
	Backends      []Backend
	// Triggered is the newest endpoints.kubernetes.io/last-change-trigger-time of the
	// EndpointSlices, zero when unknown.
	Triggered time.Time
}

// External returns the external addresses at which f is served, each with the port, sorted.
func (f *Frontend) External() []netip.AddrPort {
	if len(f.ExternalIPs) == 0 && len(f.LoadBalancerIPs) == 0 {
		return nil
	}
	var list []netip.AddrPort
	for _, a := range slices.Concat(f.ExternalIPs, f.LoadBalancerIPs) {
		list = append(list, netip.AddrPortFrom(a, f.Port))
	}
	slices.SortFunc(list, netip.AddrPort.Compare)
	return slices.Compact(list)
}

// Key names a Frontend within the cluster: "default/web:http/tcp/IPv4".
func (f *Frontend) Key() string {
	return f.Owner.Namespace + "/" + f.Owner.Name + ":" + f.PortName + "/" + f.Protocol.String() + "/" +
		f.Family.String()
}

// Compare orders Frontends by Service, family, protocol, port and the port's name.
func (f *Frontend) Compare(g *Frontend) int {
	return cmp.Or(f.Owner.Compare(g.Owner), cmp.Compare(f.Family, g.Family), cmp.Compare(f.Protocol, g.Protocol),
		cmp.Compare(f.Port, g.Port), cmp.Compare(f.PortName, g.PortName))
}

// CompareAge orders Frontends by the age of their Services: the older Service gets an address and
// port that both request. UIDs order Services created in the same second. Names order those without
// UIDs, as in manifests.
func (f *Frontend) CompareAge(g *Frontend) int {
	return cmp.Or(f.Created.Compare(g.Created), cmp.Compare(f.UID, g.UID), f.Owner.Compare(g.Owner))
}

// FrontendsOf returns the Frontends of a Service from a list in the order of Compare.
func FrontendsOf(list []*Frontend, owner Owner) []*Frontend {
	i, _ := slices.BinarySearchFunc(list, owner,
		func(f *Frontend, o Owner) int { return f.Owner.Compare(o) })
	end := i
	for end < len(list) && list[end].Owner == owner {
		end++
	}
	return list[i:end:end]
}

// Backend is one endpoint of a Frontend. Backends are sorted by address and port, without
// duplicates.
type Backend struct {
	Addr        netip.Addr
	Port        uint16
	Node        string // endpoint's nodeName; empty if the EndpointSlice has none
	Ready       bool
	Serving     bool
	Terminating bool
	Zone        string   // endpoint's zone
	ForZones    []string // hints.forZones
	ForNodes    []string // hints.forNodes
}

// LocalNodes returns the nodes that external clients of a Service may use, sorted, if its
// externalTrafficPolicy is Local: those with a ready endpoint, or if there is none, those with a
// serving one. It returns nil if the policy is Cluster.
func LocalNodes(frontends []*Frontend) []string {
	var ready, serving []string
	local := false
	for _, f := range frontends {
		local = local || f.ExternalLocal
		for _, b := range f.Backends {
			if b.Ready && b.Node != "" {
				ready = append(ready, b.Node)
			} else if b.Serving && b.Node != "" {
				serving = append(serving, b.Node)
			}
		}
	}
	if !local {
		return nil
	}
	if len(ready) == 0 {
		ready = serving
	}
	slices.Sort(ready)
	return append([]string{}, slices.Compact(ready)...) // not nil, even if there is none
}
