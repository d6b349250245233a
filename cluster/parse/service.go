package parse

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"hairpin/cluster"
)

// Labels by which a Service and its slices opt out of the cluster's Service proxy (kube-proxy's
// contract). Their value does not matter.
const (
	labelProxyName = "service.kubernetes.io/service-proxy-name"
	labelHeadless  = "service.kubernetes.io/headless"
)

// Session affinity timeouts of Kubernetes: the default and the longest.
const (
	defaultAffinity = 10800 * time.Second
	longestAffinity = 86400 // seconds
)

// ignored reports whether another proxy serves an object with these labels.
func ignored(labels map[string]string) bool {
	_, other := labels[labelProxyName]
	_, headless := labels[labelHeadless]
	return other || headless
}

type serviceParser struct {
	objectParser
	spec *corev1.ServiceSpec
}

// Service returns the Frontends of one Service, sorted and without Backends. It returns none
// for a Service that is not served: one with another proxy, a headless one, or an ExternalName.
func Service(o *corev1.Service) (served bool, frontends []*cluster.Frontend, problems []cluster.Problem) {
	spec := &o.Spec
	if ignored(o.Labels) || spec.Type == corev1.ServiceTypeExternalName || spec.ClusterIP == corev1.ClusterIPNone {
		return false, nil, nil
	}
	p := serviceParser{objectParser{owner: Owner(o)}, spec}
	p.checkEnums()
	base := cluster.Frontend{
		Owner:         p.owner,
		UID:           string(o.UID),
		Created:       o.CreationTimestamp.Time.UTC(),
		Affinity:      p.affinity(),
		ExternalLocal: spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
		InternalLocal: spec.InternalTrafficPolicy != nil &&
			*spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal,
	}
	if base.ExternalLocal && spec.Type == corev1.ServiceTypeLoadBalancer && spec.HealthCheckNodePort > 0 &&
		spec.HealthCheckNodePort <= 65535 {
		base.HealthCheckNodePort = uint16(spec.HealthCheckNodePort)
	}
	ports := p.parsePorts()
	balancer, external := p.limit(len(ports), p.ingress(o),
		p.addresses("spec.externalIPs", spec.ExternalIPs, cluster.ParseHostAddr))
	ranges, records := p.sourceRanges(len(ports)*len(balancer)), ingressPorts(o)
	for _, ip := range p.clusterIPs() {
		base.Family, base.ClusterIP = cluster.FamilyOf(ip), ip
		base.SourceRanges, base.Restricted = ranges.of(base.Family)
		base.ExternalIPs, base.LoadBalancerIPs = ofFamily(external, base.Family), ofFamily(balancer, base.Family)
		for _, port := range ports {
			f := new(base)
			f.PortName, f.Protocol, f.Port, f.NodePort = port.PortName, port.Protocol, port.Port, port.NodePort
			if len(records) > 0 {
				f.LoadBalancerIPs = slices.DeleteFunc(slices.Clone(f.LoadBalancerIPs), func(a netip.Addr) bool {
					return cluster.HasRecords(records, a) && !cluster.IsRecorded(records, a,
						cluster.LoadBalancerPort{Protocol: f.Protocol, Port: f.Port})
				})
			}
			frontends = append(frontends, f)
		}
	}
	slices.SortFunc(frontends, (*cluster.Frontend).Compare)
	return true, frontends, p.problems.List()
}

// checkEnums reports values that Kubernetes does not define. They count as not set.
func (p *serviceParser) checkEnums() {
	check := func(field, value string, known ...string) {
		if value != "" && !slices.Contains(known, value) {
			p.problem(field, "%q is not one of %q", value, known)
		}
	}
	check("spec.type", string(p.spec.Type), "ClusterIP", "NodePort", "LoadBalancer", "ExternalName")
	check("spec.sessionAffinity", string(p.spec.SessionAffinity), "ClientIP", "None")
	check("spec.externalTrafficPolicy", string(p.spec.ExternalTrafficPolicy), "Cluster", "Local")
	if policy := p.spec.InternalTrafficPolicy; policy != nil {
		check("spec.internalTrafficPolicy", string(*policy), "Cluster", "Local")
	}
}

