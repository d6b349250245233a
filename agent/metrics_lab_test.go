package agent_test

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/lab"
	"hairpin/ops"
)

// metricsFromPod: a pod and another machine get the metrics of a node only with a token that may
// read them. These then include all figures of the node's Open vSwitch and OVN.
func (o *operated) metricsFromPod(t *testing.T) {
	ctx := t.Context()
	pod := o.runPod(t, "attacker")
	get := func(from lab.Place, url, token string) (code int, body string) {
		t.Helper()
		noError(t, lab.Do(from, func() error {
			address := strings.SplitN(strings.TrimPrefix(strings.TrimPrefix(url, "https://"), "http://"), "/", 2)[0]
			conn, err := net.DialTimeout("tcp", address, 10*time.Second)
			if err != nil {
				body = err.Error()
				return nil
			}
			defer func() { _ = conn.Close() }()
			if strings.HasPrefix(url, "https:") {
				conn = tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
			}
			q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			if err != nil {
				return err
			}
			if token != "" {
				q.Header.Set("Authorization", "Bearer "+token)
			}
			q.Close = true
			_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
			if err := q.Write(conn); err != nil {
				body = err.Error()
				return nil
			}
			answer, err := http.ReadResponse(bufio.NewReader(conn), q)
			if err != nil {
				body = err.Error()
				return nil
			}
			defer func() { _ = answer.Body.Close() }()
			text, err := io.ReadAll(answer.Body)
			code, body = answer.StatusCode, string(text)
			if err != nil {
				body = err.Error()
			}
			return nil
		}))
		return code, body
	}
	token := func(account string) string {
		request, err := o.api.CoreV1().ServiceAccounts("default").CreateToken(ctx, account,
			&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		noError(t, err)
		return request.Status.Token
	}
	_, err := o.api.RbacV1().ClusterRoles().Create(ctx,
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "metrics"},
			Rules: []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}}},
		metav1.CreateOptions{})
	noError(t, err)
	places := map[string]lab.Place{"pod": pod, "client": o.client}
	for name, from := range places {
		for _, url := range []string{"https://172.18.0.3:10251/metrics", "https://[fc00:f853:ccd::3]:10251/metrics"} {
			if code, body := get(from, url, ""); code != http.StatusUnauthorized {
				t.Errorf("%s: %s without a token: %d %s", name, url, code, body)
			}
			if code, body := get(from, url, token("default")); code != http.StatusForbidden {
				t.Errorf("%s: %s without the right: %d %s", name, url, code, body)
			}
		}
		for _, url := range []string{"http://172.18.0.3:10249/metrics", "http://[fc00:f853:ccd::3]:10249/metrics",
			"http://127.0.0.1:10249/metrics", "http://172.18.0.3:10251/metrics", "http://172.18.0.3:10256/metrics"} {
			if code, body := get(from, url, ""); code == http.StatusOK || strings.Contains(body, "hairpin_") {
				t.Errorf("%s: %s answers: %d %s", name, url, code, body)
			}
		}
	}
	_, err = o.api.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "metrics"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "metrics"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Name: "default", Namespace: "default"}},
	}, metav1.CreateOptions{})
	noError(t, err)
	body := ""
	eventually(t, 30*time.Second, "the pod with the right gets metrics", func() (bool, string) {
		code, text := get(pod, "https://172.18.0.3:10251/metrics", token("default"))
		body = text
		return code == http.StatusOK, text
	})
	// Not on every node: what only policies, eBPF programs, limits or requests have.
	absent := []string{"hairpin_policy_", "hairpin_redirect_", "hairpin_cni_errors", "kubeproxy_",
		"hairpin_openvswitch_entries", "hairpin_egress_move", "hairpin_egress_claims"}
	for _, m := range ops.Metrics() {
		optional := m.Of == ops.OfController
		for _, prefix := range absent {
			optional = optional || strings.HasPrefix(m.Name, prefix)
		}
		if !optional && !strings.Contains(body, "\n"+m.Name) {
			t.Errorf("there is no %s", m.Name)
		}
	}
	if t.Failed() {
		t.Log(body)
	}
}
