package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"hairpin/lab"
	"hairpin/pipeline"
)

const (
	// policyPods and policyApps are the pods of other nodes and the values of their label app.
	policyPods, policyApps = 10_000, 300
	// policyOwn is how many isolated pods of the node take part when memory is measured.
	policyOwn = 100
	// policyAdds is how many CNI ADDs of each kind are measured.
	policyAdds = 40
	// policyFree is a namespace without policies. The one of the pods has policyNear, policyOthers
	// the rest.
	policyFree, policyOthers = "kube-public", "others"
	policyNear               = 100
)

// policySizes are the numbers of NetworkPolicies.
var policySizes = []int{10, 1_000, 10_000}

// policies measures NetworkPolicies of Hairpin alone: how long a change takes from the API write to
// the packets, what it costs, what CNI ADD takes, and memory.
func (w *world) policies(ctx context.Context) error {
	if err := w.startAPI(ctx); err != nil {
		return err
	}
	if err := w.makeNodes(ctx); err != nil {
		return err
	}
	w.opt.Side = "hairpin"
	return w.each(ctx, func(ctx context.Context, s *side) error {
		if err := s.start(ctx); err != nil {
			return err
		}
		if err := s.ready(ctx); err != nil {
			return err
		}
		if err := w.policyChanges(ctx, s); err != nil {
			return err
		}
		if err := w.policyADD(ctx, s); err != nil {
			return err
		}
		return w.policyMemory(ctx, s)
	})
}

// policyFor returns a policy by which pods with a label app accept a UDP port from others.
func policyFor(name, app string, port int32, from ...string) *networkingv1.NetworkPolicy {
	rule := networkingv1.NetworkPolicyIngressRule{Ports: []networkingv1.NetworkPolicyPort{
		{Protocol: new(corev1.ProtocolUDP), Port: new(intstr.FromInt32(port))}}}
	for _, f := range from {
		rule.From = append(rule.From, networkingv1.NetworkPolicyPeer{
			PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": f}}})
	}
	return &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
			Ingress:     []networkingv1.NetworkPolicyIngressRule{rule}}}
}

func appName(i int) string { return fmt.Sprintf("app-%03d", i%policyApps) }

// policyObject creates the object of a pod.
func (w *world) policyObject(ctx context.Context, in, name, app, node string) (*corev1.Pod, error) {
	p, err := w.client.CoreV1().Pods(in).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: in, Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create Pod %s: %w", name, err)
	}
	return p, nil
}

// policyChanges measures changes of one policy that selects a pod of the node, and of a peer's
// label, beside more and more policies of others.
func (w *world) policyChanges(ctx context.Context, s *side) error {
	var pods [2]*lab.Pod
	for i, name := range []string{"client", "server"} {
		object, err := w.policyObject(ctx, namespace, name, name, s.node.Name())
		if err != nil {
			return err
		}
		if pods[i], err = s.node.RunPod(ctx, w.client, object, nil); err != nil {
			return err
		}
	}
	f, err := startPolicyFlow(pods[0], pods[1])
	if err != nil {
		return err
	}
	defer f.stop()
	policies := w.client.NetworkingV1().NetworkPolicies(namespace)
	if _, err := policies.Create(ctx, policyFor("server", "server", inside, "client"),
		metav1.CreateOptions{}); err != nil {
		return err
	}
	write := map[string]func(bool) error{
		"policy": func(open bool) error {
			port := int32(inside)
			if !open {
				port++
			}
			_, err := policies.Update(ctx, policyFor("server", "server", port, "client"), metav1.UpdateOptions{})
			return err
		},
		"label of a peer": func(open bool) error {
			app := "client"
			if !open {
				app = "other"
			}
			_, err := w.client.CoreV1().Pods(namespace).Patch(ctx, "client", types.MergePatchType,
				fmt.Appendf(nil, `{"metadata":{"labels":{"app":%q}}}`, app), metav1.PatchOptions{})
			return err
		},
	}
	if _, err := w.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: policyOthers}}, metav1.CreateOptions{}); err != nil {
		return err
	}
	made := 1
	var rows []row
	for _, size := range policySizes {
		if err := parallel(ctx, made, size, func(ctx context.Context, i int) error {
			in := namespace
			if i >= policyNear {
				in = policyOthers
			}
			_, err := w.client.NetworkingV1().NetworkPolicies(in).Create(ctx, policyFor(fmt.Sprintf("p%05d", i),
				appName(i), 80, appName(3*i), appName(3*i+1), appName(3*i+2)), metav1.CreateOptions{})
			return err
		}); err != nil {
			return err
		}
		made = size
		if err := w.settle(ctx); err != nil {
			return err
		}
		time.Sleep(quiet)
		for _, what := range []string{"policy", "label of a peer"} {
			r, err := w.policyRounds(s, f, write[what])
			if err != nil {
				return err
			}
			of := fmt.Sprintf("%s changed, %d policies", what, size)
			w.say("%s: p50 %.1f ms, p99 %.1f ms", of, quantile(r.times, 0.5), quantile(r.times, 0.99))
			rows = append(rows, row{what: of + ", API write to packets, p50", unit: "ms", ours: quantile(r.times, 0.5)},
				row{what: "  p99", unit: "ms", ours: quantile(r.times, 0.99)},
				row{what: "  of it, until the API write returns, p50", unit: "ms", ours: quantile(r.writes, 0.5)},
				row{what: "  CPU for one change, agent", unit: "ms", ours: millis(r.spent[s.program].CPU)},
				row{what: "  CPU for one change, ovs-vswitchd", unit: "ms", ours: millis(r.spent[lab.VSwitchd].CPU)})
		}
	}
	w.print("NetworkPolicies", rows)
	return nil
}

