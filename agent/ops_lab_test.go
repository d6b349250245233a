package agent_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"hairpin/image"
	"hairpin/lab"
)

// operated is one node with an agent, an API server and an external client.
type operated struct {
	judged
	lab     *lab.Lab
	machine lab.NodeConfig // of the node
	config  lab.APIServerConfig
	server  *lab.APIServer
	api     kubernetes.Interface
}

// runPod creates a Pod with the label app, and runs it on the node as a kubelet does.
func (o *operated) runPod(t *testing.T, name string) *lab.Pod {
	t.Helper()
	made, err := o.api.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{NodeName: o.node.Name(),
			Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}, metav1.CreateOptions{})
	noError(t, err)
	p, err := o.node.RunPod(t.Context(), o.api, made, nil)
	noError(t, err)
	return p
}

func startOperated(t *testing.T) *operated {
	t.Helper()
	favour(t)
	return startOperatedWith(t, "10.244.1.0/24")
}

// startOperatedWith is startOperated with another IPv4 range for the node's pods.
func startOperatedWith(t *testing.T, pods string) *operated {
	t.Helper()
	hairpin, ctx, p := build(t), t.Context(), netip.MustParsePrefix
	kube, err := lab.BuildKube(ctx, image.DefaultDir, func(line string) { t.Log(line) })
	noError(t, err)
	l := lab.Start(t, lab.Config{})
	host, err := l.StartHost(ctx, lab.HostConfig{Name: "api", Addresses: []netip.Prefix{p("172.18.0.10/16")}})
	noError(t, err)
	o := &operated{judged: judged{t: t}, lab: l, config: lab.APIServerConfig{
		Binary: kube, Dir: l.APIServerDir(), Address: host.Addresses()[0].Addr(), Netns: host.Netns(),
		DieWithCaller: true,
	}}
	o.startAPI()
	t.Cleanup(func() { _ = o.server.Stop() }) // it may be stopped
	kubeconfig, err := os.ReadFile(o.server.Kubeconfig())
	noError(t, err)
	noError(t, makeNode(ctx, o.api, pods))
	o.client, err = l.StartHost(ctx, lab.HostConfig{Name: "client"})
	noError(t, err)
	o.machine = lab.NodeConfig{
		Name: "node-a", Addresses: []netip.Prefix{p("172.18.0.3/16"), p("fc00:f853:ccd::3/64")},
		Binds: map[string]string{"/usr/local/bin/hairpin": hairpin, "/opt/cni/bin/hairpin": hairpin},
		Files: map[string]string{
			settings:                     "[kubernetes]\nkubeconfig = /etc/hairpin/kubeconfig\n",
			"/etc/hairpin/kubeconfig":    string(kubeconfig),
			"/etc/cni/net.d/10.conflist": `{"cniVersion": "1.1.0", "name": "hairpin", "plugins": [{"type": "hairpin"}]}`,
		},
	}
	o.node = l.Add(t, o.machine)
	return o
}

func (o *operated) startAPI() {
	o.t.Helper()
	var err error
	o.server, err = lab.StartAPIServer(o.t.Context(), o.config)
	noError(o.t, err)
	config, err := o.server.RESTConfig()
	noError(o.t, err)
	o.api, err = kubernetes.NewForConfig(config)
	noError(o.t, err)
}

// makeNode creates Node node-a as a kubelet and the controllers would.
func makeNode(ctx context.Context, api kubernetes.Interface, pods string) error {
	n, err := api.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-a", Annotations: map[string]string{"k8s.ovn.org/node-id": "1"}},
		Spec:       corev1.NodeSpec{PodCIDRs: []string{pods, "fd00:10:244:1::/64"}, PodCIDR: pods},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "172.18.0.3"},
		{Type: corev1.NodeInternalIP, Address: "fc00:f853:ccd::3"}}
	n.ResourceVersion = "" // the controller may write to it at the same time
	_, err = api.CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{})
	return err
}

