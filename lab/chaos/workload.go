package chaos

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/lab"
	"hairpin/lab/cluster"
	"hairpin/lab/probe"
)

// namespace has all objects of the workload that have a namespace.
const namespace = "chaos"

// Labels of pods, and their ports.
const (
	roleOpen        = "open"         // a server that everything may reach
	roleGuarded     = "guarded"      // a server that only clients may reach
	roleClient      = "client"       // leaves with its node's address
	roleEgress      = "egress"       // leaves with the EgressIP
	roleEgressChurn = "egress-churn" // leaves with its node's address, or that of an EgressIP that comes and goes
	outsidePort     = 9100
	assignable      = "k8s.ovn.org/egress-assignable"
)

// Addresses of EgressIPs, which the workers can have.
var (
	egressIPs = []netip.Addr{netip.MustParseAddr("172.18.0.33"), netip.MustParseAddr("fc00:f853:ccd::33")}
	churnIPs  = []netip.Addr{netip.MustParseAddr("172.18.0.34"), netip.MustParseAddr("fc00:f853:ccd::34")}
)

const policies = `
apiVersion: v1
kind: Namespace
metadata: {name: chaos}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: guarded, namespace: chaos}
spec:
  podSelector: {matchLabels: {role: guarded}}
  policyTypes: [Ingress]
  ingress: [{from: [{podSelector: {matchLabels: {role: client}}}]}]
---
apiVersion: hairpin.dev/v1alpha1
kind: LoadBalancerPool
metadata: {name: chaos}
spec: {ranges: [172.18.0.200-172.18.0.209, "fc00:f853:ccd::200-fc00:f853:ccd::209"]}
`

// egressIPManifest is an EgressIP for the pods of a role.
func egressIPManifest(name, role string, addresses []netip.Addr) string {
	return fmt.Sprintf(`---
apiVersion: k8s.ovn.org/v1
kind: EgressIP
metadata: {name: %s}
spec:
  egressIPs: ["%s", "%s"]
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: chaos}}
  podSelector: {matchLabels: {role: %s}}
`, name, addresses[0], addresses[1], role)
}

// clusterObjects returns the objects whose removal removes the whole workload.
func clusterObjects() string { return policies + egressIPManifest("chaos", roleEgress, egressIPs) }

// podManifest is a pod of a role on a node. It requests CPU, because pods without a request get
// none on a busy machine. With a lower priority, agents that are rolled out while a node is paused
// would preempt it.
const podManifest = `---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s-%[2]s, namespace: chaos, labels: {role: %[1]s, at: %[2]s}}
spec:
  nodeName: %[2]s
  terminationGracePeriodSeconds: 0
  tolerations: [{operator: Exists}]
  priorityClassName: system-node-critical
  containers:
  - name: server
    image: pod:dev
    imagePullPolicy: Never
    args: [serve]
    resources: {requests: {cpu: 20m}}
`

// serviceManifest is a Service with one endpoint: the server of a role on a node.
const serviceManifest = `---
apiVersion: v1
kind: Service
metadata: {name: %[1]s-%[2]s, namespace: chaos}
spec:
  ipFamilyPolicy: RequireDualStack
  selector: {role: %[1]s, at: %[2]s}
  ports: [{port: 80, targetPort: 8080}]
`

// loadBalancer makes it a Service of type LoadBalancer.
const loadBalancer = `  type: LoadBalancer
  loadBalancerClass: ` + loadBalancerClass + `
`

const loadBalancerClass = "hairpin.dev/l2"

// manifest returns the objects of the workload.
func manifest(nodes []string) string {
	var b strings.Builder
	b.WriteString(clusterObjects())
	for _, n := range nodes {
		for _, role := range []string{roleOpen, roleGuarded, roleClient, roleEgress, roleEgressChurn} {
			fmt.Fprintf(&b, podManifest, role, n)
		}
		fmt.Fprintf(&b, serviceManifest+loadBalancer, roleOpen, n)
		fmt.Fprintf(&b, serviceManifest, roleGuarded, n)
	}
	return b.String()
}

// connection is a Path with what its client needs.
type connection struct {
	Path
	from  *clientPlace
	to    []netip.AddrPort // in turn
	every time.Duration
	limit time.Duration
	// keepsOpen means that the client keeps one connection to each address, and sends a message
	// each time.
	keepsOpen bool
	sessions  map[netip.AddrPort]*probe.Session
	// addressChanges means that the client leaves with an address that comes and goes.
	addressChanges bool
}

