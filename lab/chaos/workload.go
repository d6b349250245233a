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
	roleOpen     = "open"     // a server that everything may reach
	roleGuarded  = "guarded"  // a server that only clients may reach
	roleClient   = "client"   // leaves with its node's address
	roleStranger = "stranger" // leaves with the EgressIP
	roleRoamer   = "roamer"   // leaves with its node's address, or that of an EgressIP that comes and goes
	outsidePort  = 9100
	assignable   = "k8s.ovn.org/egress-assignable"
)

// Addresses of EgressIPs, which the workers can have.
var (
	egressIPs  = []netip.Addr{netip.MustParseAddr("172.18.0.33"), netip.MustParseAddr("fc00:f853:ccd::33")}
	roamingIPs = []netip.Addr{netip.MustParseAddr("172.18.0.34"), netip.MustParseAddr("fc00:f853:ccd::34")}
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

// clusterObjects returns the objects whose removal ends the workload.
func clusterObjects() string { return policies + egressIPManifest("chaos", roleStranger, egressIPs) }

// podManifest is a pod of a role on a node. It requests CPU, because pods that do not get none on a
// busy machine; with more, agents that are rolled out would preempt it.
const podManifest = `---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s-%[2]s, namespace: chaos, labels: {role: %[1]s, at: %[2]s}}
spec:
  nodeName: %[2]s
  terminationGracePeriodSeconds: 0
  tolerations: [{operator: Exists}]
  containers:
  - name: server
    image: pod:dev
    imagePullPolicy: Never
    args: [serve]
    resources: {requests: {cpu: 20m}}
`

// serviceManifest is a Service of the one server of a role on a node.
const serviceManifest = `---
apiVersion: v1
kind: Service
metadata: {name: %[1]s-%[2]s, namespace: chaos}
spec:
  ipFamilyPolicy: RequireDualStack
  selector: {role: %[1]s, at: %[2]s}
  ports: [{port: 80, targetPort: 8080}]
`

// balanced adds a load balancer address to it.
const balanced = `  type: LoadBalancer
  loadBalancerClass: ` + loadBalancerClass + `
`

const loadBalancerClass = "hairpin.dev/l2"

// manifest returns the objects of the workload.
func manifest(nodes []string) string {
	var b strings.Builder
	b.WriteString(clusterObjects())
	for _, n := range nodes {
		for _, role := range []string{roleOpen, roleGuarded, roleClient, roleStranger, roleRoamer} {
			fmt.Fprintf(&b, podManifest, role, n)
		}
		fmt.Fprintf(&b, serviceManifest+balanced, roleOpen, n)
		fmt.Fprintf(&b, serviceManifest, roleGuarded, n)
	}
	return b.String()
}

// connection is a Path with what its client needs.
type connection struct {
	Path
	from  *site
	to    []netip.AddrPort // in turn
	every time.Duration
	limit time.Duration
	// keeps means that the client keeps one connection to each address, and sends a message each
	// time.
	keeps    bool
	sessions map[netip.AddrPort]*probe.Session
	// roams means that the client leaves with an address that comes and goes.
	roams bool
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
	if err := r.workloads(ctx); err != nil {
		return err
	}
	return r.connections(ctx)
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
	_, err := r.cluster.Kubectl(ctx, clusterObjects()+roamingEgressIP(), "delete", "--ignore-not-found", "--wait",
		"-f", "-")
	return err
}

// workloads waits until every pod of the cluster is ready.
func (r *run) workloads(ctx context.Context) error { return r.restarted(ctx, "", time.Time{}) }

// restarted waits until every pod is ready, those of a node with containers that started after a
// time.
func (r *run) restarted(ctx context.Context, node string, since time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, backTimeout)
	defer cancel()
	missing := "the API does not answer"
	err := lab.Poll(ctx, 200*time.Millisecond, func() (bool, error) {
		limited, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		list, err := r.cluster.Client().CoreV1().Pods("").List(limited, metav1.ListOptions{})
		if err != nil {
			return false, nil // the API server may be away
		}
		i := slices.IndexFunc(list.Items, func(p corev1.Pod) bool {
			return !cluster.Ready(&p) || p.Spec.NodeName == node && slices.ContainsFunc(p.Status.ContainerStatuses,
				func(s corev1.ContainerStatus) bool {
					return s.State.Running == nil || s.State.Running.StartedAt.Time.Before(since)
				})
		})
		if i < 0 {
			return true, nil
		}
		missing = list.Items[i].Namespace + "/" + list.Items[i].Name
		return false, nil
	})
	if err != nil {
		return fmt.Errorf("wait until every pod is ready (%s): %w", missing, err)
	}
	return nil
}

