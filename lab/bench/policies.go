package bench

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"hairpin/lab"
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

// policies measures NetworkPolicies: how long a change takes from the API write to the packets, and
// what it costs, beside kube-router if there is one; and of Hairpin, what CNI ADD takes, and
// memory.
func (w *world) policies(ctx context.Context) error {
	if err := w.startAPI(ctx); err != nil {
		return err
	}
	if err := w.makeNodes(ctx); err != nil {
		return err
	}
	var results [2][]policyResult
	changes := func(ctx context.Context, s *side) (err error) {
		if err := s.start(ctx); err != nil {
			return err
		}
		if err := s.ready(ctx); err != nil {
			return err
		}
		results[s.index], err = w.policyChanges(ctx, s)
		return err
	}
	if w.opt.KubeRouter != "" {
		if err := w.on(ctx, w.router, changes); err != nil {
			return err
		}
		if err := w.forgetPolicies(ctx); err != nil {
			return err
		}
	}
	return w.on(ctx, w.ours, func(ctx context.Context, s *side) error {
		if err := changes(ctx, s); err != nil {
			return err
		}
		w.printPolicies(results[0], results[1])
		if err := w.policyADD(ctx, s); err != nil {
			return err
		}
		return w.policyMemory(ctx, s)
	})
}

// policyResult holds the measurements of one kind of change on one side.
type policyResult struct {
	of string
	changeResult
}

func (w *world) printPolicies(ours, theirs []policyResult) {
	var rows []row
	for i, r := range ours {
		var other changeResult
		if i < len(theirs) {
			other = theirs[i].changeResult
		}
		at := func(of func(changeResult) []time.Duration, q float64, what string) {
			rows = append(rows, row{what: what, unit: "ms", ours: quantile(of(r.changeResult), q),
				theirs: quantile(of(other), q)})
		}
		times := func(r changeResult) []time.Duration { return r.times }
		at(times, 0.5, r.of+", API write to packets, p50")
		at(times, 0.99, "  p99")
		at(func(r changeResult) []time.Duration { return r.writes }, 0.5, "  of it, until the API write returns, p50")
		rows = append(rows, spentRows("  CPU for one change, all processes", "ms", r.spent, other.spent,
			func(u lab.Usage) float64 { return millis(u.CPU) })...)
	}
	w.print("NetworkPolicies", "kube-router", rows)
}

// forgetPolicies deletes what policyChanges made on one side.
func (w *world) forgetPolicies(ctx context.Context) error {
	now := *metav1.NewDeleteOptions(0)
	for _, in := range []string{namespace, policyOthers} {
		if err := w.client.NetworkingV1().NetworkPolicies(in).DeleteCollection(ctx, now,
			metav1.ListOptions{}); err != nil {
			return err
		}
	}
	for _, name := range []string{"client", "server"} {
		if err := w.client.CoreV1().Pods(namespace).Delete(ctx, name, now); err != nil {
			return err
		}
	}
	return w.settle(ctx)
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
func (w *world) policyChanges(ctx context.Context, s *side) (results []policyResult, err error) {
	var pods [2]*lab.Pod
	for i, name := range []string{"client", "server"} {
		object, err := w.policyObject(ctx, namespace, name, name, s.node.Name())
		if err != nil {
			return nil, err
		}
		if pods[i], err = s.node.RunPod(ctx, w.client, object, nil); err != nil {
			return nil, err
		}
	}
	f, err := startPolicyFlow(pods[0], pods[1])
	if err != nil {
		return nil, err
	}
	defer f.stop()
	policies := w.client.NetworkingV1().NetworkPolicies(namespace)
	if _, err := policies.Create(ctx, policyFor("server", "server", inside, "client"),
		metav1.CreateOptions{}); err != nil {
		return nil, err
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
		ObjectMeta: metav1.ObjectMeta{Name: policyOthers}}, metav1.CreateOptions{}); err != nil &&
		!apierrors.IsAlreadyExists(err) {
		return nil, err
	}
	made := 1
	for _, size := range w.opt.Policies {
		if err := parallel(ctx, made, size, func(ctx context.Context, i int) error {
			in := namespace
			if i >= policyNear {
				in = policyOthers
			}
			_, err := w.client.NetworkingV1().NetworkPolicies(in).Create(ctx, policyFor(fmt.Sprintf("p%05d", i),
				appName(i), 80, appName(3*i), appName(3*i+1), appName(3*i+2)), metav1.CreateOptions{})
			return err
		}); err != nil {
			return nil, err
		}
		made = size
		if err := w.settle(ctx); err != nil {
			return nil, err
		}
		time.Sleep(quiet)
		for _, what := range []string{"policy", "label of a peer"} {
			r, err := w.policyRounds(s, f, write[what])
			if err != nil {
				return nil, err
			}
			of := fmt.Sprintf("%s changed, %d policies", what, size)
			w.say("%s, %s: p50 %.1f ms, p99 %.1f ms", s.name, of, quantile(r.times, 0.5), quantile(r.times, 0.99))
			results = append(results, policyResult{of, r})
		}
	}
	return results, nil
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
		took, err = f.until(open, begin, w.patience(10*time.Second))
		return took, written, err
	}
	// A change takes kube-router the longer, the more policies there are.
	const few, long = 10, time.Minute
	begin := time.Now()
	for n := range w.opt.Rounds {
		if n >= few && time.Since(begin) > long {
			break
		}
		took, written, err := change(n%2 == 1)
		if err != nil {
			return r, err
		}
		r.times, r.writes = append(r.times, took), append(r.writes, written)
		time.Sleep(200 * time.Millisecond)
	}
	f.paused.Store(true)
	defer f.paused.Store(false)
	count, pause := time.Duration(50), 100*time.Millisecond
	if usual := time.Duration(quantile(r.times, 0.5) * float64(time.Millisecond)); 2*usual > pause {
		count, pause = few, 2*usual // each change has its effect before the next one
	}
	usage := func(each func(n time.Duration) error) (map[string]lab.Usage, error) {
		before, err := usedBy(s)
		if err != nil {
			return nil, err
		}
		for n := range count {
			if err := each(n); err != nil {
				return nil, err
			}
			time.Sleep(pause)
		}
		after, err := usedBy(s)
		for name, u := range after {
			after[name] = lab.Usage{CPU: (u.CPU - before[name].CPU) / count, RSS: u.RSS}
		}
		return after, err
	}
	idle, err := usage(func(time.Duration) error { return nil })
	if err != nil {
		return r, err
	}
	if r.spent, err = usage(func(n time.Duration) error { return write(n%2 == 1) }); err != nil {
		return r, err
	}
	for name, u := range r.spent {
		r.spent[name] = lab.Usage{CPU: max(0, u.CPU-idle[name].CPU), RSS: u.RSS}
	}
	return r, nil
}
