//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// restoredService is a Service of the web pods.
func restoredService(name, port string) string {
	return fmt.Sprintf(`{apiVersion: v1, kind: Service, metadata: {name: %s},
  spec: {ipFamilyPolicy: RequireDualStack, selector: {app: web}, ports: [{port: %s, targetPort: 8080}]}}
`, name, port)
}

// TestDatabaseRestored restores etcd's data from a backup, as after a failure of the control
// plane's disk. The API server then serves older objects, and its resource versions go back, which
// clients may have seen as the past. Nodes must serve what the API server has, without a restart of
// agents.
func TestDatabaseRestored(t *testing.T) {
	e := open(t)
	e.apply(restoredService("restored-changed", "80"))
	e.apply(restoredService("restored-deleted", "80"))
	e.apply(restoredService("restored-created", "80")) // for the end of the test
	e.kubectl("delete", "service", "restored-created")
	changed, deleted := e.service("restored-changed"), e.service("restored-deleted")
	client := e.place(e.clientPod("node-b").Name)
	answers := func(ips []netip.Addr, port uint16) bool {
		for _, ip := range ips {
			if e.ask(client, "tcp", netip.AddrPortFrom(ip, port)) != nil {
				return false
			}
		}
		return true
	}
	served := func(ips []netip.Addr, port uint16, want bool) func() (bool, error) {
		return func() (bool, error) { return answers(ips, port) == want, nil }
	}
	e.until("the Services are served", 10*time.Second, func() (bool, error) {
		return answers(changed, 80) && answers(deleted, 80), nil
	})

	backup := filepath.Join(t.TempDir(), "etcd")
	pid := e.Server().PID()
	e.check(syscall.Kill(pid, unix.SIGSTOP))
	err := os.CopyFS(backup, os.DirFS(e.Server().DataDir()))
	e.check(syscall.Kill(pid, unix.SIGCONT))
	e.check(err)

	for i := range 300 { // more changes than the control plane makes before the watches return
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"turn":"%d"}}}`, i)
		_, err := e.Client().CoreV1().Services(metav1.NamespaceDefault).Patch(e.Context(), "restored-changed",
			types.MergePatchType, patch, metav1.PatchOptions{})
		e.check(err)
	}
	e.kubectl("delete", "service", "restored-deleted")
	_, err = e.Kubectl(e.Context(), restoredService("restored-created", "80")+"---\n"+
		restoredService("restored-changed", "81"), "apply", "-f", "-")
	e.check(err)
	created := e.service("restored-created")
	e.until("what was changed after the backup is served", 10*time.Second, func() (bool, error) {
		return answers(created, 80) && answers(changed, 81) && !answers(deleted, 80), nil
	})

	e.check(e.StopServer())
	e.check(os.RemoveAll(e.Server().DataDir()))
	e.check(os.CopyFS(e.Server().DataDir(), os.DirFS(backup)))
	e.check(e.StartServer(context.WithoutCancel(e.Context())))
	begin := time.Now()
	for _, x := range []struct {
		what string
		ok   func() (bool, error)
	}{
		{"a Service deleted after the backup is served again", served(deleted, 80, true)},
		{"a Service changed after the backup is served as before", served(changed, 80, true)},
		{"and not at its other port", served(changed, 81, false)},
		{"a Service created after the backup is no longer served", served(created, 80, false)},
	} {
		e.until(x.what, time.Minute, x.ok)
		t.Logf("%s: %.1f s after the API server was ready", x.what, time.Since(begin).Seconds())
	}
	// A change after the restoration has a revision that agents may have seen before.
	e.kubectl("delete", "service", "restored-deleted")
	e.until("a Service deleted after the restoration is no longer served", 10*time.Second,
		served(deleted, 80, false))
	e.check(e.WaitWorkloads(e.Context()))
	e.reachAll()
	for _, n := range e.Lab().Nodes() {
		e.kubectl("exec", "-n", namespace, e.agent(n.Name()), "-c", "agent", "--", "hairpin", "status", "--wait=1m")
	}
}