// deploy creates the workload and waits until it is ready.
func (r *run) deploy(ctx context.Context) error {
	for _, n := range r.nodes[1:] {
		if _, err := r.cluster.Kubectl(ctx, "", "label", "--overwrite", "node", n, assignable+"="); err != nil {
			return err
		}
	}
	if _, err := r.cluster.Kubectl(ctx, manifest(r.nodes), "apply", "-f", "-"); err != nil {
		return err
	}
	var err error
	outside := r.cluster.Lab().Host(cluster.ClientName)
	if r.stopServer, err = lab.Serve(ctx, outside, "outside", outsidePort); err != nil {
		return err
	}
	if err := r.waitReady(ctx); err != nil {
		return err
	}
	return r.addConnections(ctx)
}

// undeploy removes the workload.
func (r *run) undeploy(ctx context.Context) error {
	if r.stopServer != nil {
		if err := r.stopServer(); err != nil {
			return err
		}
	}
	for _, n := range r.nodes[1:] {
		if _, err := r.cluster.Kubectl(ctx, "", "label", "node", n, assignable+"-"); err != nil {
			return err
		}
	}
	_, err := r.cluster.Kubectl(ctx, clusterObjects()+churnEgressIP(), "delete", "--ignore-not-found", "--wait",
		"-f", "-")
	return err
}

// waitReady waits until every pod of the cluster is ready.
func (r *run) waitReady(ctx context.Context) error { return r.waitRestarted(ctx, "", time.Time{}) }

// waitRestarted waits until every pod is ready, those of a node with containers that started after
// a time.
func (r *run) waitRestarted(ctx context.Context, node string, since time.Time) error {
	return r.waitPods(ctx, func(p *corev1.Pod) bool {
		return cluster.Ready(p) && !(p.Spec.NodeName == node && slices.ContainsFunc(p.Status.ContainerStatuses,
			func(s corev1.ContainerStatus) bool {
				return s.State.Running == nil || s.State.Running.StartedAt.Time.Before(since)
			}))
	})
}

// waitNode waits until every pod of a node is ready.
func (r *run) waitNode(ctx context.Context, node string) error {
	return r.waitPods(ctx, func(p *corev1.Pod) bool { return cluster.Ready(p) || p.Spec.NodeName != node })
}

// waitPods waits until a condition holds for every pod.
func (r *run) waitPods(ctx context.Context, holds func(*corev1.Pod) bool) error {
	ctx, cancel := context.WithTimeout(ctx, recoveryTimeout)
	defer cancel()
	missing := "the API does not answer"
	err := lab.Poll(ctx, 200*time.Millisecond, func() (bool, error) {
		limited, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		list, err := r.cluster.Client().CoreV1().Pods("").List(limited, metav1.ListOptions{})
		if err != nil {
			return false, nil // the API server may not answer
		}
		i := slices.IndexFunc(list.Items, func(p corev1.Pod) bool { return !holds(&p) })
		if i < 0 {
			return true, nil
		}
		missing = list.Items[i].Namespace + "/" + list.Items[i].Name
		return false, nil
	})
	if err != nil {
		return fmt.Errorf("wait until pods are ready (%s): %w", missing, err)
	}
	return nil
}