// curl requests a page from a place; code 0 means no reply.
func curl(ctx context.Context, from *lab.Host, url string) (code int, header http.Header, body string) {
	client := http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			doErr := from.Do(func() error {
				conn,
					err = new(net.Dialer).DialContext(ctx, network, address)
				return nil
			})
			if doErr != nil {
				return nil, doErr
			}
			return conn, err
		},
	}}
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, err.Error()
	}
	answer, err := client.Do(q)
	if err != nil {
		return 0, nil, err.Error()
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, nil, err.Error()
	}
	return answer.StatusCode, answer.Header, string(text)
}

func (o *operated) patchNode(patch string, subresources ...string) {
	o.t.Helper()
	_, err := o.api.CoreV1().Nodes().Patch(o.t.Context(), "node-a", types.StrategicMergePatchType, []byte(patch),
		metav1.PatchOptions{}, subresources...)
	noError(o.t, err)
}

// TestOperations: the results that an administrator's tools get from a node.
func TestOperations(t *testing.T) {
	t.Parallel()
	o := startOperated(t)
	start(t, o.node)
	waitWell(t, o.node)
	t.Run("meters of policies", o.policyMeters)
	var never <-chan error
	t.Run("ADD waits for the object", func(t *testing.T) { never = o.addWaitsForTheObject(t) })
	t.Run("health", o.health)
	t.Run("condition", o.condition)
	t.Run("health check port", o.portProblem)
	t.Run("metrics from a pod", o.metricsFromPod)
	t.Run("two controllers", o.twoControllers)
	t.Run("status of the cluster", o.clusterStatus)
	t.Run("ADD without an object", func(t *testing.T) { o.addFails(t, never) }) // after half a minute
	t.Run("dead connections", o.deadConnections)
	t.Run("API away", o.apiAway)
}

func (o *operated) on(t *testing.T) *operated { p := *o; p.t = t; return &p }

func (o *operated) health(t *testing.T) {
	p := o.on(t)
	p.answers("served", "/healthz", 10256, http.StatusOK)
	p.patchNode(`{"spec":{"taints":[{"key":"ToBeDeletedByClusterAutoscaler","value":"1","effect":"NoSchedule"}]}}`)
	_, text := p.answers("about to go", "/healthz", 10256, http.StatusServiceUnavailable)
	if !strings.Contains(text, `"nodeEligible":false`) {
		t.Error(text)
	}
	p.answers("about to go", "/livez", 10256, http.StatusOK)
	p.answers("about to go", "/readyz", 10256, http.StatusOK)
	p.patchNode(`{"spec":{"taints":null}}`)
	p.answers("stays", "/healthz", 10256, http.StatusOK)
	if got := p.metric("hairpin_api_reachable"); got != "1" {
		t.Errorf("hairpin_api_reachable is %q", got)
	}
}

func (o *operated) condition(t *testing.T) {
	p := o.on(t)
	seen := func(what string) {
		took := eventually(t, 20*time.Second, what, func() (bool, string) {
			n, err := p.api.CoreV1().Nodes().Get(t.Context(), "node-a", metav1.GetOptions{})
			if err != nil {
				return false, err.Error()
			}
			for _, c := range n.Status.Conditions {
				if c.Type == corev1.NodeNetworkUnavailable {
					return c.Status == corev1.ConditionFalse, string(c.Status)
				}
			}
			return false, "no condition"
		})
		t.Logf("%s after %d ms", what, took.Milliseconds())
	}
	seen("the condition is set")
	p.patchNode(`{"status":{"conditions":[{"type":"NetworkUnavailable","status":"True","reason":"NoRouteCreated"}]}}`,
		"status")
	seen("the condition is set again")
}