// clusterIPs returns at most one address per family.
func (p *serviceParser) clusterIPs() []netip.Addr {
	texts := p.spec.ClusterIPs
	if len(texts) == 0 && p.spec.ClusterIP != "" {
		texts = []string{p.spec.ClusterIP} // a manifest; the API fills both
	}
	if len(texts) == 0 {
		p.problem("spec.clusterIPs", "the Service has no cluster IP")
	}
	var out []netip.Addr
	for i, text := range texts {
		field := fmt.Sprintf("spec.clusterIPs[%d]", i)
		ip, err := cluster.ParseHostAddr(text)
		switch {
		case err != nil:
			p.problem(field, "%v", err)
		case len(ofFamily(out, cluster.FamilyOf(ip))) > 0:
			p.problem(field, "%s is a second address of its family; the first is used", ip)
		default:
			out = append(out, ip)
		}
	}
	return out
}

// parsePorts returns a Frontend for each valid port, with nothing but the port's own fields.
func (p *serviceParser) parsePorts() []cluster.Frontend {
	if len(p.spec.Ports) == 0 {
		p.problem("spec.ports", "the Service has no port")
	}
	var out []cluster.Frontend
	names := map[string]bool{}
	for i := range p.spec.Ports {
		port, field := &p.spec.Ports[i], fmt.Sprintf("spec.ports[%d]", i)
		protocol, err := cluster.ParseProtocol(port.Protocol)
		switch {
		case err != nil:
			p.problem(field+".protocol", "%v", err)
		case port.Port < 1 || port.Port > 65535:
			p.problem(field+".port", "%d is not a port number (1 to 65535)", port.Port)
		case port.NodePort < 0 || port.NodePort > 65535:
			p.problem(field+".nodePort", "%d is not a port number (1 to 65535)", port.NodePort)
		case names[port.Name]:
			p.problem(field+".name", "%q is the name of another port already", port.Name)
		case port.Name != "" && len(validation.IsDNS1123Label(port.Name)) > 0: // row names contain it
			p.problem(field+".name", "%q is not a DNS label (RFC 1123)", port.Name)
		default:
			names[port.Name] = true
			out = append(out, cluster.Frontend{PortName: port.Name, Protocol: protocol, Port: uint16(port.Port),
				NodePort: uint16(port.NodePort)})
		}
	}
	return out
}

func (p *serviceParser) affinity() time.Duration {
	if p.spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return 0
	}
	c := p.spec.SessionAffinityConfig
	if c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil {
		return defaultAffinity
	}
	seconds := *c.ClientIP.TimeoutSeconds
	if seconds < 1 || seconds > longestAffinity {
		p.problem("spec.sessionAffinityConfig.clientIP.timeoutSeconds", "%d is not within 1 to %d; %d is used",
			seconds, longestAffinity, defaultAffinity/time.Second)
		return defaultAffinity
	}
	return time.Duration(seconds) * time.Second
}

// addresses returns addresses in their order of appearance, without duplicates.
func (p *serviceParser) addresses(field string, texts []string, parse func(string) (netip.Addr, error)) []netip.Addr {
	var out []netip.Addr
	for i, text := range texts {
		a, err := parse(text)
		switch {
		case err != nil:
			p.problem(fmt.Sprintf("%s[%d]", field, i), "%v", err)
		case !slices.Contains(out, a):
			out = append(out, a)
		}
	}
	return out
}

// ingress returns the load balancer's addresses that Hairpin serves: those with ipMode VIP or none.
func (p *serviceParser) ingress(o *corev1.Service) []netip.Addr {
	if p.spec.Type != corev1.ServiceTypeLoadBalancer {
		return nil // the API removes them together with the type
	}
	var texts []string
	for _, in := range o.Status.LoadBalancer.Ingress {
		if in.IP != "" && (in.IPMode == nil || *in.IPMode == corev1.LoadBalancerIPModeVIP) {
			texts = append(texts, in.IP)
		}
	}
	return p.addresses("status.loadBalancer.ingress", texts, parseIngress)
}

// limit drops external addresses of a Service that has too many for its ports, the load balancer's
// last.
func (p *serviceParser) limit(ports int, balancer, external []netip.Addr) (keptBalancer, keptExternal []netip.Addr) {
	room := max(1, cluster.MaxExternal/max(1, ports))
	if len(balancer)+len(external) <= room {
		return balancer, external
	}
	field := "spec.externalIPs"
	if len(balancer) > room {
		field = "status.loadBalancer.ingress"
	}
	p.problem(field, "%d ports and %d external addresses multiply to more than %d: %d of the addresses are served",
		ports, len(balancer)+len(external), cluster.MaxExternal, room)
	n := min(room, len(balancer))
	return balancer[:n:n], external[:min(room-n, len(external))]
}

func ofFamily(list []netip.Addr, family cluster.Family) []netip.Addr {
	var out []netip.Addr
	for _, a := range list {
		if cluster.FamilyOf(a) == family {
			out = append(out, a)
		}
	}
	return out
}
