package cluster

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Labels with which a Service asks not to be served by the cluster's Service proxy (kube-proxy's contract).
const (
	labelProxyName = "service.kubernetes.io/service-proxy-name"
	labelHeadless  = "service.kubernetes.io/headless"
)

// defaultAffinity is the session affinity timeout of Kubernetes when the Service names none.
const defaultAffinity = 10800 * time.Second

func ownerOf(kind string, m *metav1.ObjectMeta) Owner { return Owner{kind, m.Namespace, m.Name} }

// served tells whether a Service has addresses for us to serve.
func served(s *corev1.Service) bool {
	if _, other := s.Labels[labelProxyName]; other {
		return false
	}
	if _, headless := s.Labels[labelHeadless]; headless {
		return false
	}
	return s.Spec.Type != corev1.ServiceTypeExternalName && s.Spec.ClusterIP != corev1.ClusterIPNone && s.Spec.ClusterIP != ""
}

// parseService gives the Frontends of one Service. A Frontend that equals one of old is that one, so that a reader
// can tell by pointer that nothing changed.
func parseService(s *corev1.Service, sliceSet map[string]*discoveryv1.EndpointSlice, old []*Frontend) ([]*Frontend, []Problem) {
	if !served(s) {
		return nil, nil
	}
	p := serviceParser{service: s, owner: ownerOf("Service", &s.ObjectMeta)}
	p.slices = make([]*discoveryv1.EndpointSlice, 0, len(sliceSet))
	for _, x := range sliceSet {
		p.slices = append(p.slices, x)
	}
	slices.SortFunc(p.slices, func(a, b *discoveryv1.EndpointSlice) int { return cmp.Compare(a.Name, b.Name) })
	p.frontends()
	for i, f := range p.out {
		if j := slices.IndexFunc(old, func(g *Frontend) bool { return f.equal(g) }); j >= 0 {
			p.out[i] = old[j]
		}
	}
	return p.out, p.problems
}

type serviceParser struct {
	service  *corev1.Service
	owner    Owner
	slices   []*discoveryv1.EndpointSlice
	out      []*Frontend
	problems []Problem
}

func (p *serviceParser) problem(field, format string, args ...any) {
	p.problems = append(p.problems, Problem{p.owner, field, fmt.Sprintf(format, args...)})
}

func (p *serviceParser) frontends() {
	spec := &p.service.Spec
	ips := spec.ClusterIPs
	if len(ips) == 0 {
		ips = []string{spec.ClusterIP}
	}
	external := p.addresses("spec.externalIPs", spec.ExternalIPs)
	lb := p.ingressAddresses()
	affinity := p.affinity()
	for i, text := range ips {
		field := fmt.Sprintf("spec.clusterIPs[%d]", i)
		ip, err := parseAddr(text)
		if err != nil {
			p.problem(field, "%v", err)
			continue
		}
		family := FamilyOf(ip)
		for j := range spec.Ports {
			port := &spec.Ports[j]
			protocol, ok := p.checkPort(i == 0, j, port)
			if !ok {
				continue
			}
			f := &Frontend{
				Owner: p.owner, PortName: port.Name, Family: family, Protocol: protocol, ClusterIP: ip,
				Port: uint16(port.Port), NodePort: uint16(port.NodePort), Affinity: affinity,
				ExternalIPs: ofFamily(external, family), LoadBalancerIPs: ofFamily(lb, family),
				ExternalLocal: spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal,
				InternalLocal: spec.InternalTrafficPolicy != nil && *spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal,
			}
			p.backends(f)
			p.out = append(p.out, f)
		}
	}
}

// checkPort refuses what no packet could carry. Problems are told once, not once per family.
func (p *serviceParser) checkPort(tell bool, j int, port *corev1.ServicePort) (Protocol, bool) {
	field := fmt.Sprintf("spec.ports[%d]", j)
	problem := func(name, format string, args ...any) {
		if tell {
			p.problem(field+name, format, args...)
		}
	}
	protocol, err := parseProtocol(port.Protocol)
	switch {
	case err != nil:
		problem(".protocol", "%v", err)
	case port.Port < 1 || port.Port > 65535:
		problem(".port", "%d is not a port number (1 to 65535)", port.Port)
	case port.NodePort < 0 || port.NodePort > 65535:
		problem(".nodePort", "%d is not a port number (1 to 65535)", port.NodePort)
	default:
		return protocol, true
	}
	return 0, false
}

func (p *serviceParser) affinity() time.Duration {
	spec := &p.service.Spec
	if spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return 0
	}
	c := spec.SessionAffinityConfig
	if c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil {
		return defaultAffinity
	}
	seconds := *c.ClientIP.TimeoutSeconds
	if seconds < 1 || seconds > 86400 {
		p.problem("spec.sessionAffinityConfig.clientIP.timeoutSeconds", "%d is not within 1 to 86400; %v is used", seconds, defaultAffinity)
		return defaultAffinity
	}
	return time.Duration(seconds) * time.Second
}

func (p *serviceParser) addresses(field string, texts []string) []netip.Addr {
	var out []netip.Addr
	for i, t := range texts {
		a, err := parseAddr(t)
		if err != nil {
			p.problem(fmt.Sprintf("%s[%d]", field, i), "%v", err)
			continue
		}
		out = append(out, a)
	}
	return out
}

