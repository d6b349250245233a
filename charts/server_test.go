package charts_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"hairpin/cluster/annotation"
	"hairpin/lab"
	"hairpin/lab/chart"
)

// server is a real API server.
type server struct {
	host   *lab.Host
	file   string // the administrator's kubeconfig
	config *rest.Config
	admin  *chart.Admin
	client kubernetes.Interface
	warned *warnings
}

// warnings collects the server's warnings, such as that a field is deprecated.
type warnings struct {
	mu   sync.Mutex
	said []string
}

func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.said = append(w.said, text)
}

func startServer(t *testing.T) *server {
	t.Helper()
	api, host := lab.StartAPI(t) // skips without root
	s := &server{host: host, file: api.Kubeconfig(), warned: &warnings{}}
	var err error
	s.config, err = api.RESTConfig()
	must(t, err)
	s.config.WarningHandler = s.warned
	s.admin, err = chart.NewAdmin(s.config)
	must(t, err)
	s.client = s.admin.Client
	return s
}

func clientOf(t *testing.T, c *rest.Config) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(c)
	must(t, err)
	return client
}

func TestOnServer(t *testing.T) {
	s := startServer(t)
	t.Run("accepted", func(t *testing.T) { testAccepted(t, s) })
	t.Run("finds the API server", func(t *testing.T) { testLookup(t, s) })
	t.Run("installed", func(t *testing.T) { testRights(t, s) })
}

// testAccepted checks that the server accepts every object that the chart can make, without a
// warning.
func testAccepted(t *testing.T, s *server) {
	_, err := s.client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: chart.Namespace}}, metav1.CreateOptions{})
	must(t, err)
	for _, values := range [][]string{
		nil,
		{"cleanup=true"},
		{"ui.enabled=true", "ui.tls.secretName=a", "ui.podLabels.a=b", "ui.tolerations[0].operator=Exists"},
		{"egressHealthTLS.secretName=a"},
		{"datapath=userspace", "cni.hostPorts=false", "controller.replicas=3", "image.pullSecrets[0].name=registry"},
		{"image.digest=sha256:" + strings.Repeat("0", 64), "node.podAnnotations.a=b", "controller.podAnnotations.a=b"},
		{"config.default.healthz-bind-address=127.0.0.1:1234", "config.default.mtu=9000"},
		{"config.default.healthz-bind-address=", "apiServer.host=fd00::10", "namespace.create=true"},
		{"node.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].key=a",
			"node.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0].matchExpressions[0].operator=Exists"},
	} {
		for _, o := range render(t, values...) {
			if err := s.admin.Create(t.Context(), o, true); err != nil &&
				!(o.GetKind() == "Namespace" && apierrors.IsAlreadyExists(err)) {
				t.Errorf("%v: %s %s: %v", values, o.GetKind(), o.GetName(), err)
			}
		}
	}
	if len(s.warned.said) > 0 {
		t.Errorf("the server warns: %q", s.warned.said)
	}
}

// testLookup checks that in a cluster of kubeadm, the address of the API server need not be set.
func testLookup(t *testing.T, s *server) {
	path, err := chart.Helm()
	must(t, err)
	install := func() string {
		home := t.TempDir()
		cmd := s.host.Command(t.Context(), "env", "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+
			home,
			path, "install", "hairpin", "hairpin", "--namespace", chart.Namespace, "--kubeconfig", s.file,
			"--dry-run=server",
			"--set", chart.Images[0], "--set", chart.Images[1])
		out, _ := cmd.CombinedOutput()
		return string(out)
	}
	if out := install(); !strings.Contains(out, "apiServer.host is needed") {
		t.Errorf("without cluster-info: %s", out)
	}
	_, err = s.client.CoreV1().ConfigMaps("kube-public").Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "cluster-info"},
		Data: map[string]string{"kubeconfig": "apiVersion: v1\nkind: Config\nclusters:\n- name: \"\"\n  " +
			"cluster: {server: \"https://[fd00::10]:6443\"}\n"},
	}, metav1.CreateOptions{})
	must(t, err)
	out := install()
	for _, want := range []string{`{name: KUBERNETES_SERVICE_HOST, value: "fd00::10"}`,
		`{name: KUBERNETES_SERVICE_PORT, value: "6443"}`} {
		if !strings.Contains(out, want) {
			t.Errorf("no %s in\n%s", want, out)
		}
	}
}

