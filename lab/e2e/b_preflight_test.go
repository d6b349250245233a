//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/preflight"
	"hairpin/preflight/pods"
)

// preflight runs the command as a user does, and returns its output and exit code.
func (e *e2e) preflight(args ...string) (out, errs string, code int) {
	e.Helper()
	cmd := exec.CommandContext(e.Context(), "../../bin/hairpin",
		append([]string{"preflight", "--kubeconfig", e.Kubeconfig()}, args...)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		e.Fatal(err)
	}
	for _, p := range e.preflightPods() {
		e.Errorf("left behind: %s", p)
	}
	return stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()
}

func (e *e2e) preflightPods() (names []string) {
	list, err := e.Client().CoreV1().Pods("").List(e.Context(),
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=hairpin-preflight"})
	e.check(err)
	for _, p := range list.Items {
		names = append(names, p.Name)
	}
	return names
}

// TestPreflight checks all nodes: it finds no problem on a working cluster. Remains of another
// network on one node are found on that node, and the command leaves nothing behind.
func TestPreflight(t *testing.T) {
	e := open(t)
	out, errs, code := e.preflight()
	t.Logf("%s%s", out, errs)
	if code != 0 || !strings.Contains(out,
		"3 nodes: 3 ready for Hairpin, 0 not, 0 could not be checked") {
		t.Errorf("exit code %d", code)
	}

	n := e.Lab().Node("node-b")
	const left = "mkdir -p /etc/NetworkManager/system-connections; printf '[connection]\nid=ovs-if-phys0\n' > " +
		"/etc/NetworkManager/system-connections/ovs-if-phys0.nmconnection; " +
		"ip link add flannel.1 type veth peer name left-peer; ip link set flannel.1 up; ip link set left-peer up; " +
		"ip address add 10.200.0.1/16 dev flannel.1; touch /etc/cni/net.d/99-other.conflist"
	t.Cleanup(func() {
		_, err := n.Exec(context.Background(), "sh", "-c",
			"ip link delete flannel.1; rm -r /etc/NetworkManager /etc/cni/net.d/99-other.conflist")
		e.check(err)
	})
	_, err := n.Exec(t.Context(), "sh", "-ec", left)
	e.check(err)
	out, errs, code = e.preflight()
	t.Logf("%s%s", out, errs)
	if code != 1 {
		t.Errorf("exit code %d", code)
	}
	out, errs, code = e.preflight("-o", "json")
	var list []pods.Node
	if err := json.Unmarshal([]byte(out), &list); err != nil || code != 1 || len(list) != 3 {
		t.Fatalf("exit code %d, %v: %s%s", code, err, out, errs)
	}
	for _, x := range list {
		found := map[string]preflight.Severity{}
		for _, f := range x.Findings {
			found[f.Object] = f.Severity
		}
		for object, severity := range map[string]preflight.Severity{"link flannel.1": preflight.Stops,
			"/etc/cni/net.d/99-other.conflist":                                 preflight.Warning,
			"/etc/NetworkManager/system-connections/ovs-if-phys0.nmconnection": preflight.Warning} {
			if s, has := found[object]; has != (x.Node == "node-b") || has && s != severity {
				t.Errorf("%s: %s: found %q", x.Node, object, s)
			}
		}
	}

	e.refuses("overlaps 10.200.0.0/24 of [kubernetes]", "--service-cidrs", "10.200.0.0/24", "-l",
		"kubernetes.io/hostname=node-b")
}

// TestMissingImage: hairpin preflight reports an image that cannot be pulled. The kubelet takes
// long to give up.
func TestMissingImage(t *testing.T) {
	open(t).refuses("image hairpin:missing cannot be pulled", "--image", "hairpin:missing", "--nodes", "node-c")
}

// refuses runs the command, which must report the problem want.
func (e *e2e) refuses(want string, args ...string) {
	e.Helper()
	out, errs, code := e.preflight(args...)
	e.Logf("%s%s", out, errs)
	if code != 1 || !strings.Contains(out, want) {
		e.Errorf("%q: exit code %d", args, code)
	}
}

// TestPreflightInterrupted: Ctrl-C leaves no Pod.
func TestPreflightInterrupted(t *testing.T) {
	e := open(t)
	cmd := exec.CommandContext(t.Context(), "../../bin/hairpin", "preflight", "--kubeconfig", e.Kubeconfig())
	cmd.Stderr = os.Stderr
	e.check(cmd.Start())
	e.until("a Pod", time.Minute, func() (bool, error) { return len(e.preflightPods()) > 0, nil })
	e.check(cmd.Process.Signal(syscall.SIGINT))
	if err := cmd.Wait(); err == nil || cmd.ProcessState.ExitCode() != 2 {
		t.Error(err)
	}
	if left := e.preflightPods(); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}
