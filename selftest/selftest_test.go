package selftest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"hairpin/config"
	"hairpin/kubeapi"
	"hairpin/lab"
	"hairpin/report"
	"hairpin/selftest"
	"hairpin/selftest/podside"
)

// cluster is an API server with nodes that have no kubelet.
type cluster struct {
	*testing.T
	client *kubeapi.Client // of a user with only the documented rights
	admin  kubernetes.Interface
}

func (c *cluster) check(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

func start(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{T: t}
	server, _ := lab.StartAPI(t) // skips without root
	as, err := server.RESTConfig()
	c.check(err)
	as.WarningHandlerWithContext = rest.NoWarnings{}
	c.admin, err = kubernetes.NewForConfig(as)
	c.check(err)
	as.Impersonate.UserName = "jane"
	c.client, err = kubeapi.New(as)
	c.check(err)
	c.rights()
	return c
}

// documented returns the first object in docs/operations/test.md.
func (c *cluster) documented() string {
	c.Helper()
	page, err := os.ReadFile("../docs/operations/test.md")
	c.check(err)
	_, text, _ := strings.Cut(string(page), "```yaml\n")
	text, _, found := strings.Cut(text, "```")
	if !found {
		c.Fatal("docs/operations/test.md has no object")
	}
	return text
}

// rights gives jane the rights in docs/operations/test.md.
func (c *cluster) rights() {
	c.Helper()
	var role rbacv1.ClusterRole
	c.check(yaml.UnmarshalStrict([]byte(c.documented()), &role))
	_, err := c.admin.RbacV1().ClusterRoles().Create(c.Context(), &role, metav1.CreateOptions{})
	c.check(err)
	_, err = c.admin.RbacV1().ClusterRoleBindings().Create(c.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "jane"}, Subjects: []rbacv1.Subject{{Kind: "User", Name: "jane"}},
		RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: role.Name}}, metav1.CreateOptions{})
	c.check(err)
}

func (c *cluster) node(name string, ready corev1.ConditionStatus) {
	c.Helper()
	_, err := c.admin.CoreV1().Nodes().Create(c.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelOSStable: "linux"}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}},
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}},
	}, metav1.CreateOptions{})
	c.check(err)
}

func (c *cluster) run(ctx context.Context, o selftest.Options) (string, error) {
	var out, errs bytes.Buffer
	err := selftest.RunWith(ctx, &out, &errs, c.client, config.DefaultConfig(), o)
	c.Logf("%v\n%s%s", err, &errs, &out)
	return out.String(), err
}

func options() selftest.Options {
	return selftest.Options{Namespace: selftest.DefaultNamespace, Image: "hairpin:none", HostPort: 29080,
		Timeout: time.Minute, Agents: "hairpin"}
}

func (c *cluster) pods() []corev1.Pod {
	list, err := c.admin.CoreV1().Pods(selftest.DefaultNamespace).List(c.Context(), metav1.ListOptions{})
	if err != nil {
		c.Error(err)
		return nil
	}
	return list.Items
}

// warn creates an Event about a pod, as its kubelet does.
func (c *cluster) warn(pod, message string) error {
	for {
		_, err := c.admin.CoreV1().Events(selftest.DefaultNamespace).Create(c.Context(), &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{Name: pod + ".1", Namespace: selftest.DefaultNamespace},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: selftest.DefaultNamespace, Name: pod},
			Type:           corev1.EventTypeWarning, Reason: "FailedCreatePodSandBox", Message: message,
			LastTimestamp: metav1.Now(),
		}, metav1.CreateOptions{})
		if !apierrors.IsNotFound(err) { // the namespace exists
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// gone fails if the namespace remains.
func (c *cluster) gone() {
	c.Helper()
	_, err := c.admin.CoreV1().Namespaces().Get(c.Context(), selftest.DefaultNamespace, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		c.Errorf("the namespace is left: %v", err)
	}
}

func (c *cluster) until(what string, done func() bool) {
	c.Helper()
	for end := time.Now().Add(30 * time.Second); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			c.Fatalf("not within 30 s: %s", what)
		}
	}
}

