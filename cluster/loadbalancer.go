package cluster

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "hairpin/api/v1"
	"hairpin/api/v1alpha1"
)

// LoadBalancerConfig defines which Services get addresses of LoadBalancerPools.
type LoadBalancerConfig struct {
	Class   string // [default] load-balancer-class: their spec.loadBalancerClass
	Default bool   // [default] load-balancer-default: also those without a class
}

// LoadBalancer is one Service of type LoadBalancer that gets its addresses from LoadBalancerPools,
// or an EgressIP with a pool.
type LoadBalancer struct {
	Owner   Owner
	UID     string
	Created time.Time
	Labels  map[string]string
	Pool    string // the name of the only pool; empty: those that select the Service
	// Families are those of its cluster IPs, in their order. With Prefers, one is enough.
	Families []Family
	Prefers  bool
	// Requested are addresses that it must have, at most one per family.
	Requested []netip.Addr
	// Sharing is its key for sharing an address with other Services; empty: it shares none.
	Sharing string
	Ports   []LoadBalancerPort // sorted
	Local   bool               // externalTrafficPolicy: Local
	// Ingress are the addresses in its status. With Foreign, the status has something else, too.
	Ingress   []netip.Addr
	Foreign   bool
	Recorded  []IngressPort    // sorted
	Condition metav1.Condition // of the type that ConditionType returns; empty if there is none
}

// LoadBalancerPort is a port at which a LoadBalancer is served.
type LoadBalancerPort struct {
	Protocol Protocol
	Port     uint16
}

func (p LoadBalancerPort) compare(q LoadBalancerPort) int {
	return cmp.Or(cmp.Compare(p.Protocol, q.Protocol), cmp.Compare(p.Port, q.Port))
}

// IngressPort is the record of a port at an address, in status.loadBalancer.ingress. With an Error,
// the port is not served there. An address without records has all ports.
type IngressPort struct {
	Address netip.Addr
	LoadBalancerPort
	Error string
}

// ErrorPort is the Error of a port that a Service does not get at a node's address.
const ErrorPort = "hairpin.dev/PortNotAvailable"

// Compare orders records by address, protocol and port.
func (r IngressPort) Compare(q IngressPort) int {
	return cmp.Or(r.Address.Compare(q.Address), r.LoadBalancerPort.compare(q.LoadBalancerPort),
		cmp.Compare(r.Error, q.Error))
}

// ingressPorts reads the records of ports, sorted.
func ingressPorts(o *corev1.Service) (list []IngressPort) {
	for _, in := range o.Status.LoadBalancer.Ingress {
		for _, x := range in.Ports {
			a, err := parseIngress(in.IP)
			q, errProtocol := parseProtocol(x.Protocol)
			if err != nil || errProtocol != nil || x.Port < 1 || x.Port > 65535 {
				continue
			}
			r := IngressPort{a, LoadBalancerPort{q, uint16(x.Port)}, ""}
			if x.Error != nil {
				r.Error = strings.Clone(*x.Error)
			}
			list = append(list, r)
		}
	}
	slices.SortFunc(list, IngressPort.Compare)
	return list
}

// Recorded reports whether records say that a port is served at an address.
func Recorded(sorted []IngressPort, a netip.Addr, x LoadBalancerPort) bool {
	_, found := slices.BinarySearchFunc(sorted, IngressPort{a, x, ""}, IngressPort.Compare)
	return found
}

// HasRecords reports whether there is a record for an address.
func HasRecords(sorted []IngressPort, a netip.Addr) bool {
	_, found := slices.BinarySearchFunc(sorted, a,
		func(r IngressPort, a netip.Addr) int { return r.Address.Compare(a) })
	return found
}

// Older orders LoadBalancers by precedence for addresses.
func (l *LoadBalancer) Older(m *LoadBalancer) int {
	return cmp.Or(l.Created.Compare(m.Created), cmp.Compare(l.UID, m.UID), l.Owner.Compare(m.Owner))
}

// ConditionType is the type of the condition about the addresses.
func (l *LoadBalancer) ConditionType() string {
	if l.Pool != "" {
		return v1.ConditionAllocated
	}
	return v1alpha1.ConditionAddress
}