// testRights installs the access rights, and uses them like the agent and the controller.
func testRights(t *testing.T, s *server) {
	must(t, s.admin.InstallAccess(t.Context()))
	for _, name := range []string{"node-a", "node-b"} {
		_, err := s.client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{})
		must(t, err)
	}
	t.Run("policies", func(t *testing.T) { testPolicies(t, s) })
	t.Run("agent", func(t *testing.T) { testAgent(t, s) })
	t.Run("controller", func(t *testing.T) { testController(t, s) })
}

// testPolicies checks that the server finds no error in the policies' expressions.
func testPolicies(t *testing.T, s *server) {
	for _, name := range []string{"hairpin-node", "hairpin-controller", "hairpin-node-ids"} {
		eventually(t, func() error {
			p, err := s.client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(t.Context(), name,
				metav1.GetOptions{})
			switch {
			case err != nil:
				return err
			case p.Status.TypeChecking == nil || p.Status.ObservedGeneration != p.Generation:
				return fmt.Errorf("policy %s is not checked yet", name)
			case len(p.Status.TypeChecking.ExpressionWarnings) > 0:
				t.Fatalf("policy %s: %+v", name, p.Status.TypeChecking.ExpressionWarnings)
			}
			return nil
		})
	}
}

// as returns the credentials of a pod of a service account on a node.
func (s *server) as(t *testing.T, account, node string) *rest.Config {
	t.Helper()
	c, err := s.admin.As(t.Context(), account, node)
	must(t, err)
	return c
}

// testAgent checks that an agent may annotate its own Node and report that its network is
// available. It may not change another Node, nor anything else of its own.
func testAgent(t *testing.T, s *server) {
	client := clientOf(t, s.as(t, "hairpin-node", "node-a"))
	patch := func(node, body string, parts ...string) error {
		_, err := client.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, []byte(body),
			metav1.PatchOptions{}, parts...)
		return err
	}
	const annotate = `{"metadata":{"annotations":{"k8s.ovn.org/x":"y"}}}`
	eventually(t, func() error { // the server enforces a new policy after a moment
		if err := patch("node-b", annotate); !refused(err, "no Node but its own") {
			return fmt.Errorf("of another Node: %v", err)
		}
		return nil
	})
	must(t, patch("node-a", annotate))
	must(t, patch("node-a", `{"status":{"conditions":[{"type":"NetworkUnavailable","status":"False"}]}}`, "status"))
	for _, c := range []struct{ node, body, part string }{
		{"node-a", `{"metadata":{"labels":{"x":"y"}}}`, ""},
		{"node-a", `{"spec":{"unschedulable":true}}`, ""},
		{"node-b", `{"status":{"conditions":[{"type":"NetworkUnavailable","status":"False"}]}}`, "status"},
	} {
		var parts []string
		if c.part != "" {
			parts = append(parts, c.part)
		}
		if err := patch(c.node, c.body, parts...); !refused(err, "Hairpin") {
			t.Errorf("%s %s: %v", c.node, c.body, err)
		}
	}
	testNodeIDs(t, s, patch)
	wantRights(t, client, []string{
		"events: create patch", "endpointslices: get list watch", "nodes/status: patch", "nodes: get list patch watch",
		"pods: get list watch", "servicecidrs: get list watch", "services: get list watch",
		"namespaces: get list watch", "egressips: get list watch", "egressservices: get list watch",
		"networkpolicies: get list watch", "clusternetworkpolicies: get list watch",
		"tokenreviews: create", "subjectaccessreviews: create",
		"loadbalancerpools: get list watch", "bgpadvertisements: get list watch",
	})
}

