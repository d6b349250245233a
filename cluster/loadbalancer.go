package cluster

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "hairpin/api/v1"
	"hairpin/api/v1alpha1"
)

// LoadBalancerConfig defines which Services get addresses of LoadBalancerPools.
type LoadBalancerConfig struct {
	Class   string // [default] load-balancer-class: those with this spec.loadBalancerClass
	Default bool   // [default] load-balancer-default: also those without a class
}

// LoadBalancer is one Service of type LoadBalancer that gets its addresses from LoadBalancerPools,
// or an EgressIP with a pool.
type LoadBalancer struct {
	Owner   Owner
	UID     string
	Created time.Time
	Labels  map[string]string
	Pool    string // the only pool that it may use; empty: all pools that select the Service
	// Families are those of its cluster IPs, in their order. It needs an address of each.
	Families []Family
	Prefers  bool // an address of each of Families, but one of them is enough
	// Requested are the only addresses that it may get, at most one per family.
	Requested []netip.Addr
	// Sharing is a key: Services with the same key may share an address. Empty: it shares none.
	Sharing string
	Ports   []LoadBalancerPort // sorted
	Local   bool               // externalTrafficPolicy: Local
	// Ingress are the addresses in its status. Foreign reports that the status also has items that
	// Hairpin does not write, such as host names.
	Ingress   []netip.Addr
	Foreign   bool
	Recorded  []IngressPort    // ports in its status, sorted
	Condition metav1.Condition // of the type that ConditionType returns; empty if there is none
}

// LoadBalancerPort is a port at which a LoadBalancer is served.
type LoadBalancerPort struct {
	Protocol Protocol
	Port     uint16
}

// Compare orders ports by protocol and number.
func (p LoadBalancerPort) Compare(q LoadBalancerPort) int {
	return cmp.Or(cmp.Compare(p.Protocol, q.Protocol), cmp.Compare(p.Port, q.Port))
}

// IngressPort is the record of a port at an address, in status.loadBalancer.ingress. With an Error,
// the port is not served there. At an address without records, all ports are served.
type IngressPort struct {
	Address netip.Addr
	LoadBalancerPort
	Error string
}

// ErrorPort is the Error of a port that a Service does not get at a node's address.
const ErrorPort = "hairpin.dev/PortNotAvailable"

// Compare orders records by address, protocol and port.
func (r IngressPort) Compare(q IngressPort) int {
	return cmp.Or(r.Address.Compare(q.Address), r.LoadBalancerPort.Compare(q.LoadBalancerPort),
		cmp.Compare(r.Error, q.Error))
}

// IsRecorded reports whether records say that a port is served at an address.
func IsRecorded(sorted []IngressPort, a netip.Addr, x LoadBalancerPort) bool {
	_, found := slices.BinarySearchFunc(sorted, IngressPort{a, x, ""}, IngressPort.Compare)
	return found
}

// HasRecords reports whether there is a record for an address.
func HasRecords(sorted []IngressPort, a netip.Addr) bool {
	_, found := slices.BinarySearchFunc(sorted, a,
		func(r IngressPort, a netip.Addr) int { return r.Address.Compare(a) })
	return found
}

// CompareAge orders LoadBalancers by precedence for addresses: the older first.
func (l *LoadBalancer) CompareAge(m *LoadBalancer) int {
	return cmp.Or(l.Created.Compare(m.Created), cmp.Compare(l.UID, m.UID), l.Owner.Compare(m.Owner))
}

// ConditionType returns the type of the condition about the addresses.
func (l *LoadBalancer) ConditionType() string {
	if l.Pool != "" {
		return v1.ConditionAllocated
	}
	return v1alpha1.ConditionAddress
}
