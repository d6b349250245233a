package kube

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestReconnect: calls share a connection until Reconnect closes it; the next call opens a new one.
func TestReconnect(t *testing.T) {
	var opened atomic.Int32
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind": "NodeList", "apiVersion": "v1", "metadata": {}, "items": []}`))
	}))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			opened.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	config := `{"apiVersion": "v1", "kind": "Config", "current-context": "x", "users": [{"name": "x", "user": {}}],
"clusters": [{"name": "x", "cluster": {"server": "` + server.URL + `"}}],
"contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}]}`
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	reach := &Reach{}
	reach.Reconnect() // without a client there is nothing to close
	client, err := Connect(file, reach)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []int32{1, 1, 2} {
		if want > 1 {
			reach.Reconnect()
		}
		if _, err := client.Nodes().List(t.Context(), metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := opened.Load(); got != want {
			t.Errorf("%d connections, want %d", got, want)
		}
	}
}