// balanced makes a Service of a load balancer, with one endpoint.
func (o *operated) balanced(t *testing.T) (port int, slice *discoveryv1.EndpointSlice) {
	t.Helper()
	ctx, node := t.Context(), "node-a"
	s, err := o.api.CoreV1().Services("default").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "lb"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer,
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
			Ports:                 []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	noError(t, err)
	slice, err = o.api.DiscoveryV1().EndpointSlices("default").Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "lb-1", Labels: map[string]string{discoveryv1.LabelServiceName: "lb"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.244.1.10"}, NodeName: &node},
			{Addresses: []string{"10.244.1.11"}, NodeName: &node}},
		Ports: []discoveryv1.EndpointPort{{Port: new(int32(8080))}},
	}, metav1.CreateOptions{})
	noError(t, err)
	return int(s.Spec.HealthCheckNodePort), slice
}

// portProblem: what a node cannot do for a Service is reported on the Service.
func (o *operated) portProblem(t *testing.T) {
	p, ctx := o.on(t), t.Context()
	port, slice := p.balanced(t)
	p.answers("two endpoints", "/", port, http.StatusOK)
	noError(t, p.api.CoreV1().Services("default").Delete(ctx, "lb", metav1.DeleteOptions{}))
	eventually(t, 20*time.Second, "the port is closed", func() (bool, string) {
		code, _, body := curl(ctx, p.client, fmt.Sprintf("http://172.18.0.3:%d/", port))
		return code == 0, body
	})
	var taken net.Listener
	noError(t, p.node.Do(func() (err error) { taken, err = net.Listen("tcp", fmt.Sprintf(":%d", port)); return err }))
	defer func() { _ = taken.Close() }()
	_, err := p.api.CoreV1().Services("default").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "lb"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer,
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal,
			HealthCheckNodePort:   int32(port), Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	noError(t, err)
	eventually(t, 20*time.Second, "the Service has an event", func() (bool, string) {
		list, err := p.api.CoreV1().Events("default").List(ctx,
			metav1.ListOptions{FieldSelector: "involvedObject.name=lb,reason=HairpinProblem"})
		return err == nil && len(list.Items) == 1 && strings.Contains(list.Items[0].Message, "cannot be listened on"),
			fmt.Sprint(err, list)
	})
	noError(t, taken.Close())
	p.answers("the port is free again", "/", port, http.StatusOK)
	noError(t, p.api.CoreV1().Services("default").Delete(ctx, "lb", metav1.DeleteOptions{}))
	noError(t, p.api.DiscoveryV1().EndpointSlices("default").Delete(ctx, slice.Name, metav1.DeleteOptions{}))
	waitWell(t, p.node)
}

func (o *operated) twoControllers(t *testing.T) {
	p, ctx := o.on(t), t.Context()
	names := []string{"controller-1", "controller-2"}
	for _, name := range names {
		noError(t, p.node.StartDaemon(ctx, name, "/usr/local/bin/hairpin", "controller", "--config-file="+settings,
			"--run-dir=/run/"+name))
	}
	probe := func(name, what string) (string, error) {
		return p.node.Exec(ctx, "hairpin", "probe", what, "--controller", "--run-dir=/run/"+name)
	}
	for _, name := range names {
		for _, what := range []string{"livez", "readyz"} {
			eventually(t, 20*time.Second, name+": "+what, func() (bool, string) {
				out, err := probe(name, what)
				return err == nil, fmt.Sprint(out, err)
			})
		}
	}
	eventually(t, 30*time.Second, "one leads", func() (bool, string) {
		leaders, all := 0, ""
		for _, name := range names {
			out, err := probe(name, "metrics")
			noError(t, err)
			leaders += strings.Count(out, "\nhairpin_controller_leader 1\n")
			all += out
		}
		return leaders == 1, all
	})
	for _, name := range names {
		noError(t, p.node.Kill(ctx, name, syscall.SIGTERM))
	}
}