// TestObjects checks against an API server that the documented rights suffice, that every object is
// accepted, and that nothing remains: after an interrupt, after pods that do not run, and after the
// timeout.
func TestObjects(t *testing.T) {
	c := start(t)
	for i := range 4 {
		c.node(fmt.Sprint("n", i), corev1.ConditionTrue)
	}
	c.node("broken", corev1.ConditionFalse)
	t.Run("interrupted", func(t *testing.T) { c.interrupted(t) })
	t.Run("rejected", func(t *testing.T) {
		c.rejected(t, "its kubelet rejects it: OutOfpods: too many pods", func() *corev1.PodStatus {
			return &corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfpods", Message: "too many pods"}
		})
	})
	t.Run("ended", func(t *testing.T) {
		c.rejected(t, "ended with code 3: no room", func() *corev1.PodStatus {
			if !slices.ContainsFunc(c.pods(), func(p corev1.Pod) bool { return p.Name == "client-0" }) {
				return nil // the test has not seen all servers run
			}
			status := terminated(3, "no room")
			return &status
		})
	})
	t.Run("deleted", func(t *testing.T) {
		c.rejected(t, "another program deleted it: ", func() *corev1.PodStatus {
			if slices.ContainsFunc(c.pods(), func(p corev1.Pod) bool { return p.Name == "client-0" }) {
				at := int64(0)
				err := c.admin.CoreV1().Pods(selftest.DefaultNamespace).Delete(t.Context(), "server-0",
					metav1.DeleteOptions{GracePeriodSeconds: &at})
				if err != nil && !apierrors.IsNotFound(err) {
					t.Error(err)
				}
			}
			return nil
		})
	})
	t.Run("pending", func(t *testing.T) { c.pending(t) })
	t.Run("timeout", func(t *testing.T) {
		o := options()
		o.Nodes, o.Timeout = []string{"n1"}, 3*time.Second
		if _, err := c.run(t.Context(), o); err == nil || !strings.Contains(err.Error(),
			"not done within 3s (--timeout)") ||
			!strings.Contains(err.Error(), "pod server-0 on node n1 does not run: ") {
			t.Error(err)
		}
		c.gone()
	})

	for _, x := range []struct {
		change func(*selftest.Options)
		want   string
	}{
		{func(o *selftest.Options) { o.Nodes = []string{"n9"} }, `--nodes: there is no node "n9"`},
		{func(o *selftest.Options) { o.Selector = "a=b" }, "no node with Linux is Ready"},
		{func(o *selftest.Options) { o.Image = "" },
			"no agent's pod in namespace hairpin: set --agent-namespace or --image"},
		{func(o *selftest.Options) { o.Namespace = "kube-system" }, "namespace kube-system exists"},
		{func(o *selftest.Options) { o.Skip = "(" }, "--skip: "},
		{func(o *selftest.Options) { o.Outside = []string{"example.org:80"} }, "--outside: "},
	} {
		o := options()
		x.change(&o)
		if _, err := c.run(t.Context(), o); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%v, not %q", err, x.want)
		}
		c.gone()
	}
}

// interrupted checks the objects while the test waits for pods, and that Ctrl-C removes them.
func (c *cluster) interrupted(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	done := make(chan error)
	o := options()
	o.MaxNodes = 3
	go func() {
		_, err := c.run(ctx, o)
		done <- err
	}()
	c.until("three pods on each of three nodes", func() bool { return len(c.pods()) == 9 })
	nodes := map[string]int{}
	for _, p := range c.pods() {
		nodes[p.Spec.NodeName]++
		k := p.Spec.Containers[0]
		if !*k.SecurityContext.RunAsNonRoot || *p.Spec.AutomountServiceAccountToken ||
			!slices.Equal(k.Command, []string{"hairpin", "test-pod"}) || *p.Spec.ActiveDeadlineSeconds > 150 {
			t.Errorf("%+v", p.Spec)
		}
	}
	if len(nodes) != 3 || nodes["n0"] != 3 || nodes["n2"] != 3 {
		t.Errorf("pods by node: %v", nodes)
	}
	services, err := c.admin.CoreV1().Services(o.Namespace).List(t.Context(), metav1.ListOptions{})
	c.check(err)
	if len(services.Items) != 15 {
		t.Errorf("%d Services", len(services.Items))
	}
	for _, s := range services.Items {
		if len(s.Spec.ClusterIPs) != 2 {
			t.Errorf("Service %s has %v", s.Name, s.Spec.ClusterIPs)
		}
	}
	interrupt()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	c.gone()
}