// ingressAddresses gives the load balancer's addresses that are served here: those with ipMode VIP or none.
func (p *serviceParser) ingressAddresses() []netip.Addr {
	var texts []string
	for _, in := range p.service.Status.LoadBalancer.Ingress {
		if in.IP != "" && (in.IPMode == nil || *in.IPMode == corev1.LoadBalancerIPModeVIP) {
			texts = append(texts, in.IP)
		}
	}
	return p.addresses("status.loadBalancer.ingress", texts)
}

// backends merges the endpoints of all slices for one frontend.
func (p *serviceParser) backends(f *Frontend) {
	tell := !slices.ContainsFunc(p.out, func(g *Frontend) bool { return g.Family == f.Family })
	for _, slice := range p.slices {
		if string(slice.AddressType) != f.Family.String() {
			continue
		}
		if t, err := time.Parse(time.RFC3339Nano, slice.Annotations[corev1.EndpointsLastChangeTriggerTime]); err == nil && t.After(f.Triggered) {
			f.Triggered = t
		}
		for _, port := range slice.Ports {
			if port.Port == nil || deref(port.Name) != f.PortName || !sameProtocol(port.Protocol, f.Protocol) {
				continue
			}
			p.endpoints(f, slice, *port.Port, tell)
		}
	}
	slices.SortFunc(f.Backends, func(a, b Backend) int {
		// Of duplicates, the one that is ready comes first and stays.
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Port, b.Port), -cmp.Compare(rank(a), rank(b)), cmp.Compare(a.Node, b.Node))
	})
	f.Backends = slices.CompactFunc(f.Backends, func(a, b Backend) bool { return a.Addr == b.Addr && a.Port == b.Port })
}

func rank(b Backend) int {
	switch {
	case b.Ready:
		return 2
	case b.Serving:
		return 1
	}
	return 0
}

func (p *serviceParser) endpoints(f *Frontend, slice *discoveryv1.EndpointSlice, port int32, tell bool) {
	problem := func(field, format string, args ...any) {
		if tell {
			p.problems = append(p.problems, Problem{ownerOf("EndpointSlice", &slice.ObjectMeta), field, fmt.Sprintf(format, args...)})
		}
	}
	if port < 1 || port > 65535 {
		problem("ports", "%d is not a port number (1 to 65535)", port)
		return
	}
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		if len(e.Addresses) == 0 {
			continue
		}
		addr, err := parseAddr(e.Addresses[0])
		if err == nil && FamilyOf(addr) != f.Family {
			err = fmt.Errorf("%s is not an %s address", addr, f.Family)
		}
		if err != nil {
			problem(fmt.Sprintf("endpoints[%d].addresses[0]", i), "%v", err)
			continue
		}
		f.Backends = append(f.Backends, backendOf(e, addr, uint16(port)))
	}
}

func backendOf(e *discoveryv1.Endpoint, addr netip.Addr, port uint16) Backend {
	b := Backend{Addr: addr, Port: port, Node: deref(e.NodeName), Zone: deref(e.Zone)}
	// Nil means true for ready and, for older writers, serving follows ready (EndpointConditions' contract).
	b.Ready = e.Conditions.Ready == nil || *e.Conditions.Ready
	b.Serving = b.Ready
	if e.Conditions.Serving != nil {
		b.Serving = *e.Conditions.Serving
	}
	b.Terminating = e.Conditions.Terminating != nil && *e.Conditions.Terminating
	if e.Hints != nil {
		for _, z := range e.Hints.ForZones {
			b.ForZones = append(b.ForZones, z.Name)
		}
		for _, n := range e.Hints.ForNodes {
			b.ForNodes = append(b.ForNodes, n.Name)
		}
	}
	return b
}

func (f *Frontend) equal(g *Frontend) bool {
	return f.Owner == g.Owner && f.PortName == g.PortName && f.Family == g.Family && f.Protocol == g.Protocol &&
		f.ClusterIP == g.ClusterIP && f.Port == g.Port && f.NodePort == g.NodePort && f.Affinity == g.Affinity &&
		f.ExternalLocal == g.ExternalLocal && f.InternalLocal == g.InternalLocal && f.Triggered.Equal(g.Triggered) &&
		slices.Equal(f.ExternalIPs, g.ExternalIPs) && slices.Equal(f.LoadBalancerIPs, g.LoadBalancerIPs) &&
		slices.EqualFunc(f.Backends, g.Backends, Backend.equal)
}

func (b Backend) equal(c Backend) bool {
	return b.Addr == c.Addr && b.Port == c.Port && b.Node == c.Node && b.Ready == c.Ready && b.Serving == c.Serving &&
		b.Terminating == c.Terminating && b.Zone == c.Zone && slices.Equal(b.ForZones, c.ForZones) && slices.Equal(b.ForNodes, c.ForNodes)
}

func ofFamily(list []netip.Addr, family Family) []netip.Addr {
	var out []netip.Addr
	for _, a := range list {
		if FamilyOf(a) == family {
			out = append(out, a)
		}
	}
	return out
}

// parseAddr reads an address in its plain form. "010.0.0.1", zones and IPv4-mapped addresses are refused: two
// systems could read them as two addresses.
func parseAddr(text string) (netip.Addr, error) {
	a, err := netip.ParseAddr(text)
	if err != nil || a.Zone() != "" || a.Is4In6() {
		return netip.Addr{}, fmt.Errorf("%q is not an IPv4 or IPv6 address in plain form", text)
	}
	return a, nil
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
	return 0, fmt.Errorf("%q is not a protocol of Services (TCP, UDP, SCTP)", p)
}

func sameProtocol(p *corev1.Protocol, want Protocol) bool {
	if p == nil {
		return want == TCP
	}
	got, err := parseProtocol(*p)
	return err == nil && got == want
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
