package ui_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"hairpin/config"
	"hairpin/kubeapi"
	"hairpin/lab"
	"hairpin/lab/chart"
	"hairpin/ui"
)

// secureUI has pages for authorized users, with a real API server and the rights that the chart
// gives.
type secureUI struct {
	t     *testing.T
	base  string
	admin *chart.Admin
}

func startSecure(t *testing.T) (*secureUI, kubernetes.Interface) {
	t.Helper()
	api, _ := lab.StartAPI(t) // skips without root
	conf, err := api.RESTConfig()
	noError(t, err)
	x := &secureUI{t: t}
	x.admin, err = chart.NewAdmin(conf)
	noError(t, err)
	noError(t, x.admin.InstallAccess(t.Context(), "ui.enabled=true"))
	_, err = x.admin.Client.CoreV1().Nodes().Create(t.Context(),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a"}}, metav1.CreateOptions{})
	noError(t, err)
	own, err := x.admin.As(t.Context(), "hairpin-ui", "")
	noError(t, err)
	client, err := kubeapi.New(own)
	noError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		err := ui.ServeWith(ctx, w, ui.Options{Listen: "127.0.0.1:0", Secure: true}, config.DefaultConfig(), client)
		w.CloseWithError(err)
		done <- err
	}()
	t.Cleanup(func() {
		cancel()
		noError(t, <-done)
	})
	line, err := bufio.NewReader(r).ReadString('\n')
	noError(t, err)
	if x.base = regexp.MustCompile(`https://127\.0\.0\.1:\d+`).FindString(line); x.base == "" {
		t.Fatalf("no address: %s", line)
	}
	typed, err := kubernetes.NewForConfig(own)
	noError(t, err)
	return x, typed
}

// token returns the token of a new service account. It may read the pages if allowed is set.
func (x *secureUI) token(name string, allowed bool) string {
	x.t.Helper()
	ctx, c := x.t.Context(), x.admin.Client
	_, err := c.CoreV1().ServiceAccounts(chart.Namespace).Create(ctx,
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	noError(x.t, err)
	if allowed {
		_, err = c.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "hairpin-ui-viewer"},
			Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: chart.Namespace, Name: name}},
		}, metav1.CreateOptions{})
		noError(x.t, err)
	}
	made, err := c.CoreV1().ServiceAccounts(chart.Namespace).CreateToken(ctx, name,
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	noError(x.t, err)
	return made.Status.Token
}

// ask sends a request, which set prepares.
func (x *secureUI) ask(method, path string, set func(*http.Request)) (int, string, http.Header) {
	x.t.Helper()
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} // self-signed
	q, err := http.NewRequestWithContext(x.t.Context(), method, x.base+path, nil)
	noError(x.t, err)
	set(q)
	a, err := client.Do(q)
	noError(x.t, err)
	defer a.Body.Close()
	body, err := io.ReadAll(a.Body)
	noError(x.t, err)
	return a.StatusCode, string(body), a.Header
}

// TestUISecure checks who may read the pages in a cluster, and that nothing can be changed.
func TestUISecure(t *testing.T) {
	x, own := startSecure(t)
	viewer, other := x.token("viewer", true), x.token("other", false)
	bearer := func(token string) func(*http.Request) {
		return func(q *http.Request) { q.Header.Set("Authorization", "Bearer "+token) }
	}
	basic := func(token string) func(*http.Request) {
		return func(q *http.Request) { q.SetBasicAuth("jane", token) }
	}
	nothing := func(*http.Request) {}
	for _, c := range []struct {
		name, path string
		as         func(*http.Request)
		want       int
		text       string
	}{
		{"a probe", "/livez", nothing, 200, "ok"},
		{"no token", "/", nothing, 401, "token"},
		{"no token, another page", "/walk.json?from=host/node-a", nothing, 401, "token"},
		{"no token, no page", "/nothing", nothing, 401, "token"},
		{"no such token", "/", bearer("a.b.c"), 401, "not valid"},
		{"no such password", "/", basic("a.b.c"), 401, "not valid"},
		{"an empty password", "/", basic(""), 401, "needed"},
		{"no permission", "/", bearer(other), 403, "may not get /hairpin/ui"},
		{"no permission, by password", "/services", basic(other), 403, "may not get /hairpin/ui"},
		{"permission", "/", bearer(viewer), 200, "1 node in the API"},
		{"permission, by password", "/", basic(viewer), 200, `href="/node/node-a"`},
		{"permission, a list", "/services", basic(viewer), 200, "<h1>Services</h1>"},
		{"permission, no agent is asked", "/walk", basic(viewer), 200, "choose a source"},
	} {
		status, body, header := x.ask("GET", c.path, c.as)
		if status != c.want || !strings.Contains(body, c.text) {
			t.Errorf("%s: %d, not %d with %q: %s", c.name, status, c.want, c.text, body)
		}
		if asks := strings.Join(header.Values("WWW-Authenticate"), ", "); (status == 401) !=
			(strings.Contains(asks, "Basic realm=") && strings.Contains(asks, "Bearer")) {
			t.Errorf("%s: WWW-Authenticate is %q", c.name, asks)
		}
		if c.want != 200 && strings.Contains(body, "node-a") {
			t.Errorf("%s: the answer names a node: %s", c.name, body)
		}
	}
	if _, body, _ := x.ask("GET", "/walk", basic(viewer)); strings.Contains(body, "what is really there") {
		t.Error("the page offers to ask agents")
	}
	for _, method := range []string{"POST", "PUT", "DELETE", "PATCH"} {
		if status, _, _ := x.ask(method, "/", basic(viewer)); status != http.StatusMethodNotAllowed {
			t.Errorf("%s: %d", method, status)
		}
	}
	elsewhere := func(q *http.Request) { basic(viewer)(q); q.Header.Set("Sec-Fetch-Site", "cross-site") }
	if status, _, _ := x.ask("GET", "/", elsewhere); status != http.StatusForbidden {
		t.Errorf("a page of another site gets %d", status)
	}
	changesNothing(t, own)
}

// changesNothing checks that the account of the pages may neither change objects, nor read secrets,
// nor run commands in pods.
func changesNothing(t *testing.T, own kubernetes.Interface) {
	t.Helper()
	ctx := t.Context()
	_, created := own.CoreV1().Namespaces().Create(ctx,
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{})
	_, read := own.CoreV1().Secrets("").List(ctx, metav1.ListOptions{})
	executed := own.CoreV1().RESTClient().Post().Resource("pods").Namespace(chart.Namespace).Name("x").
		SubResource("exec").Do(ctx).Error()
	for what, err := range map[string]error{
		"create a namespace": created, "list Secrets": read, "run a command": executed,
		"delete a Node": own.CoreV1().Nodes().Delete(ctx, "node-a", metav1.DeleteOptions{}),
		"delete pods":   own.CoreV1().Pods(chart.Namespace).Delete(ctx, "x", metav1.DeleteOptions{}),
		"delete its account": own.CoreV1().ServiceAccounts(chart.Namespace).Delete(ctx, "hairpin-ui",
			metav1.DeleteOptions{}),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
