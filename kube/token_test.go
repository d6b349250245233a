package kube

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"hairpin/kubeapi"
	"hairpin/lab"
)

// TestRejectedToken: after a real API server has rejected a token, the next call has the token that
// the file has by then.
func TestRejectedToken(t *testing.T) {
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	l := lab.Start(t, lab.Config{}) // skips where there is no root
	host, err := l.StartHost(t.Context(), lab.HostConfig{Name: "api"})
	check(err)
	binary, err := lab.BuildKube(t.Context(), "/var/cache/hairpin", func(line string) { t.Log(line) })
	check(err)
	server, err := lab.StartAPIServer(t.Context(), lab.APIServerConfig{Binary: binary, Dir: t.TempDir(),
		Address: host.Addresses()[0].Addr(), Netns: host.Netns(), DieWithCaller: true})
	check(err)
	defer func() { check(server.Stop()) }()
	config, err := server.RESTConfig()
	check(err)
	admin, err := kubernetes.NewForConfig(config)
	check(err)
	answer, err := admin.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "default",
		&authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	check(err)

	file := filepath.Join(t.TempDir(), "token")
	check(os.WriteFile(file, []byte("rejected"), 0o600))
	config.BearerToken, config.BearerTokenFile = "", file
	config.CertData, config.KeyData, config.CertFile, config.KeyFile = nil, nil, "", ""
	rereadToken(config)
	reach := &Reach{}
	config.Wrap(reach.wrap)
	client, err := kubeapi.New(config)
	check(err)
	for range 2 { // client-go keeps a token that it read for the call that was rejected
		if _, err := client.Nodes().List(t.Context(), metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
			t.Fatalf("the token in the file is none, and the API server replies %v", err)
		}
	}
	if r := reach.Report(); !r.Unreachable || r.Error != "401 Unauthorized" {
		t.Errorf("after a rejected token, the report is %+v", r)
	}
	check(os.WriteFile(file, []byte(answer.Status.Token), 0o600))
	begin := time.Now()
	// The service account may not list Nodes.
	if _, err := client.Nodes().List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("with a valid token in the file, the API server replies %v after %s", err, time.Since(begin))
	}
	if r := reach.Report(); r.Unreachable {
		t.Errorf("after a call with a valid token, the report is %+v", r)
	}
	if err := reach.Failing(); err == nil || err.Error() != "api/v1/nodes: 403 Forbidden" {
		t.Errorf("the call that fails is %v", err)
	}
}
