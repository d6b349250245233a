package agent_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"hairpin/api/v1alpha1"
	"hairpin/lab"
	"hairpin/lab/demo"
	"hairpin/lab/probe"
	"hairpin/watch"
)

// nodeAddresses: a Service gets the nodes' own addresses from a pool. A client outside reaches it
// there at the port that the pool lists, and not at the kubelet's, which the pool lists by mistake.
// With externalTrafficPolicy Local, only the node with the endpoint is listed.
func nodeAddresses(t *testing.T, g *demo.Egress) {
	ctx, l := t.Context(), g.Demo().Lab()
	server, err := lab.OpenAPIServer(l.APIServerDir())
	noError(t, err)
	config, err := server.RESTConfig()
	noError(t, err)
	api, err := kubernetes.NewForConfig(config)
	noError(t, err)
	noError(t, api.CoreV1().RESTClient().Post().AbsPath(watch.PoolPath()).Body(fmt.Appendf(nil,
		`{"apiVersion":%q,"kind":"LoadBalancerPool","metadata":{"name":"own"},"spec":{`+
			`"nodeAddresses":{"ports":["80","10250"]},"serviceSelector":{"matchLabels":{"own":"yes"}}}}`, v1alpha1.GroupVersion().String())).Do(ctx).Error())
	services := api.CoreV1().Services("default")
	_, err = services.Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "own", Labels: map[string]string{"own": "yes"}},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: new("hairpin.dev/l2"),
			Selector: map[string]string{"target": "podlocal"}, Ports: []corev1.ServicePort{
				{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)},
				{Name: "kubelet", Port: 10250, TargetPort: intstr.FromInt32(8080)}}},
	}, metav1.CreateOptions{})
	noError(t, err)
	listed := func(want ...string) {
		t.Helper()
		eventually(t, 30*time.Second, "the status lists "+fmt.Sprint(want), func() (bool, string) {
			s, err := services.Get(ctx, "own", metav1.GetOptions{})
			noError(t, err)
			var has []string
			for _, in := range s.Status.LoadBalancer.Ingress {
				has = append(has, in.IP)
			}
			return slices.Equal(has, want), fmt.Sprint(has)
		})
	}
	const nodeA, nodeC = "172.18.0.3", "172.18.0.5"
	ask := func(node string, port uint16) probe.Answer {
		return lab.Get(ctx, l.Host("client"), probe.Request{Protocol: "tcp", Timeout: time.Second,
			To: netip.AddrPortFrom(netip.MustParseAddr(node), port)})
	}
	answers := func(node string) (a probe.Answer) {
		t.Helper()
		eventually(t, 30*time.Second, "the pod answers at "+node, func() (bool, string) {
			a = ask(node, 80)
			return a.Name == "pod-a1", a.Name + " " + a.Error
		})
		return a
	}
	listed(nodeA, "172.18.0.4", nodeC, "172.18.0.6")
	for _, node := range []string{nodeA, nodeC} {
		answers(node)
		if a := ask(node, 10250); a.Error == "" {
			t.Errorf("%s answers at the kubelet's port of %s", a.Name, node)
		}
	}
	_, err = services.Patch(ctx, "own", types.MergePatchType, []byte(`{"spec":{"externalTrafficPolicy":"Local"}}`),
		metav1.PatchOptions{})
	noError(t, err)
	listed(nodeA)
	eventually(t, 30*time.Second, "the pod sees the client", func() (bool, string) {
		a := answers(nodeA)
		return a.Saw.Addr() == a.Client.Addr(), a.Saw.String()
	})
	noError(t, services.Delete(ctx, "own", metav1.DeleteOptions{}))
	eventually(t, 30*time.Second, "nothing answers at the node's address", func() (bool, string) {
		a := ask(nodeA, 80)
		return a.Error != "", a.Name
	})
}
