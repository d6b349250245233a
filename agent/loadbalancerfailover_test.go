package agent_test

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"hairpin/lab/demo"
)

// TestLoadBalancerFailover: a machine outside connects to a load balancer address of a pool all the
// time, while the address moves between live nodes, and when its node is killed.
func TestLoadBalancerFailover(t *testing.T) {
	g := startEgress(t, "[ovnkubernetesfeature]\negressip-reachability-total-timeout = 5\n")
	ctx := t.Context()
	noError(t, g.Label(ctx, demo.EgressStays, false))
	p, err := g.Pooled(ctx, "172.18.0.55")
	noError(t, err)
	noError(t, p.Nodes(ctx, demo.EgressDies))
	answers := func() { t.Helper(); addressAnswers(t, p) }
	answers()
	noError(t, g.Label(ctx, demo.EgressStays, true))

	stop := p.Connect(ctx, 10*time.Millisecond, 5*time.Second)
	keeps := withConnections(t, p.Pod(), []string{p.Server().Addr().String()}, p.Server().Port())
	begun := time.Now()
	noError(t, g.Label(ctx, demo.EgressDies, false))
	noError(t, p.Nodes(ctx, demo.EgressStays))
	moved := time.Since(begun)
	answers()
	all := stop()
	n, slowest := failed(all)
	t.Logf("planned move in %v: of %d connections %d failed, the slowest took %v", moved.Round(time.Millisecond),
		len(all), n, slowest.Round(time.Millisecond))
	if n > 0 {
		t.Error("connections failed in a planned move")
	}
	keeps()

	noError(t, g.Label(ctx, demo.EgressDies, true))
	noError(t, g.Label(ctx, demo.EgressStays, false))
	noError(t, p.Nodes(ctx, demo.EgressDies))
	noError(t, g.Label(ctx, demo.EgressStays, true))
	noError(t, g.Both(ctx))
	answers()
	stop = p.Connect(ctx, 10*time.Millisecond, 500*time.Millisecond)
	stalled := watchStalls()
	killed := time.Now()
	noError(t, g.Kill())
	noError(t, p.Nodes(ctx, demo.EgressStays))
	answers()
	stall := stalled()
	t.Logf("node killed: new connections failed for %v, the machine stalled for up to %v",
		demo.Blackhole(stop(), killed).Round(time.Millisecond), stall.Round(time.Millisecond))
}

// addressAnswers waits until no connection to a load balancer address fails.
func addressAnswers(t *testing.T, p *demo.Egress) {
	t.Helper()
	eventually(t, 10*time.Second, "the load balancer address answers", func() (bool, string) {
		stop := p.Connect(t.Context(), 20*time.Millisecond, 500*time.Millisecond)
		time.Sleep(200 * time.Millisecond)
		all := stop()
		n, _ := failed(all)
		return len(all) > 0 && n == 0, fmt.Sprintf("%d of %d connections failed", n, len(all))
	})
}

// BenchmarkLoadBalancerFailover repeatedly kills the node that announces a load balancer address
// (-failovers), and then moves the address between live nodes (-moves), while a machine outside
// opens 400 connections a second.
func BenchmarkLoadBalancerFailover(b *testing.B) {
	const interval = 2500 * time.Microsecond
	g := startEgress(b, "")
	ctx := b.Context()
	p, err := g.Pooled(ctx, "172.18.0.55")
	noError(b, err)
	// put moves the address to a node, and returns the connections of that time.
	put := func(to, from string) []demo.Connection {
		b.Helper()
		noError(b, g.Both(ctx))
		stop := p.Connect(ctx, interval, 5*time.Second)
		noError(b, g.Label(ctx, from, false))
		noError(b, p.Nodes(ctx, to))
		time.Sleep(2 * time.Second) // neighbors have learned the new node
		all := stop()
		noError(b, g.Label(ctx, from, true))
		return all
	}
	var holes []time.Duration
	for i := range *failovers {
		put(demo.EgressDies, demo.EgressStays)
		stop := p.Connect(ctx, interval, 500*time.Millisecond)
		time.Sleep(200 * time.Millisecond)
		stalled := watchStalls()
		killed := time.Now()
		noError(b, g.Kill())
		noError(b, p.Nodes(ctx, demo.EgressStays))
		time.Sleep(500 * time.Millisecond)
		stall := stalled()
		all := stop()
		holes = append(holes, demo.Blackhole(all, killed))
		b.Logf("%d: killed: %v, stalled for up to %v; %d connections", i, holes[i].Round(time.Millisecond),
			stall.Round(time.Millisecond), len(all))
		noError(b, g.Revive(ctx))
	}
	reportHoles(b, "killed-", holes)
	put(demo.EgressDies, demo.EgressStays)
	connections, lost := 0, 0
	for i := range *moves {
		to, from := demo.EgressStays, demo.EgressDies
		if i%2 == 1 {
			to, from = from, to
		}
		all := put(to, from)
		n, slowest := failed(all)
		connections, lost = connections+len(all), lost+n
		b.Logf("%d, to %s: of %d connections %d failed, the slowest took %v", i, to, len(all), n,
			slowest.Round(time.Millisecond))
	}
	b.ReportMetric(float64(connections), "planned")
	b.ReportMetric(float64(lost), "planned-lost")
}

