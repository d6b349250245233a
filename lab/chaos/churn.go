package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	churnServices = 4 // how many Services come and go
	// freshTime is the time after which every node serves a new Service.
	freshTime = 3 * time.Second
	// appliedTime is the time after which every node has applied a new EgressIP, or the end of one.
	appliedTime = 2 * time.Second
)

// churn creates and deletes objects until ctx ends, and deletes what is left. It ignores failed
// requests: the API server may not answer during a fault.
func (r *run) churn(ctx context.Context) {
	random := rand.New(rand.NewPCG(r.opt.Seed, 1<<32))
	stops := map[string]func(){} // by the name of a Service: ends its clients; nil: it does not exist
	policy, egress := false, false
	for ctx.Err() == nil {
		sleep(ctx, jitter(random, time.Second, 4*time.Second))
		limited, cancel := context.WithTimeout(ctx, 5*time.Second)
		switch i := random.IntN(churnServices + 2); {
		case i == churnServices:
			policy = r.togglePolicy(limited, policy)
		case i == churnServices+1:
			begin := r.since()
			egress = r.toggleEgressIP(limited, egress)
			r.changed(span{begin, r.since() + appliedTime})
		case stops[churnName(i)] == nil:
			if stop := r.newService(limited, ctx, churnName(i), random); stop != nil {
				stops[churnName(i)] = stop
			}
		default:
			stops[churnName(i)]()
			stops[churnName(i)] = nil
			_ = r.cluster.Client().CoreV1().Services(namespace).Delete(limited, churnName(i), metav1.DeleteOptions{})
		}
		cancel()
	}
	for _, stop := range stops {
		if stop != nil {
			stop()
		}
	}
	for i := range churnServices { // undeploy removes what this leaves
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		_ = r.cluster.Client().CoreV1().Services(namespace).Delete(limited, churnName(i), metav1.DeleteOptions{})
		_ = r.togglePolicy(limited, true)
		_ = r.toggleEgressIP(limited, true)
		cancel()
	}
}

func churnName(i int) string { return fmt.Sprint("churn-", i) }

// newService creates a Service of a server on some node, and a client in a pod on another. It
// returns nil if the Service was not created.
func (r *run) newService(ctx, run context.Context, name string, random *rand.Rand) (stop func()) {
	from, to := r.nodes[random.IntN(len(r.nodes))], r.nodes[random.IntN(len(r.nodes))]
	both := corev1.IPFamilyPolicyRequireDualStack
	services := r.cluster.Client().CoreV1().Services(namespace)
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			IPFamilyPolicy: &both, Selector: map[string]string{"role": roleOpen, "at": to},
			Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
		},
	}
	if random.IntN(2) == 0 {
		class := loadBalancerClass
		s.Spec.Type, s.Spec.LoadBalancerClass = corev1.ServiceTypeLoadBalancer, &class
	}
	s, err := services.Create(ctx, s, metav1.CreateOptions{})
	if err != nil {
		_ = services.Delete(ctx, name, metav1.DeleteOptions{}) // it may exist although the answer was lost
		return nil
	}
	c := &connection{from: r.pod(roleClient, from), limit: 5 * time.Second, Path: Path{
		Name: fmt.Sprintf("client-%s to new Service of open-%s", from, to), From: "pod/chaos/client-" + from,
		To: "svc/chaos/" + name, Nodes: []string{from, to}, Server: roleOpen + "-" + to, Fresh: true, API: r.nodes[0],
	}}
	for _, ip := range s.Spec.ClusterIPs {
		c.to = append(c.to, netip.AddrPortFrom(netip.MustParseAddr(ip), 80))
	}
	r.mu.Lock()
	path := len(r.connections)
	r.connections = append(r.connections, c)
	r.mu.Unlock()
	run, cancel := context.WithCancel(run)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		sleep(run, freshTime)
		for turn := 0; run.Err() == nil; turn++ {
			r.connectOnce(context.WithoutCancel(run), path, c, c.to[turn%len(c.to)])
			sleep(run, time.Second)
		}
	}()
	return func() { cancel(); <-ended }
}

// churnEgressIP is the EgressIP that comes and goes.
func churnEgressIP() string { return egressIPManifest("churn", roleEgressChurn, churnIPs) }

// toggleEgressIP deletes the EgressIP that comes and goes, or creates it, and returns whether it
// exists.
func (r *run) toggleEgressIP(ctx context.Context, exists bool) bool {
	if exists {
		_, err := r.cluster.Kubectl(ctx, "", "delete", "egressip", "churn", "--ignore-not-found")
		return err != nil
	}
	_, err := r.cluster.Kubectl(ctx, churnEgressIP(), "apply", "-f", "-")
	return err == nil
}

// changed records when the addresses changed with which the pods leave whose address comes and
// goes.
func (r *run) changed(s span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.connections {
		if c.addressChanges {
			c.Changes = append(c.Changes, s)
		}
	}
}

// togglePolicy deletes a second policy of the guarded pods, or creates it, and returns whether it
// exists. The policy allows what the first one allows.
func (r *run) togglePolicy(ctx context.Context, exists bool) bool {
	const name = "churn"
	all := r.cluster.Client().NetworkingV1().NetworkPolicies(namespace)
	if exists {
		return all.Delete(ctx, name, metav1.DeleteOptions{}) != nil
	}
	peer := func(role string) networkingv1.NetworkPolicyPeer {
		return networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{
			MatchLabels: map[string]string{"role": role}}}
	}
	_, err := all.Create(ctx, &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"role": roleGuarded}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{
				peer(roleClient), peer("nothing")}}},
		},
	}, metav1.CreateOptions{})
	return err == nil
}