// terminated returns the status of a pod with a container that has ended.
func terminated(code int32, message string) corev1.PodStatus {
	return corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{{Name: "test",
		State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Message: message}}}}}
}

// rejected checks that a pod that does not run, or not until the end, is a failure with its reason,
// and that other paths are tested: one to a NodePort, from this machine. server returns the status
// of the pod server-0 as its kubelet reports it; nil: it runs.
func (c *cluster) rejected(t *testing.T, want string, server func() *corev1.PodStatus) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() { // as kubelets do
		for ctx.Err() == nil {
			status := server()
			for _, p := range c.pods() {
				over := p.Name == "server-0" && status != nil
				if p.Status.Phase != corev1.PodPending && (!over || p.Status.Phase == corev1.PodFailed) {
					continue
				}
				p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "192.0.2.1"}}}
				switch {
				case over:
					p.Status = *status
				case strings.Contains(p.Name, "client"):
					p.Status = terminated(2, "address in use")
				}
				// it may be deleted
				_, _ = c.admin.CoreV1().Pods(p.Namespace).UpdateStatus(ctx, &p, metav1.UpdateOptions{})
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	go c.serveNodePort(ctx, "nodeport-1", "server-1")
	o := options()
	o.Nodes, o.FromHere = []string{"n1", "n2"}, true
	out, err := c.run(ctx, o)
	if !errors.Is(err, report.ErrProblems) {
		t.Error(err)
	}
	for _, want := range []string{
		"FAIL  pods that run: 5 of 10 checks\n",
		"pod server-0 on node n1: " + want,
		"pod client-1 on node n2: ended with code 2: address in use",
		"ok    outside → NodePort: 4 checks\n",
		"14 checks: 9 passed, 5 failed, in ",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q", want)
		}
	}
	if strings.Contains(out, "explain") {
		t.Error("a pod has a path to explain")
	}
	c.gone()
}

// serveNodePort runs a server of the test at the NodePort of a Service, in place of a node's
// network.
func (c *cluster) serveNodePort(ctx context.Context, service, server string) {
	for ctx.Err() == nil {
		s, err := c.admin.CoreV1().Services(selftest.DefaultNamespace).Get(ctx, service, metav1.GetOptions{})
		if err != nil {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		work := podside.Work{Name: server, Serve: []uint16{uint16(s.Spec.Ports[0].NodePort)}}
		if s.Spec.Ports[1].NodePort != s.Spec.Ports[0].NodePort {
			work.Serve = append(work.Serve, uint16(s.Spec.Ports[1].NodePort)) // of UDP
		}
		if err := work.Run(ctx, io.Discard); err != nil && ctx.Err() == nil {
			c.Error(err)
		}
		return
	}
}

// pending checks that pods without a kubelet are failures with their newest warning, after the time
// that a pod has to start.
func (c *cluster) pending(t *testing.T) {
	warned := make(chan error, 1)
	go func() { warned <- c.warn("server-0", "plugin type=\"hairpin\" failed (add): no\x1b[2J") }()
	o := options()
	o.Nodes = []string{"n1"}
	begin := time.Now()
	out, err := c.run(t.Context(), o)
	c.check(<-warned)
	if !errors.Is(err, report.ErrProblems) || !strings.Contains(out, "FAIL  pods that run: 5 of 5 checks\n") ||
		!strings.Contains(out, "pod server-0 on node n1: its phase is Pending: "+
			`plugin type="hairpin" failed (add): no\u001b[2J`) {
		t.Error(err)
	}
	if took := time.Since(begin); took > 30*time.Second {
		t.Errorf("it took %s", took)
	}
	c.gone()
}
