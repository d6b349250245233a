package scale

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"hairpin/cluster"
	"hairpin/cluster/annotation"
	"hairpin/lab"
	"hairpin/watch"
)

const (
	probedService = "probed" // the Service that clients on the first node use
	serverPort    = 8080
	egressEvery   = 10 // one of this many nodes may carry egress addresses
	podContainer  = "agent"
	podSubnets    = "10.128.0.0/9/24,fd00:10:244::/48/64"
)

func podRanges() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("10.128.0.0/9"), netip.MustParsePrefix("fd00:10:244::/48")}
}

// realNodes are the nodes that run. The second may carry egress addresses.
var realNodes = []string{"node-a", "node-b"}

// node is the number of a node of the cluster, from 1: the real ones first.
type node int

func realNode(i int) node { return node(i + 1) }

func (n node) real() bool { return int(n) <= len(realNodes) }

func (n node) name() string {
	if n.real() {
		return realNodes[n-1]
	}
	return fmt.Sprintf("n%05d", int(n))
}

// nodeNamed returns the node of a name; 0 for none.
func nodeNamed(name string) node {
	if i := slices.Index(realNodes, name); i >= 0 {
		return realNode(i)
	}
	n, _ := strconv.Atoi(strings.TrimPrefix(name, "n"))
	return node(n)
}

// addresses returns the node's external addresses. Those of the nodes that do not run are in the
// range of their host.
func (n node) addresses() []netip.Prefix {
	a := [4]byte{172, 18, 0, byte(2 + n)}
	if !n.real() {
		a[2], a[3] = byte(128+n>>8), byte(n)
	}
	six := netip.MustParseAddr("fc00:f853:ccd::").As16()
	six[13], six[14], six[15] = a[2], 0, a[3]
	return []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4(a), 16), netip.PrefixFrom(netip.AddrFrom16(six), 64)}
}

// pod returns the address of a pod of the node.
func (n node) pod(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(128 + n>>8), byte(n), byte(2 + i)})
}

// mayCarry reports whether egress addresses may be on the node.
func (n node) mayCarry() bool { return n%egressEvery == 2 }

func named(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

// clusterIP returns the address of Service number i.
func clusterIP(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 96, byte(64 + i/250), byte(1 + i%250)})
}

// egressIP returns the address of EgressIP number i.
func egressIP(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{172, 18, byte(64 + i/250), byte(1 + i%250)})
}

// parallel calls f for first to end-1, sixteen at a time.
func parallel(ctx context.Context, first, end int, f func(context.Context, int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for i := first; i < end; i++ {
		g.Go(func() error { return f(ctx, i) })
	}
	return g.Wait()
}

// define installs the resource definitions, as the chart does.
func (w *world) define(ctx context.Context) error {
	for file, path := range map[string]string{"egressips.yaml": watch.EgressIPPath(),
		"egressservices.yaml": watch.EgressServicePath("default")} {
		text, err := os.ReadFile(filepath.Join(w.opt.CRDs, file))
		if err == nil {
			err = w.post(ctx, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", text)
		}
		if err != nil {
			return fmt.Errorf("definition %s: %w", file, err)
		}
		served := func() error {
			return w.client.CoreV1().RESTClient().Get().AbsPath(path).SetHeader("Accept",
				"application/json").Do(ctx).Error()
		}
		for end := time.Now().Add(w.patience(3 * time.Second)); ; time.Sleep(20 * time.Millisecond) {
			if err := served(); err == nil {
				break
			} else if ctx.Err() != nil || time.Now().After(end) {
				return fmt.Errorf("wait until objects of %s are served: %w", file, err)
			}
		}
	}
	return nil
}

// post creates an object from a manifest.
func (w *world) post(ctx context.Context, path string, manifest []byte) error {
	body, err := yaml.YAMLToJSON(manifest)
	if err != nil {
		return err
	}
	return w.client.CoreV1().RESTClient().Post().AbsPath(path).SetHeader("Accept",
		"application/json").SetHeader("Content-Type", "application/json").
		Body(body).Do(ctx).Error()
}

// makeNode writes a Node as its kubelet does, with the annotations that its agent would add.
func (w *world) makeNode(ctx context.Context, n node, annotations map[string]string) error {
	cidrs := []string{netip.PrefixFrom(n.pod(-2), 24).String(), fmt.Sprintf("fd00:10:244:%x::/64", int(n))}
	made := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.name(), Annotations: annotations,
			Labels: map[string]string{corev1.LabelHostname: n.name()}},
		Spec: corev1.NodeSpec{PodCIDRs: cidrs, PodCIDR: cidrs[0]},
		Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: n.name()}},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue,
				Reason: "LabReady"}},
		},
	}
	for _, a := range n.addresses() {
		made.Status.Addresses = append(made.Status.Addresses,
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.Addr().String()})
	}
	if n.mayCarry() && (n.real() || w.opt.Push == "") { // in a push, one real node carries all
		made.Labels[cluster.LabelEgressAssignable] = ""
	}
	_, err := w.client.CoreV1().Nodes().Create(ctx, made, metav1.CreateOptions{})
	return err
}

