package pods_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"hairpin/config"
	"hairpin/kubeapi"
	"hairpin/lab"
	"hairpin/preflight/pods"
	"hairpin/report"
)

// cluster is an API server with nodes that have no kubelet.
type cluster struct {
	*testing.T
	client *kubeapi.Client // of a user with only the rights in docs/operations/migrate.md
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

// rights gives jane the rights in docs/operations/migrate.md.
func (c *cluster) rights() {
	c.Helper()
	jane := []rbacv1.Subject{{Kind: "User", Name: "jane"}}
	name := metav1.ObjectMeta{Name: "preflight"}
	rbac := c.admin.RbacV1()
	_, err := rbac.ClusterRoles().Create(c.Context(), &rbacv1.ClusterRole{ObjectMeta: name, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"list"}},
	}}, metav1.CreateOptions{})
	c.check(err)
	_, err = rbac.ClusterRoleBindings().Create(c.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: name, Subjects: jane,
		RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: name.Name}}, metav1.CreateOptions{})
	c.check(err)
	for _, namespace := range []string{"kube-system", "strict"} {
		if namespace == "strict" {
			_, err = c.admin.CoreV1().Namespaces().Create(c.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
				Name: namespace, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "baseline"},
			}}, metav1.CreateOptions{})
			c.check(err)
		}
		_, err = rbac.Roles(namespace).Create(c.Context(), &rbacv1.Role{ObjectMeta: name, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"create", "get", "delete"}},
			{APIGroups: []string{""}, Resources: []string{"pods/log"}, Verbs: []string{"get"}},
		}}, metav1.CreateOptions{})
		c.check(err)
		_, err = rbac.RoleBindings(namespace).Create(c.Context(), &rbacv1.RoleBinding{ObjectMeta: name, Subjects: jane,
			RoleRef: rbacv1.RoleRef{Kind: "Role", Name: name.Name}}, metav1.CreateOptions{})
		c.check(err)
		c.until("the service account of "+namespace, func() bool {
			_, err := c.admin.CoreV1().ServiceAccounts(namespace).Get(c.Context(), "default", metav1.GetOptions{})
			return err == nil
		})
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

func (c *cluster) node(name, os string, ready corev1.ConditionStatus) {
	c.Helper()
	_, err := c.admin.CoreV1().Nodes().Create(c.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelOSStable: os}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: ready, Reason: "Some" + string(ready), Message: "of a test"},
		}},
	}, metav1.CreateOptions{})
	c.check(err)
}

