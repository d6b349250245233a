package bench

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/lab"
	"hairpin/pipeline"
)

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
	w.print("CNI ADD with the plugin's process", "", rows)
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
	w.print(fmt.Sprintf("%d pods, %d sets, %d profiles", policyPods, policyApps, policyOwn), "", rows)
	return nil
}
