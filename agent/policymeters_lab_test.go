package agent_test

import (
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"hairpin/lab"
)

// policyMeters: a pod is isolated from its first packet, and the metrics count what its policy
// accepts and drops, also after the policy has changed.
func (o *operated) policyMeters(t *testing.T) {
	ctx := t.Context()
	policies := o.api.NetworkingV1().NetworkPolicies("default")
	policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "server"},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "server"}},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{
				From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{
					MatchLabels: map[string]string{"app": "client"}}}},
				Ports: []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromInt32(80))}},
			}},
		}}
	policy, err := policies.Create(ctx, policy, metav1.CreateOptions{})
	noError(t, err)
	server, client := o.runPod(t, "server"), o.runPod(t, "client")
	// A port without a listener is refused: the packet has arrived.
	send := func(port uint16) string {
		var err error
		noError(t, lab.Do(client, func() error {
			var c net.Conn
			if c, err = net.DialTimeout("tcp", netip.AddrPortFrom(server.IPs()[0], port).String(),
				time.Second); err == nil {
				err = c.Close()
			}
			return nil
		}))
		switch {
		case err == nil:
			return "accepted"
		case strings.Contains(err.Error(), "refused"):
			return "refused"
		}
		return "dropped"
	}
	if got := send(81); got != "dropped" {
		t.Errorf("a packet to port 81 is %s", got)
	}
	eventually(t, 10*time.Second, "the policy accepts the client", func() (bool, string) {
		got := send(80)
		return got == "refused", got
	})
	metric := func(name string) (n string) {
		for line := range strings.Lines(sh(t, o.node, "hairpin probe metrics")) {
			if value, ok := strings.CutPrefix(line, name+" "); ok {
				return strings.TrimSpace(value)
			}
		}
		return "none"
	}
	const accepted = `hairpin_policy_packets_total{direction="ingress",policy="default/server"}`
	const dropped = `hairpin_policy_dropped_packets_total{direction="ingress",namespace="default",pod="server"}`
	before := ""
	eventually(t, 10*time.Second, "the packets are counted", func() (bool, string) {
		before = metric(dropped)
		return metric(accepted) == "1" && before != "0" && before != "none",
			metric(accepted) + " accepted, " + before + " dropped"
	})
	if n := metric("hairpin_policy_isolated_pods"); n != "1" {
		t.Errorf("%s pods are isolated, not 1", n)
	}
	const enforced = "hairpin_policy_enforcement_duration_seconds"
	samples := metric(enforced + "_count")
	policy.Spec.Ingress[0].Ports[0].Port = new(intstr.FromInt32(81))
	_, err = policies.Update(ctx, policy, metav1.UpdateOptions{})
	noError(t, err)
	eventually(t, 10*time.Second, "the changed policy is in force", func() (bool, string) {
		got := send(81)
		return got == "refused" && send(80) == "dropped", got
	})
	if n := metric(enforced + "_count"); n == "none" || n == samples {
		t.Errorf("%s samples of the time until policies are enforced, before %s", n, samples)
	}
	t.Logf("%s samples of the time until policies are enforced, in all %s s", metric(enforced+"_count"),
		metric(enforced+"_sum"))
	eventually(t, 10*time.Second, "both rules' packets are counted", func() (bool, string) {
		n := metric(accepted)
		return n >= "2" && n != "none", n
	})
	noError(t, policies.Delete(ctx, "server", metav1.DeleteOptions{}))
	eventually(t, 10*time.Second, "nothing is isolated", func() (bool, string) {
		n := metric("hairpin_policy_isolated_pods")
		return n == "0" && send(80) == "refused" && metric(accepted) == "none", n
	})
}
