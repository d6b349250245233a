package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
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

func ownerOf(kind string, m *metav1.ObjectMeta) Owner { return Owner{kind, m.Namespace, m.Name} }

func ignored(labels map[string]string) bool {
	_, other := labels[labelProxyName]
	_, headless := labels[labelHeadless]
	return other || headless
}

// service is a Service that exists, or that a slice names.
type service struct {
	present  bool
	served   bool        // it has addresses to serve
	ports    []*Frontend // without Backends
	problems []Problem
	refused  Problems // by the guard
	slices   []*slice // by name
}

// set adds a slice, or replaces the one with its name.
func (v *service) set(x *slice) {
	i, found := v.find(x.owner)
	if found {
		v.slices[i] = x
		return
	}
	v.slices = slices.Insert(v.slices, i, x)
}

func (v *service) drop(slice Owner) {
	if i, found := v.find(slice); found {
		v.slices = slices.Delete(v.slices, i, i+1)
	}
}

func (v *service) find(owner Owner) (int, bool) {
	return slices.BinarySearchFunc(v.slices, owner, func(x *slice, o Owner) int { return x.owner.Compare(o) })
}

// frontends returns the ports with the slices' endpoints. It reuses a Frontend of old that is
// equal, so that a reader can detect changes by pointer.
func (v *service) frontends(old []*Frontend, g *guard) []*Frontend {
	var out []*Frontend
	v.refused = Problems{}
	for _, x := range v.slices {
		x.applyGuard(g)
	}
	for _, port := range v.ports {
		out = append(out, g.admit(new(*port), &v.refused))
	}
	v.fill(out)
	for i, f := range out {
		if at, found := slices.BinarySearchFunc(old, f, (*Frontend).Compare); found && f.equal(old[at]) {
			out[i] = old[at]
		}
	}
	return out
}

// hasExternal reports whether the Service requests addresses besides its cluster IPs.
func (v *service) hasExternal() bool {
	return slices.ContainsFunc(v.ports, func(f *Frontend) bool { return len(f.ExternalIPs)+len(f.LoadBalancerIPs) > 0 })
}

// mayHaveReservedEndpoint reports whether a node range could reserve the address of one of its
// endpoints.
func (v *service) mayHaveReservedEndpoint(c *Config) bool {
	return slices.ContainsFunc(v.slices, func(x *slice) bool {
		return slices.ContainsFunc(x.named, func(b Backend) bool { return c.mayBeReserved(b.Addr) })
	})
}

// hasEndpointIn reports whether one of its endpoints has one of the addresses.
func (v *service) hasEndpointIn(addresses map[netip.Addr]bool) bool {
	return len(addresses) > 0 && slices.ContainsFunc(v.slices, func(x *slice) bool {
		return slices.ContainsFunc(x.named, func(b Backend) bool { return addresses[b.Addr] })
	})
}

type serviceParser struct {
	objectParser
	spec *corev1.ServiceSpec
}

// parseService returns the Frontends of one Service, sorted and without Backends. It returns none
// for a Service that is not served: one with another proxy, a headless one, or an ExternalName.
func parseService(o *corev1.Service) (served bool, ports []*Frontend, problems []Problem) {
	spec := &o.Spec
	if ignored(o.Labels) || spec.Type == corev1.ServiceTypeExternalName || spec.ClusterIP == corev1.ClusterIPNone {
		return false, nil, nil
	}
	p := serviceParser{objectParser{owner: ownerOf("Service", &o.ObjectMeta)}, spec}
	p.checkEnums()
	base := Frontend{
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
	frontends := p.parsePorts()
	balancer, external := p.limit(len(frontends), p.ingress(o),
		p.addresses("spec.externalIPs", spec.ExternalIPs, parseHostAddr))
	ranges, records := p.sourceRanges(len(frontends)*len(balancer)), ingressPorts(o)
	for _, ip := range p.clusterIPs() {
		base.Family, base.ClusterIP = FamilyOf(ip), ip
		base.SourceRanges, base.Restricted = ranges.of(base.Family)
		base.ExternalIPs, base.LoadBalancerIPs = ofFamily(external, base.Family), ofFamily(balancer, base.Family)
		for _, port := range frontends {
			f := new(base)
			f.PortName, f.Protocol, f.Port, f.NodePort = port.PortName, port.Protocol, port.Port, port.NodePort
			if len(records) > 0 {
				f.LoadBalancerIPs = slices.DeleteFunc(slices.Clone(f.LoadBalancerIPs), func(a netip.Addr) bool {
					return HasRecords(records, a) && !Recorded(records, a, LoadBalancerPort{f.Protocol, f.Port})
				})
			}
			ports = append(ports, f)
		}
	}
	slices.SortFunc(ports, (*Frontend).Compare)
	return true, ports, p.problems.List()
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
		ip, err := parseHostAddr(text)
		switch {
		case err != nil:
			p.problem(field, "%v", err)
		case len(ofFamily(out, FamilyOf(ip))) > 0:
			p.problem(field, "%s is a second address of its family; the first is used", ip)
		default:
			out = append(out, ip)
		}
	}
	return out
}

// parsePorts omits ports with invalid values.
func (p *serviceParser) parsePorts() []Frontend {
	if len(p.spec.Ports) == 0 {
		p.problem("spec.ports", "the Service has no port")
	}
	var out []Frontend
	names := map[string]bool{}
	for i := range p.spec.Ports {
		port, field := &p.spec.Ports[i], fmt.Sprintf("spec.ports[%d]", i)
		protocol, err := parseProtocol(port.Protocol)
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
			out = append(out, Frontend{PortName: port.Name, Protocol: protocol, Port: uint16(port.Port),
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

func parseProtocol(p corev1.Protocol) (Protocol, error) {
	switch p {
	case corev1.ProtocolTCP, "":
		return TCP, nil
	case corev1.ProtocolUDP:
		return UDP, nil
	case corev1.ProtocolSCTP:
		return SCTP, nil
	}
	return 0, fmt.Errorf("%q is not a protocol of ports (TCP, UDP, SCTP)", p)
}

func (f *Frontend) equal(g *Frontend) bool {
	return f.Owner == g.Owner && f.UID == g.UID && f.Created.Equal(g.Created) && f.PortName == g.PortName &&
		f.Family == g.Family && f.Protocol == g.Protocol &&
		f.ClusterIP == g.ClusterIP && f.Port == g.Port && f.NodePort == g.NodePort && f.Affinity == g.Affinity &&
		f.ExternalLocal == g.ExternalLocal && f.InternalLocal == g.InternalLocal && f.Triggered.Equal(g.Triggered) &&
		f.Restricted == g.Restricted && f.HealthCheckNodePort == g.HealthCheckNodePort &&
		slices.Equal(f.SourceRanges, g.SourceRanges) &&
		slices.Equal(f.ExternalIPs, g.ExternalIPs) && slices.Equal(f.LoadBalancerIPs, g.LoadBalancerIPs) &&
		slices.EqualFunc(f.Backends, g.Backends, Backend.equal)
}

func (b Backend) equal(c Backend) bool {
	return b.Addr == c.Addr && b.Port == c.Port && b.Node == c.Node && b.Ready == c.Ready && b.Serving == c.Serving &&
		b.Terminating == c.Terminating && b.Zone == c.Zone && slices.Equal(b.ForZones, c.ForZones) &&
		slices.Equal(b.ForNodes, c.ForNodes)
}
