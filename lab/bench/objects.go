package bench

import (
	"context"
	"fmt"
	"net/netip"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const serverAddress = "172.18.0.20"

const namespace = "default"

// slice is the EndpointSlice of a Service.
type slice = discoveryv1.EndpointSlice

// makeNodes makes the Nodes of both sides.
func (w *world) makeNodes(ctx context.Context) error {
	for _, i := range []int{oursNode, theirsNode} {
		if err := w.makeNode(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// Numbers of nodes; the tests' node without an agent is 3.
const (
	oursNode   = 1
	theirsNode = 2
	secondNode = 4
)

var nodeNames = map[int]string{oursNode: "node-a", theirsNode: "node-k", secondNode: "node-b"}

// nodeAddresses returns a node's addresses, one of each family.
func nodeAddresses(i int) []netip.Prefix {
	return prefixes(fmt.Sprintf("172.18.0.%d/16", 2+i), fmt.Sprintf("fc00:f853:ccd::%d/64", 2+i))
}

// makeNode creates a Node. It has its number, as hairpin's controller assigns it.
func (w *world) makeNode(ctx context.Context, i int) error {
	name := nodeNames[i]
	cidrs := []string{fmt.Sprintf("10.244.%d.0/24", i), fmt.Sprintf("fd00:10:244:%d::/64", i)}
	made, err := w.client.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"k8s.ovn.org/node-id": fmt.Sprint(i)}},
		Spec:       corev1.NodeSpec{PodCIDRs: cidrs, PodCIDR: cidrs[0]},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create Node %s: %w", name, err)
	}
	made.Status.Addresses = nil
	for _, a := range nodeAddresses(i) {
		made.Status.Addresses = append(made.Status.Addresses,
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.Addr().String()})
	}
	made.ResourceVersion = "" // the controller manager may write to it at the same time
	if _, err := w.client.CoreV1().Nodes().UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("status of Node %s: %w", name, err)
	}
	return nil
}

// clusterIP returns the address of Service number i.
func clusterIP(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 96, byte(64 + i/250), byte(1 + i%250)})
}

func serviceName(i int) string { return fmt.Sprintf("s%05d", i) }

// parallel calls f for first to count-1, sixteen at a time.
func parallel(ctx context.Context, first, count int, f func(context.Context, int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for i := first; i < count; i++ {
		g.Go(func() error { return f(ctx, i) })
	}
	return g.Wait()
}

// makeService creates a Service without selector, and its EndpointSlice.
func (w *world) makeService(ctx context.Context, i int, port int32, endpoints []string) error {
	name := serviceName(i)
	// The slice first, so that a watcher of the Service soon knows its endpoints.
	if err := w.makeSlice(ctx, name, port, endpoints); err != nil {
		return err
	}
	_, err := w.client.CoreV1().Services(namespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.ServiceSpec{ClusterIP: clusterIP(i).String(), Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create Service %s: %w", name, err)
	}
	return nil
}

// makeNodePort creates a Service of type NodePort for the server and the sink in a side's pod. They
// have the ports first and first+1.
func (w *world) makeNodePort(ctx context.Context, name string, s *side, first int32,
	policy corev1.ServiceExternalTrafficPolicy) (cluster netip.Addr, err error) {
	ports := []struct {
		name               string
		port, target, node int32
	}{{"serve", 80, inside, first}, {"sink", 81, sink, first + 1}}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, ExternalTrafficPolicy: policy}}
	node := s.node.Name()
	endpoints := &slice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{s.pods[0].IPs()[0].String()}, NodeName: &node}},
	}
	for _, p := range ports {
		service.Spec.Ports = append(service.Spec.Ports,
			corev1.ServicePort{Name: p.name, Port: p.port, NodePort: p.node})
		endpoints.Ports = append(endpoints.Ports, discoveryv1.EndpointPort{Name: &p.name, Port: &p.target})
	}
	if _, err := w.client.DiscoveryV1().EndpointSlices(namespace).Create(ctx, endpoints,
		metav1.CreateOptions{}); err != nil {
		return cluster, fmt.Errorf("create EndpointSlice %s: %w", name, err)
	}
	made, err := w.client.CoreV1().Services(namespace).Create(ctx, service, metav1.CreateOptions{})
	if err != nil {
		return cluster, fmt.Errorf("create Service %s: %w", name, err)
	}
	return netip.ParseAddr(made.Spec.ClusterIP)
}

// unmake deletes a Service and its EndpointSlice.
func (w *world) unmake(ctx context.Context, name string) error {
	if err := w.client.CoreV1().Services(namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete Service %s: %w", name, err)
	}
	if err := w.client.DiscoveryV1().EndpointSlices(namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil &&
		!apierrors.IsNotFound(err) {
		return fmt.Errorf("delete EndpointSlice %s: %w", name, err)
	}
	return nil
}

func (w *world) makeSlice(ctx context.Context, service string, port int32, endpoints []string) error {
	s := &slice{
		ObjectMeta:  metav1.ObjectMeta{Name: service, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Port: &port}},
	}
	for _, e := range endpoints {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{e}})
	}
	if _, err := w.client.DiscoveryV1().EndpointSlices(namespace).Create(ctx, s, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create EndpointSlice %s: %w", service, err)
	}
	return nil
}

// pointTo sets the only endpoint of a Service.
func (w *world) pointTo(ctx context.Context, i int, endpoint string, port int32) error {
	client := w.client.DiscoveryV1().EndpointSlices(namespace)
	s := w.slices[i]
	if s == nil {
		var err error
		if s, err = client.Get(ctx, serviceName(i), metav1.GetOptions{}); err != nil {
			return fmt.Errorf("EndpointSlice %s: %w", serviceName(i), err)
		}
	}
	s = s.DeepCopy()
	s.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{endpoint}}}
	s.Ports[0].Port = &port
	s, err := client.Update(ctx, s, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("update EndpointSlice %s: %w", serviceName(i), err)
	}
	w.slices[i] = s
	return nil
}