// makeOther makes a node that does not run.
func (w *world) makeOther(ctx context.Context, n node) error {
	gateway := cluster.Gateway{
		Mode: cluster.ModeShared, Bridge: lab.GatewayBridge, Uplink: "eth0", MAC: w.others.mac,
		Addresses: n.addresses(),
		NextHops:  []netip.Addr{netip.MustParseAddr("172.18.0.1"), netip.MustParseAddr("fc00:f853:ccd::1")},
		Userspace: w.others.userspace,
	}
	return w.makeNode(ctx, n, map[string]string{
		annotation.HostCIDRs: annotation.FormatHostCIDRs(n.addresses()),
		annotation.Gateway:   annotation.FormatGateway(gateway),
	})
}

// makePod creates a Pod that is already assigned to its node. The API server requires the
// namespace's service account before, which a controller creates.
func (w *world) makePod(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	pod.Spec.Containers = []corev1.Container{{Name: podContainer, Image: "none"}}
	no := false
	pod.Spec.AutomountServiceAccountToken = &no
	for end := time.Now().Add(w.patience(time.Second)); ; time.Sleep(20 * time.Millisecond) {
		made, err := w.client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
		if err == nil {
			return made, nil
		}
		if !apierrors.IsForbidden(err) || ctx.Err() != nil || time.Now().After(end) {
			return nil, fmt.Errorf("create Pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
	}
}

// makeOtherPod makes pod number i of a node that does not run.
func (w *world) makeOtherPod(ctx context.Context, n node, i int, name string) error {
	return w.makePodOf(ctx, n, w.space(n, i), name, n.pod(i))
}

// makePodOf makes a pod of a node that does not run, with its status.
func (w *world) makePodOf(ctx context.Context, n node, space, name string, address netip.Addr) error {
	made, err := w.makePod(ctx, &corev1.Pod{ObjectMeta: named(space, name), Spec: corev1.PodSpec{NodeName: n.name()}})
	if err != nil {
		return err
	}
	made.ResourceVersion = "" // overwrites other writers' changes
	ip := address.String()
	made.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, HostIP: n.addresses()[0].Addr().String(), PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
	}
	if _, err := w.client.CoreV1().Pods(space).UpdateStatus(ctx, made, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("status of Pod %s/%s: %w", space, name, err)
	}
	return nil
}

// space returns the namespace of a pod. The first pod of each node has one of an EgressIP that
// existed when the node was created.
func (w *world) space(n node, i int) string {
	for _, size := range sizes(w.opt.Nodes) {
		if egress := w.egressIPs(size); int(n) <= size && i == 0 && egress > 0 {
			return egressNamespace(int(n) % egress)
		}
	}
	return metav1.NamespaceDefault
}

// egressIPs returns the number of EgressIPs with a number of nodes.
func (w *world) egressIPs(nodes int) int { return w.opt.EgressIPs * nodes / w.opt.Nodes }

func egressNamespace(i int) string { return fmt.Sprintf("egress-%05d", i) }

// makeEgressIP creates an EgressIP for the pods of its own namespace.
func (w *world) makeEgressIP(ctx context.Context, i int) error {
	space := egressNamespace(i)
	if _, err := w.client.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: space}}, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create Namespace %s: %w", space, err)
	}
	return w.post(ctx, watch.EgressIPPath(),
		fmt.Appendf(nil, `{"apiVersion":"k8s.ovn.org/v1","kind":"EgressIP","metadata":{"name":%[1]q},
		"spec":{"egressIPs":[%[2]q],"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":%[1]q}}}}`, space, egressIP(i)))
}

