package churn

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/util/retry"
)

const (
	namespace  = "default"
	serverPort = 8080
)

var protocols = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP}

func portName(p corev1.Protocol) string { return "port-" + strings.ToLower(string(p)) }

// change makes one random change.
func (c *churn) change(ctx context.Context, r *rand.Rand) error {
	s := c.services[r.IntN(len(c.services))]
	v := s.now()
	if !v.there {
		return c.create(ctx, r, s)
	}
	switch n := r.IntN(100); {
	case n < 4:
		return c.remove(ctx, s)
	case n < 50:
		return c.move(ctx, r, s)
	case n < 54:
		return c.secondAddress(ctx, r.IntN(len(c.nodes)))
	case n < 56:
		return c.restartAgent(ctx, r.IntN(len(c.nodes)))
	case n < 64:
		v.kind = randomKind(r)
	case n < 72:
		v.etp = !v.etp
	case n < 78:
		v.itp = !v.itp
	case n < 84:
		v.affinity = []int{0, 1, 10800, 86400}[r.IntN(4)]
	case n < 90:
		v.external = !v.external
	case n < 94:
		v.ranges = r.IntN(len(sourceRanges))
	default:
		v.port = 80 + uint16(r.IntN(3))
	}
	return c.update(ctx, s, v)
}

func randomKind(r *rand.Rand) string {
	return []string{"ClusterIP", "NodePort", "LoadBalancer"}[r.IntN(3)]
}

// create creates a Service; its endpoints are written before or after it.
func (c *churn) create(ctx context.Context, r *rand.Rand, s *service) error {
	v := version{there: true, kind: randomKind(r), port: 80, etp: r.IntN(3) == 0, itp: r.IntN(5) == 0,
		external: r.IntN(3) == 0, endpoints: s.now().endpoints}
	if err := c.make(ctx, s, v); err != nil {
		return err
	}
	return c.move(ctx, r, s)
}

// make creates a Service as in a version.
func (c *churn) make(ctx context.Context, s *service, v version) error {
	c.say("create %s: %s", s.name(), v)
	s.write(v)
	o := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: s.name(), Namespace: namespace}}
	c.fill(o, s, v)
	if _, err := c.api.CoreV1().Services(namespace).Create(ctx, o, metav1.CreateOptions{}); err != nil {
		return err
	}
	return c.balance(ctx, s, v)
}

// fill writes a version into a Service.
func (c *churn) fill(o *corev1.Service, s *service, v version) {
	dual, policy := corev1.IPFamilyPolicyRequireDualStack, corev1.ServiceInternalTrafficPolicyCluster
	if v.itp {
		policy = corev1.ServiceInternalTrafficPolicyLocal
	}
	health := o.Spec.HealthCheckNodePort
	o.Spec = corev1.ServiceSpec{
		Type: corev1.ServiceType(v.kind), ClusterIP: s.clusterIP(0).String(),
		ClusterIPs:     []string{s.clusterIP(0).String(), s.clusterIP(1).String()},
		IPFamilyPolicy: &dual, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
		InternalTrafficPolicy: &policy,
	}
	for _, p := range protocols {
		port := corev1.ServicePort{Name: portName(p), Protocol: p, Port: int32(v.port),
			TargetPort: intstr.FromInt32(serverPort)}
		if v.kind != "ClusterIP" {
			port.NodePort = int32(s.nodePort())
		}
		o.Spec.Ports = append(o.Spec.Ports, port)
	}
	if v.external {
		o.Spec.ExternalIPs = []string{s.externalIP(0, len(c.nodes)).String(), s.externalIP(1, len(c.nodes)).String()}
	}
	if v.kind != "ClusterIP" || v.external {
		o.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
		if v.etp {
			o.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		}
	}
	if v.kind == "LoadBalancer" {
		o.Spec.LoadBalancerSourceRanges = sourceRanges[v.ranges]
		if v.etp {
			o.Spec.HealthCheckNodePort = health
		}
	}
	o.Spec.SessionAffinity = corev1.ServiceAffinityNone
	if seconds := int32(v.affinity); seconds > 0 {
		o.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		o.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{
			ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds},
		}
	}
}