// addConnections waits until Services have their addresses, and makes the list of connections.
func (r *run) addConnections(ctx context.Context) error {
	services := map[string]*corev1.Service{}
	err := lab.Poll(ctx, 200*time.Millisecond, func() (bool, error) {
		list, err := r.cluster.Client().CoreV1().Services(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		for _, s := range list.Items {
			services[s.Name] = &s
			if s.Spec.Type == corev1.ServiceTypeLoadBalancer && len(s.Status.LoadBalancer.Ingress) < 2 {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("wait until Services have addresses: %w", err)
	}
	outside := r.host(cluster.ClientName)
	for i, from := range r.nodes {
		client, egress, host := r.pod(roleClient, from), r.pod(roleEgress, from), r.host(from)
		for _, to := range r.nodes {
			both := []string{from, to}
			open, guarded := services[roleOpen+"-"+to], services[roleGuarded+"-"+to]
			r.addKeptOpen(r.addConnection(client, "pod/chaos/client-"+from, "ClusterIP", open, both, nil))
			r.addKeptOpen(r.addConnection(client, "pod/chaos/client-"+from, "ClusterIP, allowed", guarded, both, nil))
			r.addKeptOpen(r.addConnection(host, "host/"+from, "ClusterIP", open, both, nil))
			r.addConnection(egress, "pod/chaos/egress-"+from, "ClusterIP, denied", guarded, both, nil).Denied = true
		}
		next := r.nodes[(i+1)%len(r.nodes)]
		r.addKeptOpen(r.addConnection(outside, "outside", "NodePort of "+from, services[roleOpen+"-"+next],
			[]string{from, next}, nil))
		r.addKeptOpen(r.addConnection(outside, "outside", "load balancer address", services[roleOpen+"-"+from],
			[]string{from}, r.nodes))
		own := slices.Concat(r.addresses(from), addresses(r.otherAddresses(from)))
		r.addKeptOpen(r.addLeaving(client, "client", from, own, nil))
		r.addLeaving(r.pod(roleEgressChurn, from), "egress-churn", from, slices.Concat(own, churnIPs),
			r.nodes[1:]).addressChanges = true
		r.addKeptOpen(r.addLeaving(egress, "egress", from, egressIPs, r.nodes[1:]))
	}
	return nil
}

// addKeptOpen adds a copy of c, whose connections stay open.
func (r *run) addKeptOpen(c *connection) {
	open := *c
	open.keepsOpen, open.sessions = true, map[netip.AddrPort]*probe.Session{}
	open.Name += ", kept open"
	r.connections = append(r.connections, &open)
}

// addConnection adds connections to a Service: to its load balancer addresses if there are floating
// nodes, to NodePorts of the first node if the client is outside, or to its cluster IPs.
func (r *run) addConnection(from *clientPlace, client, name string, s *corev1.Service,
	nodes, floating []string) *connection {
	c := &connection{from: from, every: time.Second, limit: 5 * time.Second, Path: Path{
		Name: fmt.Sprintf("%s to %s, %s", client, s.Name, name), From: client, To: "svc/chaos/" + s.Name,
		Nodes: nodes, Floating: floating, Server: s.Name, API: r.nodes[0],
	}}
	switch {
	case floating != nil:
		for _, i := range s.Status.LoadBalancer.Ingress {
			c.to = append(c.to, netip.AddrPortFrom(netip.MustParseAddr(i.IP), 80))
		}
		r.lbAddresses = append(r.lbAddresses, c.to[0].Addr())
	case client == "outside":
		c.Own = nodes[0]
		for _, a := range r.addresses(nodes[0]) {
			c.to = append(c.to, netip.AddrPortFrom(a, uint16(s.Spec.Ports[0].NodePort)))
		}
	default:
		for _, ip := range s.Spec.ClusterIPs {
			c.to = append(c.to, netip.AddrPortFrom(netip.MustParseAddr(ip), 80))
		}
	}
	r.connections = append(r.connections, c)
	return c
}

// addLeaving adds connections from a pod to the server outside.
func (r *run) addLeaving(from *clientPlace, role, node string, sources []netip.Addr, floating []string) *connection {
	c := &connection{from: from, every: time.Second, limit: 5 * time.Second, Path: Path{
		Name: fmt.Sprintf("%s-%s leaves the cluster", role, node), From: "pod/chaos/" + role + "-" + node,
		Nodes: []string{node}, Floating: floating, Server: "outside", Sources: sources, API: r.nodes[0],
	}}
	for _, p := range r.cluster.Lab().Host(cluster.ClientName).Addresses() {
		c.to = append(c.to, netip.AddrPortFrom(p.Addr(), outsidePort))
		c.To = "outside/" + c.to[0].String()
	}
	r.connections = append(r.connections, c)
	return c
}

// addresses returns the addresses of a host.
func (r *run) addresses(name string) []netip.Addr {
	return addresses(r.cluster.Lab().Host(name).Addresses())
}

func addresses(of []netip.Prefix) (list []netip.Addr) {
	for _, p := range of {
		list = append(list, p.Addr())
	}
	return list
}

// otherAddresses returns the addresses that replaceAddresses gives a host in place of its own.
func (r *run) otherAddresses(name string) []netip.Prefix {
	return withGreaterByte(r.cluster.Lab().Host(name).Addresses(), 50)
}

// withGreaterByte returns addresses whose last byte is greater by a number.
func withGreaterByte(of []netip.Prefix, by byte) (list []netip.Prefix) {
	for _, p := range of {
		b := p.Addr().AsSlice()
		b[len(b)-1] += by
		a, _ := netip.AddrFromSlice(b)
		list = append(list, netip.PrefixFrom(a, p.Bits()))
	}
	return list
}

func (r *run) pod(role, node string) *clientPlace {
	return &clientPlace{find: func(ctx context.Context) (lab.Place, error) {
		return r.cluster.Pod(ctx, namespace, role+"-"+node)
	}}
}

func (r *run) host(name string) *clientPlace {
	return &clientPlace{find: func(context.Context) (lab.Place, error) {
		if h := r.cluster.Lab().Host(name); h != nil {
			return h, nil
		}
		return nil, fmt.Errorf("%s does not run", name)
	}}
}