// policyRounds measures changes that close and open in turn, and then their CPU time without
// packets.
func (w *world) policyRounds(s *side, f *policyFlow, write func(open bool) error) (r changeResult, err error) {
	change := func(open bool) (took, written time.Duration, err error) {
		begin := f.reset()
		err = write(open)
		written = time.Since(begin)
		if err != nil {
			return 0, 0, err
		}
		took, err = f.until(open, begin, w.patience(time.Second))
		return took, written, err
	}
	for n := range w.opt.Rounds {
		took, written, err := change(n%2 == 1)
		if err != nil {
			return r, err
		}
		r.times, r.writes = append(r.times, took), append(r.writes, written)
		time.Sleep(200 * time.Millisecond)
	}
	f.paused.Store(true)
	defer f.paused.Store(false)
	const count = 50
	usage := func(each func(n int) error) (map[string]lab.Usage, error) {
		before, err := usedBy(s)
		if err != nil {
			return nil, err
		}
		for n := range count {
			if err := each(n); err != nil {
				return nil, err
			}
			time.Sleep(100 * time.Millisecond)
		}
		after, err := usedBy(s)
		for name, u := range after {
			after[name] = lab.Usage{CPU: (u.CPU - before[name].CPU) / count, RSS: u.RSS}
		}
		return after, err
	}
	idle, err := usage(func(int) error { return nil })
	if err != nil {
		return r, err
	}
	if r.spent, err = usage(func(n int) error { return write(n%2 == 1) }); err != nil {
		return r, err
	}
	for name, u := range r.spent {
		r.spent[name] = lab.Usage{CPU: max(0, u.CPU-idle[name].CPU), RSS: u.RSS}
	}
	return r, nil
}

// policyFlow sends datagrams from one pod to another all the time, and records which arrive.
type policyFlow struct {
	from, to *net.UDPConn
	paused   atomic.Bool

	mu    sync.Mutex
	begin time.Time // of the record
	first time.Time // when the first datagram arrived that was sent after begin
	last  time.Time // when the last datagram was sent that arrived
}

func startPolicyFlow(client, server *lab.Pod) (*policyFlow, error) {
	f := &policyFlow{begin: time.Now()}
	err := lab.Do(server, func() (err error) {
		f.to, err = net.ListenUDP("udp", &net.UDPAddr{Port: inside})
		return err
	})
	if err != nil {
		return nil, err
	}
	err = lab.Do(client, func() (err error) {
		f.from, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(server.IPs()[0], inside)))
		return err
	})
	if err != nil {
		return nil, err
	}
	clock := time.Now() // a datagram has the time since then
	go func() {
		buf := make([]byte, 8)
		for {
			binary.BigEndian.PutUint64(buf, uint64(time.Since(clock)))
			if _, err := f.from.Write(buf); errors.Is(err, net.ErrClosed) {
				return
			}
			for time.Sleep(250 * time.Microsecond); f.paused.Load(); {
				time.Sleep(time.Millisecond)
			}
		}
	}()
	go func() {
		buf := make([]byte, 8)
		for {
			if _, err := f.to.Read(buf); err != nil {
				return
			}
			now, sent := time.Now(), clock.Add(time.Duration(binary.BigEndian.Uint64(buf)))
			f.mu.Lock()
			if f.last = sent; f.first.IsZero() && sent.After(f.begin) {
				f.first = now
			}
			f.mu.Unlock()
		}
	}()
	return f, nil
}

func (f *policyFlow) stop() {
	_ = f.from.Close()
	_ = f.to.Close()
}

// reset begins a record, and returns when.
func (f *policyFlow) reset() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.begin, f.first = time.Now(), time.Time{}
	return f.begin
}

// until waits for the effect of a change: a datagram arrives, or none does any more. It returns the
// time since begin.
func (f *policyFlow) until(open bool, begin time.Time, limit time.Duration) (time.Duration, error) {
	const silence = 200 * time.Millisecond
	for time.Since(begin) < limit {
		f.mu.Lock()
		first, last := f.first, f.last
		f.mu.Unlock()
		if open && !first.IsZero() {
			return first.Sub(begin), nil
		}
		if !open && time.Since(last) > silence && time.Since(begin) > silence {
			return max(0, last.Sub(begin)), nil
		}
		time.Sleep(time.Millisecond)
	}
	return 0, fmt.Errorf("a change of policies has no effect within %v (open: %v)", limit, open)
}