// kubelet sets the status of the Pods of preflight, by node, until the test ends.
func (c *cluster) kubelet(status map[string]corev1.PodStatus) {
	go func() {
		for c.Context().Err() == nil {
			for _, p := range c.pods() {
				if s, ok := status[p.Spec.NodeName]; ok && p.Status.Phase == corev1.PodPending &&
					len(p.Status.ContainerStatuses) == 0 {
					p.Status = s
					// it may be deleted or changed
					_, _ = c.admin.CoreV1().Pods(p.Namespace).UpdateStatus(c.Context(), &p, metav1.UpdateOptions{})
				}
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
}

func (c *cluster) pods() []corev1.Pod {
	list, err := c.admin.CoreV1().Pods("").List(c.Context(),
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=hairpin-preflight"})
	if err != nil && c.Context().Err() == nil {
		c.Error(err)
	}
	if err != nil {
		return nil
	}
	return list.Items
}

// gone fails if Pods remain.
func (c *cluster) gone() {
	c.Helper()
	for _, p := range c.pods() {
		c.Errorf("left: %s/%s of %s", p.Namespace, p.Name, p.Spec.NodeName)
	}
}

func (c *cluster) options() pods.Options {
	return pods.Options{Namespace: pods.DefaultNamespace, Image: "hairpin:none", Timeout: time.Minute}
}

func (c *cluster) run(ctx context.Context, o pods.Options) (string, error) {
	var out bytes.Buffer
	conf := config.DefaultConfig()
	conf.Cluster.MTU = 1300
	err := pods.RunWith(ctx, &out, c.client, conf, o)
	return out.String(), err
}

// TestPods checks that each node that cannot be checked has a line with the reason, that no Pod
// ever remains, and that the documented rights suffice.
func TestPods(t *testing.T) {
	c := start(t)
	c.node("away", "linux", corev1.ConditionUnknown)
	c.node("full", "linux", corev1.ConditionTrue)
	c.node("new", "linux", corev1.ConditionFalse) // like a node without a network
	c.node("unheard", "linux", corev1.ConditionTrue)
	c.node("windows", "windows", corev1.ConditionTrue)
	waits := func(reason, message string) corev1.PodStatus {
		return corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{{
			Name: "preflight", Image: "hairpin:none",
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}},
		}}}
	}
	c.kubelet(map[string]corev1.PodStatus{
		"full": {Phase: corev1.PodFailed, Reason: "OutOfpods",
			Message: "Node didn't have enough resource: pods\x1b[2J"},
		"new":  waits("ImagePullBackOff", "Back-off pulling image"),
		"slow": waits("ContainerCreating", ""),
	})

	o := c.options()
	o.Nodes = []string{"away", "full", "new"}
	out, err := c.run(t.Context(), o)
	t.Logf("%v\n%s", err, out)
	if !errors.Is(err, report.ErrProblems) {
		t.Errorf("%v", err)
	}
	for _, want := range []string{
		"away   stops  the node  could not be checked: its kubelet does not report: Ready is Unknown (SomeUnknown: of a test)",
		`full   stops  the node  could not be checked: its kubelet rejects the Pod: OutOfpods: Node didn't have enough resource: pods\u001b[2J`,
		"new    stops  the node  could not be checked: image hairpin:none cannot be pulled: ImagePullBackOff: " +
			"Back-off pulling image",
		"3 nodes: 0 ready for Hairpin, 0 not, 3 could not be checked",
	} {
		if !strings.Contains(strings.Join(strings.Fields(out), " "), strings.Join(strings.Fields(want), " ")) {
			t.Errorf("not there: %s", want)
		}
	}
	c.gone()

	// the API server rejects an invalid selector
	o.Output, o.Nodes, o.Selector = "json", nil, corev1.LabelHostname+",missing"
	if _, err = c.run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "no such node runs Linux") {
		t.Error(err)
	}
	o.Selector, o.Nodes = "", []string{"windows"}
	if _, err = c.run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "no such node runs Linux") {
		t.Error(err)
	}
	o.Nodes = []string{"nobody"}
	if _, err = c.run(t.Context(), o); err == nil || !strings.Contains(err.Error(), `there is no node "nobody"`) {
		t.Error(err)
	}
	o.Nodes, o.Timeout = []string{"unheard"}, 2*time.Second
	if out, err = c.run(t.Context(), o); !errors.Is(err, report.ErrProblems) ||
		!strings.Contains(out, `"error": "no result within 2s: its kubelet does not start the Pod"`) {
		t.Errorf("%v\n%s", err, out)
	}
	c.gone()

	for namespace, words := range map[string]string{
		"strict":  "violates PodSecurity \"baseline:latest\"",
		"default": `User "jane" cannot create resource "pods"`,
	} {
		o = c.options()
		o.Namespace = namespace
		_, err := c.run(t.Context(), o)
		t.Log(err)
		if err == nil || !strings.Contains(err.Error(), words) ||
			namespace == "strict" && !strings.Contains(err.Error(),
				"kubectl label namespace strict pod-security.kubernetes.io/enforce=privileged") {
			t.Errorf("namespace %s: %v", namespace, err)
		}
		c.gone()
	}
}

// TestInterrupted checks that Ctrl-C leaves no Pod, and that the Pods only read.
func TestInterrupted(t *testing.T) {
	c := start(t)
	for i := range 3 {
		c.node(fmt.Sprintf("n%d", i), "linux", corev1.ConditionTrue)
	}
	ctx, interrupt := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := c.run(ctx, c.options())
		done <- err
	}()
	c.until("a Pod on each node", func() bool { return len(c.pods()) == 3 })
	for _, p := range c.pods() {
		k := p.Spec.Containers[0]
		if !k.VolumeMounts[0].ReadOnly || !*k.SecurityContext.ReadOnlyRootFilesystem ||
			*p.Spec.AutomountServiceAccountToken || *p.Spec.ActiveDeadlineSeconds > 120 {
			t.Errorf("%+v", p.Spec)
		}
		if want := []string{"hairpin", "preflight", "--root=/host", "--output=json",
			"--mtu=1300"}; !slices.Equal(k.Command, want) {
			t.Errorf("%q, not %q", k.Command, want)
		}
	}
	interrupt()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	c.gone()
}