// connections makes the list of connections. The objects have their addresses.
func (r *run) connections(ctx context.Context) error {
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
		client, stranger, host := r.pod(roleClient, from), r.pod(roleStranger, from), r.host(from)
		for _, to := range r.nodes {
			both := []string{from, to}
			open, guarded := services[roleOpen+"-"+to], services[roleGuarded+"-"+to]
			r.keep(r.connect(client, "pod/chaos/client-"+from, "ClusterIP", open, both, nil))
			r.keep(r.connect(client, "pod/chaos/client-"+from, "ClusterIP, allowed", guarded, both, nil))
			r.keep(r.connect(host, "host/"+from, "ClusterIP", open, both, nil))
			r.connect(stranger, "pod/chaos/stranger-"+from, "ClusterIP, denied", guarded, both, nil).Denied = true
		}
		next := r.nodes[(i+1)%len(r.nodes)]
		r.keep(r.connect(outside, "outside", "NodePort of "+from, services[roleOpen+"-"+next], []string{from, next},
			nil))
		r.keep(r.connect(outside, "outside", "load balancer address", services[roleOpen+"-"+from], []string{from},
			r.nodes))
		own := slices.Concat(r.addresses(from), addresses(r.renumbered(from)))
		r.keep(r.leave(client, "client", from, own, nil))
		r.leave(r.pod(roleRoamer, from), "roamer", from, slices.Concat(own, roamingIPs), r.nodes[1:]).roams = true
		r.keep(r.leave(stranger, "stranger", from, egressIPs, r.nodes[1:]))
	}
	return nil
}

// keep adds the same connections as c, which stay open.
func (r *run) keep(c *connection) {
	kept := *c
	kept.keeps, kept.sessions = true, map[netip.AddrPort]*probe.Session{}
	kept.Name += ", kept open"
	r.list = append(r.list, &kept)
}

// connect adds connections to a Service, by the address that the client and floating imply.
func (r *run) connect(from *site, client, name string, s *corev1.Service, nodes, floating []string) *connection {
	c := &connection{from: from, every: time.Second, limit: 5 * time.Second, Path: Path{
		Name: fmt.Sprintf("%s to %s, %s", client, s.Name, name), From: client, To: "svc/chaos/" + s.Name,
		Nodes: nodes, Floating: floating, Server: s.Name,
	}}
	switch {
	case floating != nil:
		for _, i := range s.Status.LoadBalancer.Ingress {
			c.to = append(c.to, netip.AddrPortFrom(netip.MustParseAddr(i.IP), 80))
		}
		r.moving = append(r.moving, c.to[0].Addr())
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
	r.list = append(r.list, c)
	return c
}

// leave adds connections of a pod that leave the cluster.
func (r *run) leave(from *site, role, node string, sources []netip.Addr, floating []string) *connection {
	c := &connection{from: from, every: time.Second, limit: 5 * time.Second, Path: Path{
		Name: fmt.Sprintf("%s-%s leaves the cluster", role, node), From: "pod/chaos/" + role + "-" + node,
		Nodes: []string{node}, Floating: floating, Server: "outside", Sources: sources,
	}}
	for _, p := range r.cluster.Lab().Host(cluster.ClientName).Addresses() {
		c.to = append(c.to, netip.AddrPortFrom(p.Addr(), outsidePort))
		c.To = "outside/" + c.to[0].String()
	}
	r.list = append(r.list, c)
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

// renumbered returns the addresses that a host gets in place of its own.
func (r *run) renumbered(name string) []netip.Prefix {
	return moved(r.cluster.Lab().Host(name).Addresses(), 50)
}

// moved returns addresses with a greater last byte.
func moved(of []netip.Prefix, by byte) (list []netip.Prefix) {
	for _, p := range of {
		b := p.Addr().AsSlice()
		b[len(b)-1] += by
		a, _ := netip.AddrFromSlice(b)
		list = append(list, netip.PrefixFrom(a, p.Bits()))
	}
	return list
}

func (r *run) pod(role, node string) *site {
	return &site{find: func(ctx context.Context) (lab.Place, error) {
		return r.cluster.Pod(ctx, namespace, role+"-"+node)
	}}
}

func (r *run) host(name string) *site {
	return &site{find: func(context.Context) (lab.Place, error) {
		if h := r.cluster.Lab().Host(name); h != nil {
			return h, nil
		}
		return nil, fmt.Errorf("%s does not run", name)
	}}
}