// testNodeIDs checks that only the controller can set node IDs: an agent or a kubelet cannot, by
// any path. Everything else that a kubelet writes is accepted.
func testNodeIDs(t *testing.T, s *server, agent func(node, body string, parts ...string) error) {
	const number, label = `{"metadata":{"annotations":{"k8s.ovn.org/node-id":"1"}}}`,
		`{"metadata":{"labels":{"k8s.ovn.org/egress-assignable":""}}}`
	const only, mayNot = "only the controller of Hairpin gives Nodes their number",
		"a kubelet may not let its Node carry egress addresses"
	eventually(t, func() error {
		if err := agent("node-a", number); !refused(err, only) {
			return fmt.Errorf("an agent numbers its own Node: %v", err)
		}
		return nil
	})
	c := rest.CopyConfig(s.config)
	// RBAC is not tested here
	c.Impersonate = rest.ImpersonationConfig{UserName: "system:node:node-a",
		Groups: []string{"system:nodes", "system:masters"}}
	kubelet := clientOf(t, c)
	patch := func(body string, parts ...string) error {
		_, err := kubelet.CoreV1().Nodes().Patch(t.Context(), "node-a", types.MergePatchType, []byte(body),
			metav1.PatchOptions{}, parts...)
		return err
	}
	for _, x := range []struct {
		err  error
		want string
	}{
		{patch(number), only}, {patch(number, "status"), only}, {agent("node-a", number, "status"), only},
		{patch(label), mayNot}, {patch(label, "status"), mayNot},
	} {
		if !refused(x.err, x.want) {
			t.Errorf("want %q, got %v", x.want, x.err)
		}
	}
	_, err := s.client.CoreV1().Nodes().Create(t.Context(),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-x",
			Annotations: map[string]string{"k8s.ovn.org/node-id": "1"}}}, metav1.CreateOptions{})
	if !refused(err, only) {
		t.Errorf("a new Node brings its number: %v", err)
	}
	must(t,
		patch(`{"metadata":{"labels":{"example.com/x":"y"}},"status":{"conditions":[{"type":"Ready","status":"True"}]}}`, "status"))
	must(t, patch(`{"metadata":{"annotations":{"k8s.ovn.org/node-id":null}}}`))
}

// testController runs the program with the rights of the chart: it acquires the Lease and assigns
// node IDs.
func testController(t *testing.T, s *server) {
	config := s.as(t, "hairpin-controller", "node-a")
	client := clientOf(t, config)
	wantRights(t, client, []string{
		"events: create patch", "endpointslices: get list watch", "nodes: get list patch watch",
		"servicecidrs: get list watch", "services: get list watch",
		"pods: get list watch", "namespaces: get list watch", "egressips: get list watch", "egressips: patch",
		"egressips/status: patch", "egressservices: get list watch", "egressservices/status: patch",
		"networkpolicies: get list watch", "clusternetworkpolicies: get list watch",
		"tokenreviews: create", "subjectaccessreviews: create",
		"loadbalancerpools: get list watch", "loadbalancerpools/status: patch", "services/status: patch",
		"bgpadvertisements: get list watch", "bgpadvertisements/status: patch",
		"frrconfigurations: create delete get list patch watch",
	})
	testControllerLabels(t, s, client)
	dir := t.TempDir()
	file := filepath.Join(dir, "kubeconfig")
	must(t, clientcmd.WriteToFile(chart.Kubeconfig(config), file))
	program := filepath.Join(dir, "hairpin")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "hairpin/cmd/hairpin")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	large := &networkingv1.IPBlock{CIDR: "::/0"} // valid, and without its exceptions more than 4096 prefixes
	for i := range 40 {
		large.Except = append(large.Except, fmt.Sprintf("%x::1/128", 0x2001+0x101*i))
	}
	policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "large", Namespace: "default"}}
	policy.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{
		{From: []networkingv1.NetworkPolicyPeer{{IPBlock: large}}}}
	_, err := s.client.NetworkingV1().NetworkPolicies("default").Create(t.Context(), policy, metav1.CreateOptions{})
	must(t, err)
	var log strings.Builder
	ctx, cancel := context.WithCancel(t.Context())
	cmd := s.host.Command(ctx, program, "controller", "--kubeconfig", file, "--run-dir", dir)
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	must(t, cmd.Start())
	defer func() {
		cancel()
		_ = cmd.Wait()
		if t.Failed() || strings.Contains(log.String(), "forbidden") {
			t.Errorf("log of the controller:\n%s", log.String())
		}
	}()
	eventually(t, func() error {
		list, err := s.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
		must(t, err)
		for _, n := range list.Items {
			if n.Annotations[annotation.NodeID] == "" {
				return fmt.Errorf("%s has no number", n.Name)
			}
		}
		return nil
	})
	eventually(t, func() error { return toldOf(t, s, "NetworkPolicy", "large", "more than 4096 prefixes") })
}

