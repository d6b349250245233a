package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"

	"hairpin/cluster"
)

// Annotations of a node: its number, and all addresses of its host.
const (
	nodeIDAnnotation = "k8s.ovn.org/node-id"
	hostsAnnotation  = "k8s.ovn.org/host-cidrs"
)

// objects holds the objects of the demo, from manifests or from the API.
type objects struct {
	nodes    []corev1.Node
	pods     []corev1.Pod
	services []corev1.Service
	slices   []discoveryv1.EndpointSlice
}

// readObjects reads all manifests of a folder.
func readObjects(dir string) (*objects, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no manifests (*.yaml) in %s", dir)
	}
	o := &objects{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return nil, fmt.Errorf("read manifests: %w", err)
		}
		if err := o.read(text); err != nil {
			return nil, fmt.Errorf("read manifests of %s: %w", f, err)
		}
	}
	slices.SortFunc(o.nodes, func(a, b corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(o.pods, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return o, nil
}

func (o *objects) read(text []byte) error {
	for doc, err := range cluster.Documents(text) {
		if err != nil {
			return err
		}
		obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(doc, nil, nil)
		if err != nil {
			return err
		}
		switch obj := obj.(type) {
		case *corev1.Node:
			o.nodes = append(o.nodes, *obj)
		case *corev1.Pod:
			o.pods = append(o.pods, *obj)
		case *corev1.Service:
			o.services = append(o.services, *obj)
		case *discoveryv1.EndpointSlice:
			o.slices = append(o.slices, *obj)
		case *corev1.Namespace, *networkingv1.NetworkPolicy:
		default:
			return fmt.Errorf("the demo does not know what to do with a %T", obj)
		}
	}
	return nil
}

// fetchObjects reads the objects from the API.
func fetchObjects(ctx context.Context, client kubernetes.Interface) (*objects, error) {
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list Nodes: %w", err)
	}
	services, err := client.CoreV1().Services(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list Services: %w", err)
	}
	return &objects{nodes: nodes.Items, services: services.Items}, nil
}

// create writes the manifests' objects to the API as a user would. Controllers and agents write the
// rest: annotations of Nodes, and slices of Services with a selector.
func (o *objects) create(ctx context.Context, client kubernetes.Interface) error {
	create := metav1.CreateOptions{}
	for _, n := range o.nodes {
		n.Annotations = nil // with its status, as a kubelet registers it
		if _, err := client.CoreV1().Nodes().Create(ctx, &n, create); err != nil {
			return fmt.Errorf("create Node %s: %w", n.Name, err)
		}
	}
	selects := map[string]bool{}
	for _, s := range o.services {
		selects[s.Name] = len(s.Spec.Selector) > 0
		made, err := client.CoreV1().Services(s.Namespace).Create(ctx, &s, create)
		if err != nil {
			return fmt.Errorf("create Service %s: %w", s.Name, err)
		}
		if len(s.Status.LoadBalancer.Ingress) > 0 { // as the controller of a load balancer does
			made.Status = s.Status
			if _, err := client.CoreV1().Services(s.Namespace).UpdateStatus(ctx, made,
				metav1.UpdateOptions{}); err != nil {
				return fmt.Errorf("give Service %s its addresses: %w", s.Name, err)
			}
		}
	}
	for _, s := range o.slices {
		if selects[s.Labels[discoveryv1.LabelServiceName]] {
			continue
		}
		if _, err := client.DiscoveryV1().EndpointSlices(s.Namespace).Create(ctx, &s, create); err != nil {
			return fmt.Errorf("create EndpointSlice %s: %w", s.Name, err)
		}
	}
	for i, p := range o.pods {
		p.Status = corev1.PodStatus{}
		made, err := client.CoreV1().Pods(p.Namespace).Create(ctx, &p, create)
		if err != nil {
			return fmt.Errorf("create Pod %s: %w", p.Name, err)
		}
		o.pods[i] = *made
	}
	return nil
}

// addresses returns a Node's InternalIPs with the prefix lengths of their network.
func addresses(n *corev1.Node) ([]netip.Prefix, error) {
	var list []netip.Prefix
	for _, a := range n.Status.Addresses {
		if a.Type != corev1.NodeInternalIP {
			continue
		}
		ip, err := netip.ParseAddr(a.Address)
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", n.Name, err)
		}
		bits := 16
		if ip.Is6() {
			bits = 64
		}
		list = append(list, netip.PrefixFrom(ip, bits))
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("node %s has no InternalIP", n.Name)
	}
	return list, nil
}

func factsOfNode(n *corev1.Node) (nodeFacts, error) {
	id, err := strconv.Atoi(n.Annotations[nodeIDAnnotation])
	if err != nil {
		return nodeFacts{}, fmt.Errorf("annotation %s of node %s: %w", nodeIDAnnotation, n.Name, err)
	}
	f := nodeFacts{id: id}
	for _, text := range n.Spec.PodCIDRs {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return f, fmt.Errorf("spec.podCIDRs of node %s: %w", n.Name, err)
		}
		f.podCIDRs = append(f.podCIDRs, p)
	}
	var hosts []netip.Prefix
	if err := json.Unmarshal([]byte(n.Annotations[hostsAnnotation]), &hosts); err != nil {
		return f, fmt.Errorf("annotation %s of node %s: %w", hostsAnnotation, n.Name, err)
	}
	for _, p := range hosts {
		if p.IsSingleIP() { // addSecondary adds them
			f.others = append(f.others, p.Addr())
		}
	}
	return f, nil
}

func factsOfService(s *corev1.Service) (serviceFacts, error) {
	f := serviceFacts{}
	for _, text := range s.Spec.ClusterIPs {
		ip, err := netip.ParseAddr(text)
		if err != nil {
			return f, fmt.Errorf("spec.clusterIPs of Service %s: %w", s.Name, err)
		}
		f.clusterIPs = append(f.clusterIPs, ip)
	}
	for _, text := range s.Spec.ExternalIPs {
		ip, err := netip.ParseAddr(text)
		if err != nil {
			return f, fmt.Errorf("spec.externalIPs of Service %s: %w", s.Name, err)
		}
		f.external = append(f.external, ip)
	}
	for _, in := range s.Status.LoadBalancer.Ingress {
		ip, err := netip.ParseAddr(in.IP)
		if err != nil {
			return f, fmt.Errorf("status.loadBalancer of Service %s: %w", s.Name, err)
		}
		f.balancer = append(f.balancer, ip)
	}
	if len(s.Spec.Ports) > 0 { // in the demo, all protocols have the same port numbers
		f.port, f.nodePort = uint16(s.Spec.Ports[0].Port), uint16(s.Spec.Ports[0].NodePort)
	}
	f.sctp = slices.ContainsFunc(s.Spec.Ports,
		func(p corev1.ServicePort) bool { return p.Protocol == corev1.ProtocolSCTP })
	return f, nil
}
