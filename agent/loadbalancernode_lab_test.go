package agent_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"hairpin/api/v1alpha1"
	"hairpin/claims"
	"hairpin/cluster/annotation"
	"hairpin/lab"
	"hairpin/lab/demo"
	"hairpin/lab/probe"
	"hairpin/watch"
)

// nodeAddresses: a Service gets the nodes' own addresses from a pool. A client outside reaches it
// there at the port that the pool lists, and not at the kubelet's, which the pool lists by mistake.
// A program of the host and a hostPort take the port from the Service. With externalTrafficPolicy
// Local, only the node with the endpoint is listed.
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
	hostTakesPort(t, l, api, func(node string) string {
		a := ask(node, 80)
		return a.Name + a.Error
	})
	listed(nodeA, nodeC)
	for _, says := range []string{"tcp port 80 of 172.18.0.4 is used by a program of node node-b",
		"tcp port 80 of 172.18.0.6 is a hostPort of Pod/default/mapped"} {
		eventually(t, 30*time.Second, "an Event says: "+says, func() (bool, string) {
			events, err := api.CoreV1().Events("default").List(ctx, metav1.ListOptions{})
			noError(t, err)
			return slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
				return e.InvolvedObject.Name == "own" && e.Reason == "PortNotAvailable" &&
					strings.Contains(e.Message, says)
			}), fmt.Sprint(len(events.Items), " Events")
		})
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

// hostTakesPort starts a program on node-b and a pod on node-d that have the port of a Service.
// They must get the clients. ask returns what answers.
func hostTakesPort(t *testing.T, l *lab.Lab, api kubernetes.Interface, ask func(node string) string) {
	ctx, b, d := t.Context(), l.Node("node-b"), l.Node("node-d")
	end, err := lab.Serve(ctx, b.Host, "daemon", 80)
	noError(t, err)
	begun := time.Now()
	takes := func(node, name string) {
		t.Helper()
		eventually(t, 30*time.Second, name+" answers at "+node, func() (bool, string) {
			a := ask(node)
			return a == name, a
		})
		t.Logf("%s answers after %s", name, time.Since(begun).Round(10*time.Millisecond))
	}
	takes("172.18.0.4", "daemon")
	noError(t, end())
	heldAfterRestart(t, b, api)

	noError(t, lab.BuildPortmap(ctx, d.Path("/opt/cni/bin/"+claims.PortmapPlugin)))
	const file = "/etc/cni/net.d/10-hairpin.conflist"
	plain, err := os.ReadFile(d.Path(file))
	noError(t, err)
	const ports = `"runtimeConfig": {"portMappings": [{"hostPort": 80, "containerPort": 8080, "protocol": "tcp"}]}`
	noError(t, d.WriteFile(file, fmt.Sprintf(`{"cniVersion": "1.1.0", "name": "hairpin", "plugins": [
{"type": "hairpin", %[2]s}, {"type": %[1]q, "backend": "nftables", %[2]s}]}`, claims.PortmapPlugin, ports)))
	made, err := api.CoreV1().Pods("default").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "mapped"},
		Spec: corev1.PodSpec{NodeName: d.Name(), Containers: []corev1.Container{{Name: "a", Image: "a",
			Ports: []corev1.ContainerPort{{ContainerPort: 8080, HostPort: 80}}}}}}, metav1.CreateOptions{})
	noError(t, err)
	begun = time.Now()
	_, err = d.RunPod(ctx, api, made, func(p *lab.Pod) error {
		_, err := lab.Serve(ctx, p, "mapped", 8080)
		return err
	})
	noError(t, errors.Join(err, d.WriteFile(file, string(plain))))
	takes("172.18.0.6", "mapped")
}

// heldAfterRestart: an agent that starts still reports port 80, whose program has ended a moment
// ago.
func heldAfterRestart(t *testing.T, n *lab.Node, api kubernetes.Interface) {
	ctx := t.Context()
	noError(t, n.Restart(ctx, agent, syscall.SIGTERM))
	stop, err := lab.Serve(ctx, n.Host, "kubelet", 10250)
	noError(t, err)
	t.Cleanup(func() { noError(t, stop()) })
	const used = `{"ip":"172.18.0.4","protocol":"TCP","port":%d}`
	var ports string
	eventually(t, 30*time.Second, "the new agent reports another program", func() (bool, string) {
		o, err := api.CoreV1().Nodes().Get(ctx, n.Name(), metav1.GetOptions{})
		noError(t, err)
		ports = o.Annotations[annotation.HostPorts]
		return strings.Contains(ports, fmt.Sprintf(used, 10250)), ports
	})
	if !strings.Contains(ports, fmt.Sprintf(used, 80)) {
		t.Errorf("the new agent reports %s, without port 80", ports)
	}
}