// testControllerLabels checks that the controller labels hosts of EgressServices. It can change no
// other label and nothing of the spec.
func testControllerLabels(t *testing.T, s *server, client kubernetes.Interface) {
	patch := func(client kubernetes.Interface, body string) error {
		_, err := client.CoreV1().Nodes().Patch(t.Context(), "node-b", types.MergePatchType, []byte(body),
			metav1.PatchOptions{})
		return err
	}
	const host = "egress-service.k8s.ovn.org/default-web"
	label := func(name, value string) string { return fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, name, value) }
	must(t, patch(s.client, label("zone", `"one"`)))
	eventually(t, func() error {
		if err := patch(client, label("zone", `"two"`)); !refused(err, "nothing else") {
			return fmt.Errorf("the controller changes another label: %v", err)
		}
		return nil
	})
	must(t, patch(client, label(host, `""`)))
	must(t, patch(client, label(host, `"x"`)))
	for _, body := range []string{label("zone", "null"), label("new", `""`),
		label("egress-service.k8s.ovn.org", `""`)} {
		if err := patch(client, body); !refused(err, "nothing else") {
			t.Errorf("%s: %v", body, err)
		}
	}
	if err := patch(client, `{"spec":{"unschedulable":true}}`); !refused(err, "may not change a Node's spec") {
		t.Errorf("the spec: %v", err)
	}
	must(t, patch(client, label(host, "null")))
	agent := clientOf(t, s.as(t, "hairpin-node", "node-b"))
	if err := patch(agent, label(host, `""`)); !refused(err, "nothing else") {
		t.Errorf("an agent labels a host of an EgressService: %v", err)
	}
}

// toldOf returns an error unless an object has the warning.
func toldOf(t *testing.T, s *server, kind, name, want string) error {
	list, err := s.client.CoreV1().Events("default").List(t.Context(),
		metav1.ListOptions{FieldSelector: "involvedObject.kind=" + kind + ",involvedObject.name=" + name})
	must(t, err)
	for _, e := range list.Items {
		if e.Type == corev1.EventTypeWarning && e.InvolvedObject.UID != "" && strings.Contains(e.Message, want) {
			return nil
		}
	}
	return fmt.Errorf("%s %s has %d events, none says %q", kind, name, len(list.Items), want)
}

// wantRights compares all rights of an account, except those of every account.
func wantRights(t *testing.T, client kubernetes.Interface, want []string) {
	t.Helper()
	review, err := client.AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(),
		&authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "default"}},
		metav1.CreateOptions{})
	must(t, err)
	var got []string
	for _, r := range review.Status.ResourceRules {
		for _, resource := range r.Resources {
			if !strings.HasPrefix(resource, "self") && resource != "clustertrustbundles" { // rights of every account
				verbs := slices.Clone(r.Verbs)
				slices.Sort(verbs)
				got = append(got, resource+": "+strings.Join(verbs, " "))
			}
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("rights are\n%s\nnot\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func refused(err error, why string) bool {
	return (apierrors.IsForbidden(err) || apierrors.IsInvalid(err)) && strings.Contains(err.Error(), why)
}

func eventually(t *testing.T, done func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if err = done(); err == nil {
			return
		}
	}
	t.Fatal(err)
}