// TestLoadBalancerEndpointsMove: with policy Local, a load balancer address follows the only
// endpoint from node to node (-moves), while a machine outside opens 100 connections a second. The
// last endpoint of a node serves, but is no longer ready, before it ends. With more connections the
// client would reuse ports of connections that a node may still track.
func TestLoadBalancerEndpointsMove(t *testing.T) {
	t.Parallel()
	g := startEgress(t, "")
	ctx := t.Context()
	p, err := g.Pooled(ctx, "172.18.0.55")
	noError(t, err)
	noError(t, g.Label(ctx, "node-c", true))
	client, err := demo.Client(g.Demo().Lab())
	noError(t, err)
	services, slices := client.CoreV1().Services("default"), client.DiscoveryV1().EndpointSlices("default")
	noError(t, retry.RetryOnConflict(retry.DefaultRetry, func() error { // the controller writes its status
		s, err := services.Get(ctx, "pooled", metav1.GetOptions{})
		if err != nil {
			return err
		}
		s.Spec.Selector, s.Spec.ExternalTrafficPolicy = nil, corev1.ServiceExternalTrafficPolicyLocal
		_, err = services.Update(ctx, s, metav1.UpdateOptions{})
		return err
	}))
	noError(t, slices.DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=pooled"}))
	slice, err := slices.Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "pooled-local",
			Labels: map[string]string{discoveryv1.LabelServiceName: "pooled"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
	}, metav1.CreateOptions{})
	noError(t, err)
	addresses := map[string]string{}
	for node, name := range map[string]string{demo.EgressStays: "pod-b1", "node-c": "pod-c1"} {
		pod, err := client.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
		noError(t, err)
		addresses[node] = pod.Status.PodIP
	}
	// endpoint returns the endpoint of a node, which is ready or ends.
	endpoint := func(node string, ready bool) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: []string{addresses[node]}, NodeName: &node,
			Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: new(true), Terminating: new(!ready)}}
	}
	set := func(list ...discoveryv1.Endpoint) {
		t.Helper()
		slice.Endpoints = list
		slice, err = slices.Update(ctx, slice, metav1.UpdateOptions{})
		noError(t, err)
	}
	to, from := demo.EgressStays, "node-c"
	set(endpoint(to, true))
	noError(t, p.Nodes(ctx, to))
	connections, lost := 0, 0
	for i := range *moves {
		to, from = from, to
		stop := p.Connect(ctx, 10*time.Millisecond, 5*time.Second)
		time.Sleep(500 * time.Millisecond) // of connections from before the move
		set(endpoint(from, true), endpoint(to, true))
		set(endpoint(from, false), endpoint(to, true))
		noError(t, p.Nodes(ctx, to))
		time.Sleep(time.Second) // the endpoint ends
		set(endpoint(to, true))
		time.Sleep(500 * time.Millisecond)
		all := stop()
		n, slowest := failed(all)
		connections, lost = connections+len(all), lost+n
		t.Logf("%d, to %s: of %d connections %d failed, the slowest took %v", i, to, len(all), n,
			slowest.Round(time.Millisecond))
	}
	if lost > 0 {
		t.Errorf("%d of %d connections failed", lost, connections)
	}
}
