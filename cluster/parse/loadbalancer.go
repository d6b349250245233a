package parse

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "hairpin/api/v1"
	"hairpin/api/v1alpha1"
	"hairpin/cluster"
)

// ingressPorts reads the records of ports, sorted.
func ingressPorts(o *corev1.Service) (list []cluster.IngressPort) {
	for _, in := range o.Status.LoadBalancer.Ingress {
		for _, x := range in.Ports {
			a, err := parseIngress(in.IP)
			q, errProtocol := cluster.ParseProtocol(x.Protocol)
			if err != nil || errProtocol != nil || x.Port < 1 || x.Port > 65535 {
				continue
			}
			r := cluster.IngressPort{Address: a,
				LoadBalancerPort: cluster.LoadBalancerPort{Protocol: q, Port: uint16(x.Port)}}
			if x.Error != nil {
				r.Error = strings.Clone(*x.Error)
			}
			list = append(list, r)
		}
	}
	slices.SortFunc(list, cluster.IngressPort.Compare)
	return list
}

// PoolRequest returns nil for an EgressIP that gets no address from a pool.
func PoolRequest(o *v1.EgressIP) *cluster.LoadBalancer {
	if o.Spec.AddressPool == "" {
		return nil
	}
	l := &cluster.LoadBalancer{Owner: Owner(o), UID: string(o.UID), Created: o.CreationTimestamp.Time.UTC(),
		Pool: strings.Clone(o.Spec.AddressPool), Families: []cluster.Family{cluster.IPv4, cluster.IPv6}, Prefers: true}
	for _, text := range o.Status.Addresses {
		if a, err := cluster.ParseHostAddr(text); err == nil {
			l.Ingress = append(l.Ingress, a)
		}
	}
	readCondition(l, o.Status.Conditions)
	return l
}

// readCondition reads the condition from a status.
func readCondition(l *cluster.LoadBalancer, list []metav1.Condition) {
	if c := meta.FindStatusCondition(list, l.ConditionType()); c != nil {
		l.Condition = *c.DeepCopy()
	}
}

// LoadBalancer returns nil for a Service that gets no address from a pool.
func LoadBalancer(o *corev1.Service, c *cluster.LoadBalancerConfig) (*cluster.LoadBalancer, []cluster.Problem) {
	spec := &o.Spec
	ours := c.Default
	if spec.LoadBalancerClass != nil {
		ours = *spec.LoadBalancerClass == c.Class
	}
	if spec.Type != corev1.ServiceTypeLoadBalancer || !ours || ignored(o.Labels) {
		return nil, nil
	}
	p := serviceParser{objectParser{owner: Owner(o)}, spec}
	l := &cluster.LoadBalancer{
		Owner: p.owner, UID: string(o.UID), Created: o.CreationTimestamp.Time.UTC(), Labels: maps.Clone(o.Labels),
		Prefers: spec.IPFamilyPolicy != nil && *spec.IPFamilyPolicy == corev1.IPFamilyPolicyPreferDualStack,
		Sharing: strings.Clone(o.Annotations[v1alpha1.AnnotationSharing]),
		Local:   spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
	}
	for _, text := range append(slices.Clone(spec.ClusterIPs), spec.ClusterIP) {
		if a, err := cluster.ParseAddr(text); err == nil && !slices.Contains(l.Families, cluster.FamilyOf(a)) {
			l.Families = append(l.Families, cluster.FamilyOf(a))
		}
	}
	for i := range spec.Ports {
		x := &spec.Ports[i]
		if q, err := cluster.ParseProtocol(x.Protocol); err == nil && x.Port >= 1 && x.Port <= 65535 {
			l.Ports = append(l.Ports, cluster.LoadBalancerPort{Protocol: q, Port: uint16(x.Port)})
		}
	}
	slices.SortFunc(l.Ports, cluster.LoadBalancerPort.Compare)
	p.requested(l, o.Annotations[v1alpha1.AnnotationAddresses])
	for _, in := range o.Status.LoadBalancer.Ingress {
		a, err := cluster.ParseHostAddr(in.IP)
		if err != nil || in.Hostname != "" || in.IPMode != nil && *in.IPMode != corev1.LoadBalancerIPModeVIP {
			l.Foreign = true
			continue
		}
		l.Ingress = append(l.Ingress, a)
	}
	l.Recorded = ingressPorts(o)
	readCondition(l, o.Status.Conditions)
	return l, p.problems.List()
}

// requested reads the requested addresses: the annotation, or spec.loadBalancerIP.
func (p *serviceParser) requested(l *cluster.LoadBalancer, annotation string) {
	field, texts := "metadata.annotations["+v1alpha1.AnnotationAddresses+"]", strings.Split(annotation, ",")
	if annotation == "" {
		field, texts = "spec.loadBalancerIP", []string{p.spec.LoadBalancerIP}
	}
	for _, text := range texts {
		text = strings.TrimSpace(text)
		if text == "" {
			continue
		}
		a, err := cluster.ParseHostAddr(text)
		switch {
		case err != nil:
			p.problem(field, "%v", err)
		case len(ofFamily(l.Requested, cluster.FamilyOf(a))) > 0:
			p.problem(field, "%s is a second address of its family; the first is requested", a)
		case !slices.Contains(l.Families, cluster.FamilyOf(a)):
			p.problem(field, "%s is an %s address, and the Service has no cluster IP of this family", a,
				cluster.FamilyOf(a))
		default:
			l.Requested = append(l.Requested, a)
		}
	}
}

// parseIngress reads an address of a load balancer. An IPv4 link-local one is accepted: the guard
// rejects it unless the administrator has listed it.
func parseIngress(text string) (netip.Addr, error) {
	if a, err := cluster.ParseAddr(text); err == nil && a.Is4() && a.IsLinkLocalUnicast() {
		return a, nil
	}
	return cluster.ParseHostAddr(text)
}