// parsePoolRequest returns nil for an EgressIP that gets no address from a pool.
func parsePoolRequest(o *v1.EgressIP) *LoadBalancer {
	if o.Spec.AddressPool == "" {
		return nil
	}
	l := &LoadBalancer{Owner: egressIPOwner(o.Name), UID: string(o.UID), Created: o.CreationTimestamp.Time.UTC(),
		Pool: strings.Clone(o.Spec.AddressPool), Families: []Family{IPv4, IPv6}, Prefers: true}
	for _, text := range o.Status.Addresses {
		if a, err := parseHostAddr(text); err == nil {
			l.Ingress = append(l.Ingress, a)
		}
	}
	l.condition(o.Status.Conditions)
	return l
}

// condition reads the condition from a status.
func (l *LoadBalancer) condition(list []metav1.Condition) {
	if c := meta.FindStatusCondition(list, l.ConditionType()); c != nil {
		l.Condition = *c.DeepCopy()
	}
}

// parseLoadBalancer returns nil for a Service that gets no address from a pool.
func parseLoadBalancer(o *corev1.Service, c *LoadBalancerConfig) (*LoadBalancer, []Problem) {
	spec := &o.Spec
	ours := c.Default
	if spec.LoadBalancerClass != nil {
		ours = *spec.LoadBalancerClass == c.Class
	}
	if spec.Type != corev1.ServiceTypeLoadBalancer || !ours || ignored(o.Labels) {
		return nil, nil
	}
	p := serviceParser{objectParser{owner: ownerOf("Service", &o.ObjectMeta)}, spec}
	l := &LoadBalancer{
		Owner: p.owner, UID: string(o.UID), Created: o.CreationTimestamp.Time.UTC(), Labels: maps.Clone(o.Labels),
		Prefers: spec.IPFamilyPolicy != nil && *spec.IPFamilyPolicy == corev1.IPFamilyPolicyPreferDualStack,
		Sharing: strings.Clone(o.Annotations[v1alpha1.AnnotationSharing]),
		Local:   spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
	}
	for _, text := range append(slices.Clone(spec.ClusterIPs), spec.ClusterIP) {
		if a, err := parseAddr(text); err == nil && !slices.Contains(l.Families, FamilyOf(a)) {
			l.Families = append(l.Families, FamilyOf(a))
		}
	}
	for i := range spec.Ports {
		if q, err := parseProtocol(spec.Ports[i].Protocol); err == nil {
			l.Ports = append(l.Ports, LoadBalancerPort{q, uint16(spec.Ports[i].Port)})
		}
	}
	slices.SortFunc(l.Ports, LoadBalancerPort.compare)
	p.requested(l, o.Annotations[v1alpha1.AnnotationAddresses])
	for _, in := range o.Status.LoadBalancer.Ingress {
		a, err := parseHostAddr(in.IP)
		if err != nil || in.Hostname != "" || in.IPMode != nil && *in.IPMode != corev1.LoadBalancerIPModeVIP {
			l.Foreign = true
			continue
		}
		l.Ingress = append(l.Ingress, a)
	}
	l.Recorded = ingressPorts(o)
	l.condition(o.Status.Conditions)
	return l, p.problems.List()
}

// requested reads the requested addresses: the annotation, or spec.loadBalancerIP.
func (p *serviceParser) requested(l *LoadBalancer, annotation string) {
	field, texts := "metadata.annotations["+v1alpha1.AnnotationAddresses+"]", strings.Split(annotation, ",")
	if annotation == "" {
		field, texts = "spec.loadBalancerIP", []string{p.spec.LoadBalancerIP}
	}
	for _, text := range texts {
		text = strings.TrimSpace(text)
		if text == "" {
			continue
		}
		a, err := parseHostAddr(text)
		switch {
		case err != nil:
			p.problem(field, "%v", err)
		case len(ofFamily(l.Requested, FamilyOf(a))) > 0:
			p.problem(field, "%s is a second address of its family; the first is requested", a)
		case !slices.Contains(l.Families, FamilyOf(a)):
			p.problem(field, "%s is an %s address, and the Service has no cluster IP of this family", a, FamilyOf(a))
		default:
			l.Requested = append(l.Requested, a)
		}
	}
}