func (c *churn) update(ctx context.Context, s *service, v version) error {
	c.say("update %s: %s", s.name(), v)
	s.write(v)
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		o, err := c.api.CoreV1().Services(namespace).Get(ctx, s.name(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		c.fill(o, s, v)
		_, err = c.api.CoreV1().Services(namespace).Update(ctx, o, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	return c.balance(ctx, s, v)
}

// balance sets the addresses of a Service, as a load balancer's controller does.
func (c *churn) balance(ctx context.Context, s *service, v version) error {
	if v.kind != "LoadBalancer" {
		return nil
	}
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		o, err := c.api.CoreV1().Services(namespace).Get(ctx, s.name(), metav1.GetOptions{})
		if err != nil || len(o.Status.LoadBalancer.Ingress) > 0 {
			return err
		}
		for family := range 2 {
			o.Status.LoadBalancer.Ingress = append(o.Status.LoadBalancer.Ingress,
				corev1.LoadBalancerIngress{IP: s.balancerIP(family, len(c.nodes)).String()})
		}
		_, err = c.api.CoreV1().Services(namespace).UpdateStatus(ctx, o, metav1.UpdateOptions{})
		return err
	})
}

func (c *churn) remove(ctx context.Context, s *service) error {
	c.say("delete %s", s.name())
	v := version{endpoints: s.now().endpoints} // its slices outlive it
	s.write(v)
	return c.api.CoreV1().Services(namespace).Delete(ctx, s.name(), metav1.DeleteOptions{})
}

// move changes the endpoints of a Service, in one family or in both.
func (c *churn) move(ctx context.Context, r *rand.Rand, s *service) error {
	families := [][]int{{0}, {1}, {0, 1}, {1, 0}}[r.IntN(4)]
	like := c.randomEndpoints(r)
	for _, f := range families {
		v := s.now()
		if len(families) == 2 {
			v.endpoints[f] = like
		} else {
			v.endpoints[f] = c.randomEndpoints(r)
		}
		c.say("endpoints %s: %s", s.name(), v)
		s.write(v)
		if err := c.writeSlice(ctx, s, v, f); err != nil {
			return err
		}
	}
	return nil
}

func (c *churn) randomEndpoints(r *rand.Rand) []endpoint {
	var list []endpoint
	n := []int{0, 1, 1, 1, 2, 2, 3, 5, len(c.servers)}[r.IntN(9)]
	for _, i := range r.Perm(len(c.servers))[:n] {
		list = append(list, endpoint{c.servers[i],
			[]state{ready, ready, ready, ready, ready, terminating, unready}[r.IntN(7)]})
	}
	return list
}

// writeSlice writes the endpoints of a family.
func (c *churn) writeSlice(ctx context.Context, s *service, v version, family int) error {
	port, o := int32(serverPort), &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-v%d", s.name(), 4+2*family), Namespace: namespace,
			Labels: map[string]string{discoveryv1.LabelServiceName: s.name()}},
		AddressType: []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}[family],
	}
	for _, p := range protocols {
		name := portName(p)
		o.Ports = append(o.Ports, discoveryv1.EndpointPort{Name: &name, Protocol: &p, Port: &port})
	}
	for _, e := range v.endpoints[family] {
		is, serves, ends := e.state == ready, e.state != unready, e.state == terminating
		o.Endpoints = append(o.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{e.at.ips[family].String()}, NodeName: &e.at.node,
			Conditions: discoveryv1.EndpointConditions{Ready: &is, Serving: &serves, Terminating: &ends},
		})
	}
	return c.put(ctx, o)
}

func (c *churn) put(ctx context.Context, o *discoveryv1.EndpointSlice) error {
	slices := c.api.DiscoveryV1().EndpointSlices(namespace)
	_, err := slices.Update(ctx, o, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		_, err = slices.Create(ctx, o, metav1.CreateOptions{})
	}
	return err
}

// secondAddress adds another address to a node's host, or removes it.
func (c *churn) secondAddress(ctx context.Context, node int) error {
	n := c.nodes[node]
	ips := [2]netip.Addr{address(0, "172.20.7.%d", "", node+1), address(1, "", "fd00:20:7::%x", node+1)}
	verb, known := "add", &ips
	if c.second[node].Swap(nil) != nil {
		verb, known = "del", nil
	}
	c.say("%s: ip address %s %v dev lo", n.Name(), verb, ips)
	for _, a := range ips {
		if _, err := n.Exec(ctx, "ip", "address", verb, netip.PrefixFrom(a, a.BitLen()).String(), "dev",
			"lo"); err != nil {
			return err
		}
	}
	c.coming[node] = known
	return nil
}

// restartAgent kills an agent without warning; another one starts.
func (c *churn) restartAgent(ctx context.Context, node int) error {
	c.say("%s: the agent is killed and started", c.nodes[node].Name())
	return c.nodes[node].Restart(ctx, "hairpin", syscall.SIGKILL)
}