// makeServices makes all Services, each with two endpoints on nodes that do not run.
func (w *world) makeServices(ctx context.Context) error {
	begin := time.Now()
	err := parallel(ctx, 0, w.opt.Services, func(ctx context.Context, i int) error {
		return w.makeService(ctx, serviceName(i), clusterIP(i), w.endpoints(i, 0))
	})
	w.say("%d Services are made: %.1f s", w.opt.Services, time.Since(begin).Seconds())
	return err
}

func serviceName(i int) string { return fmt.Sprintf("s%05d", i) }

// endpoints returns those of Service number i after a number of changes.
func (w *world) endpoints(i, changed int) []netip.Addr {
	first := node(len(realNodes) + 1 + i%(sizes(w.opt.Nodes)[0]-len(realNodes)))
	return []netip.Addr{first.pod(1 + changed%200), first.pod(1 + (changed+1)%200)}
}

// makeService makes a Service with a cluster IP.
func (w *world) makeService(ctx context.Context, name string, cluster netip.Addr, endpoints []netip.Addr) error {
	return w.makeServiceOf(ctx, name, specOf(cluster), endpoints)
}

// specOf returns the spec of a Service with a cluster IP.
func specOf(cluster netip.Addr) corev1.ServiceSpec {
	return corev1.ServiceSpec{ClusterIP: cluster.String(), Ports: []corev1.ServicePort{{Port: 80}}}
}

// makeServiceOf makes a Service without selector, and its EndpointSlice.
func (w *world) makeServiceOf(ctx context.Context, name string, spec corev1.ServiceSpec, endpoints []netip.Addr) error {
	if err := w.makeSlice(ctx, name, name, endpoints); err != nil {
		return err
	}
	_, err := w.client.CoreV1().Services("default").Create(ctx,
		&corev1.Service{ObjectMeta: named("default", name), Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create Service %s: %w", name, err)
	}
	return nil
}

// makeSlice makes an EndpointSlice of a Service.
func (w *world) makeSlice(ctx context.Context, service, name string, endpoints []netip.Addr) error {
	port := int32(serverPort)
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: named("default", name), AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{Port: &port}},
	}
	s.Labels = map[string]string{discoveryv1.LabelServiceName: service}
	for _, e := range endpoints {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{e.String()}})
	}
	if _, err := w.client.DiscoveryV1().EndpointSlices("default").Create(ctx, s, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create EndpointSlice %s: %w", name, err)
	}
	return nil
}

// pointTo sets the endpoints of a Service's slice.
func (w *world) pointTo(ctx context.Context, service string, endpoints []netip.Addr) error {
	body := `{"endpoints":[`
	for i, e := range endpoints {
		if i > 0 {
			body += ","
		}
		body += fmt.Sprintf(`{"addresses":[%q]}`, e)
	}
	_, err := w.client.DiscoveryV1().EndpointSlices("default").Patch(ctx, service, types.MergePatchType,
		[]byte(body+"]}"), metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("change EndpointSlice %s: %w", service, err)
	}
	return nil
}