// clusterStatus requests the status of all nodes, none of which has an agent's pod here.
func (o *operated) clusterStatus(t *testing.T) {
	p := o.on(t)
	out, err := p.node.Exec(t.Context(), "sh", "-ec",
		"ln -sf /usr/local/bin/hairpin /root/kubectl-hairpin; KUBECONFIG=/etc/hairpin/kubeconfig "+
			"/root/kubectl-hairpin status --timeout=5s 2>&1 || echo exit $?")
	noError(t, err)
	t.Log("\n" + out)
	for _, want := range []string{"node-a", "no answer", "no agent's pod in namespace hairpin", "controller",
		"1 node: 1 no answer", "exit 1"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q", want)
		}
	}
}

func (o *operated) apiAway(t *testing.T) {
	p, ctx := o.on(t), t.Context()
	atRest(t, p.node)
	flows := func() string {
		return sh(t, p.node,
			`ovs-ofctl --no-stats dump-flows br-ex; nft --stateless --handle list ruleset; ovsdb-client dump unix:/run/ovn/ovnnb_db.sock OVN_Northbound Load_Balancer`)
	}
	noError(t, o.server.Stop())
	took := eventually(t, 60*time.Second, "the agent says that the API is away", func() (bool, string) {
		r := mustReport(t, p.node)
		return r.API != nil && r.API.Unreachable && !r.API.Since.IsZero(), fmt.Sprintf("%+v", r.API)
	})
	t.Logf("known after %d ms: %s", took.Milliseconds(), mustReport(t, p.node).API.Error)
	for _, path := range []string{"/livez", "/readyz", "/healthz"} {
		p.answers("API away", path, 10256, http.StatusOK)
	}
	out, err := p.node.Exec(ctx, "hairpin", "status", "--config-file="+settings)
	if err == nil || !strings.Contains(out, "unreachable") {
		t.Errorf("%v\n%s", err, out)
	}
	t.Log("\n" + out)
	// An agent that starts now keeps the existing state. (The API server removed itself from its
	// Service when it was stopped.)
	atRest(t, p.node)
	before := flows()
	noError(t, p.node.Restart(ctx, agent, syscall.SIGKILL))
	p.answers("restarted", "/livez", 10256, http.StatusOK)
	p.answers("restarted", "/healthz", 10256, http.StatusOK)
	p.answers("restarted", "/readyz", 10256, http.StatusServiceUnavailable)
	if after := flows(); after != before {
		t.Errorf("it changed:\n%s", strings.Join(difference(lines(before), lines(after)), "\n"))
	}
	p.alone(t)
	o.startAPI()
	p.answers("API back", "/readyz", 10256, http.StatusOK)
	waitWell(t, p.node)
}

// alone checks that the node keeps its own network if agent and Open vSwitch start while the API
// does not answer: the path to the API may lead over the gateway bridge. OVN's gateway router has
// the node's MAC. If it sent anything, the bridge would learn that MAC at its port.
func (o *operated) alone(t *testing.T) {
	ctx := t.Context()
	noError(t, o.node.Kill(ctx, agent, syscall.SIGKILL))
	noError(t, o.node.Restart(ctx, lab.VSwitchd, syscall.SIGKILL))
	start(t, o.node)
	livez := func() bool {
		code, _, _ := curl(ctx, o.client, "http://172.18.0.3:10256/livez")
		return code == http.StatusOK
	}
	took := eventually(t, 20*time.Second, "the node is reachable", func() (bool, string) { return livez(), "" })
	t.Logf("reachable after %d ms", took.Milliseconds())
	router := strings.TrimSpace(sh(t, o.node, "ovs-vsctl list-ports br-ex | grep ^patch-"))
	for begin := time.Now(); time.Since(begin) < 6*time.Second; {
		trace := sh(t, o.node, "ovs-appctl ofproto/trace br-ex in_port="+router+",tcp,dl_src=02:42:ac:12:00:03")
		if !strings.Contains(trace, "Datapath actions: drop") {
			t.Fatalf("%v after the start, the gateway router sends:\n%s", time.Since(begin), trace)
		}
		if !livez() {
			t.Fatalf("%v after the start, the node is not reachable", time.Since(begin))
		}
	}
}