// policyADD measures CNI ADD: of pods without policies, of isolated pods, and of isolated pods
// whose objects were created at the same time. A kubelet takes longer than that before ADD.
func (w *world) policyADD(ctx context.Context, s *side) error {
	kinds := []struct {
		what, in string
		early    time.Duration
		times    []time.Duration
	}{{"no policies", policyFree, time.Second, nil}, {"isolated", namespace, time.Second, nil},
		{"isolated, object created just before", namespace, 0, nil},
		{"no policies, object created just before", policyFree, 0, nil}}
	for n := range policyAdds {
		for k := range kinds {
			x := &kinds[k]
			name := fmt.Sprintf("add-%d-%d", k, n)
			object, err := w.policyObject(ctx, x.in, name, "server", s.node.Name())
			if err != nil {
				return err
			}
			time.Sleep(x.early)
			begin := time.Now()
			p, err := s.node.AddPod(ctx, lab.PodConfig{Namespace: x.in, Name: name, UID: string(object.UID)})
			if err != nil {
				return err
			}
			x.times = append(x.times, time.Since(begin))
			if err := p.Delete(ctx); err != nil {
				return err
			}
			if err := w.client.CoreV1().Pods(x.in).Delete(ctx, name, *metav1.NewDeleteOptions(0)); err != nil {
				return err
			}
		}
	}
	var rows []row
	for _, x := range kinds {
		rows = append(rows, row{what: "CNI ADD, " + x.what + ", p50", unit: "ms", ours: quantile(x.times, 0.5)},
			row{what: "  p99", unit: "ms", ours: quantile(x.times, 0.99)})
	}
	w.print("CNI ADD with the plugin's process", rows)
	return nil
}

// policyMemory measures the memory for isolated pods of the node, each by a policy of its own with
// three peers, among pods of other nodes.
func (w *world) policyMemory(ctx context.Context, s *side) error {
	policies := w.client.NetworkingV1().NetworkPolicies(namespace)
	for _, in := range []string{namespace, policyOthers} {
		if err := w.client.NetworkingV1().NetworkPolicies(in).DeleteCollection(ctx, metav1.DeleteOptions{},
			metav1.ListOptions{}); err != nil {
			return err
		}
	}
	const each = 250 // pods of a node
	node := func(i int) string { return fmt.Sprintf("node-%d", 100+i/each) }
	for i := 0; i < policyPods; i += each {
		cidr := fmt.Sprintf("10.244.%d.0/24", 100+i/each)
		if _, err := w.client.CoreV1().Nodes().Create(ctx, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: node(i), Annotations: map[string]string{
				"k8s.ovn.org/node-id": fmt.Sprint(100 + i/each)}},
			Spec: corev1.NodeSpec{PodCIDRs: []string{cidr}, PodCIDR: cidr},
		}, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	if err := parallel(ctx, 0, policyPods, func(ctx context.Context, i int) error {
		p, err := w.policyObject(ctx, namespace, fmt.Sprintf("peer-%05d", i), appName(i), node(i))
		if err != nil {
			return err
		}
		ip := fmt.Sprintf("10.244.%d.%d", 100+i/each, 3+i%each)
		p.Status.Phase, p.Status.PodIP, p.Status.PodIPs = corev1.PodRunning, ip, []corev1.PodIP{{IP: ip}}
		_, err = w.client.CoreV1().Pods(namespace).UpdateStatus(ctx, p, metav1.UpdateOptions{})
		return err
	}); err != nil {
		return err
	}
	for i := range policyOwn {
		object, err := w.policyObject(ctx, namespace, fmt.Sprintf("own-%03d", i), fmt.Sprintf("own-%03d", i),
			s.node.Name())
		if err != nil {
			return err
		}
		if _, err := s.node.RunPod(ctx, w.client, object, nil); err != nil {
			return err
		}
	}
	measure := func() (map[string]lab.Usage, error) {
		time.Sleep(4 * quiet) // until the agent has returned what it no longer needs
		return usedBy(s)
	}
	before, err := measure()
	if err != nil {
		return err
	}
	for i := range policyOwn {
		name := fmt.Sprintf("own-%03d", i)
		if _, err := policies.Create(ctx, policyFor(name, name, 80, appName(3*i), appName(3*i+1), appName(3*i+2)),
			metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	members := func(flows string) bool { return strings.Count(flows, ",1/2)") >= policyPods }
	if err := s.node.WaitFor(ctx, w.patience(10*time.Second), members, "ovs-ofctl", "dump-flows", "br-svc",
		fmt.Sprintf("table=%d", pipeline.SvcIngressRule)); err != nil {
		return fmt.Errorf("flows for %d members: %w", policyPods, err)
	}
	after, err := measure()
	if err != nil {
		return err
	}
	var rows []row
	for _, name := range []string{s.program, lab.VSwitchd} {
		rows = append(rows, row{what: "memory of " + name + " without policies", unit: "MB",
			ours: float64(before[name].RSS) / 1024},
			row{what: "  with them", unit: "MB", ours: float64(after[name].RSS) / 1024})
	}
	w.print(fmt.Sprintf("%d pods, %d sets, %d profiles", policyPods, policyApps, policyOwn), rows)
	return nil
}
