//go:build e2e

package e2e

import (
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// jane is a user of the pages. The test grants the permission later.
const jane = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: e2e-jane, namespace: default}
`

const janeMay = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: e2e-jane}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: hairpin-ui-viewer}
subjects: [{kind: ServiceAccount, name: e2e-jane, namespace: default}]
`

// TestUI installs the pages in the cluster, and requests them by their Service from each node.
func TestUI(t *testing.T) {
	e := open(t)
	t.Cleanup(func() { e.check(e.InstallHairpin(context.Background())) })
	e.check(e.InstallHairpin(t.Context(), "ui.enabled=true"))
	e.kubectl("rollout", "status", "deployment/hairpin-ui", "--namespace", namespace, "--timeout", "2m")
	service, err := e.Client().CoreV1().Services(namespace).Get(t.Context(), "hairpin-ui", metav1.GetOptions{})
	e.check(err)
	e.apply(jane)
	token := strings.TrimSpace(e.kubectl("create", "token", "e2e-jane"))
	get := func(node, token string) (int, string) {
		status, text, err := e.page(node, "https://"+service.Spec.ClusterIP+"/", token)
		e.check(err)
		return status, text
	}
	for token, want := range map[string]int{"": http.StatusUnauthorized, "x": http.StatusUnauthorized,
		token: http.StatusForbidden} {
		if got, text := get("node-a", token); got != want {
			t.Errorf("with token %.8q: status %d, not %d: %s", token, got, want, text)
		}
	}
	e.apply(janeMay)
	// The API server may cache its denial.
	e.until("the permission", time.Minute, func() (bool, error) {
		status, _, err := e.page("node-a", "https://"+service.Spec.ClusterIP+"/", token)
		return status == http.StatusOK, err
	})
	for _, n := range e.Lab().Nodes() {
		if status, text := get(n.Name(), token); status != http.StatusOK || !strings.Contains(text, "node-c") {
			t.Errorf("%s: status %d: %s", n.Name(), status, text)
		}
	}
}

// page requests a page from a node, by a connection of its own.
func (e *e2e) page(node, url, token string) (status int, text string, err error) {
	client := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // self-signed
		DialContext:     e.Lab().Node(node).DialContext}}
	req, err := http.NewRequestWithContext(e.Context(), http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(body), err
}
