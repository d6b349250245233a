//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// testNamespace is the namespace of `hairpin test`.
const testNamespace = "hairpin-test"

// selfTest runs `hairpin test`, and returns its output and exit code. Its namespace must be gone
// then.
func (e *e2e) selfTest(ctx context.Context, args ...string) (string, int) {
	e.Helper()
	var out bytes.Buffer
	err := e.Test(ctx, &out, args...)
	e.Logf("%s", &out)
	code := 0
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		e.Fatal(err)
	}
	if _, err := e.Client().CoreV1().Namespaces().Get(e.Context(), testNamespace,
		metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		e.Errorf("namespace %s is left: %v", testNamespace, err)
	}
	return out.String(), code
}

// TestSelfTest runs `hairpin test` on the cluster: as it is, with pods that do not run, with a
// policy that drops packets to the servers, and interrupted.
func TestSelfTest(t *testing.T) {
	e := open(t)
	file := filepath.Join(t.TempDir(), "junit.xml")
	if _, code := e.selfTest(t.Context(), "--junit", file); code != 0 {
		t.Errorf("exit code %d", code)
	}
	text, err := os.ReadFile(file)
	e.check(err)
	var all struct {
		Tests    int `xml:"tests,attr"`
		Failures int `xml:"failures,attr"`
	}
	e.check(xml.Unmarshal(text, &all))
	if all.Tests < 100 || all.Failures > 0 {
		t.Errorf("JUnit: %+v", all)
	}
	t.Run("pods", func(t *testing.T) { (&e2e{t, e.Cluster}).selfTestPods() })
	t.Run("policy", func(t *testing.T) { (&e2e{t, e.Cluster}).selfTestDropped() })
	t.Run("interrupted", func(t *testing.T) { (&e2e{t, e.Cluster}).selfTestInterrupted() })
}

// selfTestPods checks that pods that cannot run are failures, and that the other paths are tested:
// the servers in the nodes' network cannot listen at the kubelets' port.
func (e *e2e) selfTestPods() {
	out, code := e.selfTest(e.Context(), "--nodes", "node-a,node-b", "--host-port", "10250", "--measure", "0")
	if code != 1 {
		e.Errorf("exit code %d", code)
	}
	for _, want := range []string{"FAIL  pods that run: 2 of 10 checks\n",
		"pod host-0 on node node-a: ended with code ",
		"address already in use", "ok    pod → pod: ", "ok    host → NodePort: ", ", 2 failed, in "} {
		if !strings.Contains(out, want) {
			e.Errorf("no %q", want)
		}
	}
}

// selfTestDropped checks that failures are found and explained.
func (e *e2e) selfTestDropped() {
	intruder := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "intruder"},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"hairpin-test-role": "server"}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
		},
	}
	created := make(chan error, 1)
	go func() {
		for {
			_, err := e.Client().NetworkingV1().NetworkPolicies(testNamespace).Create(e.Context(), intruder,
				metav1.CreateOptions{})
			if !apierrors.IsNotFound(err) { // the namespace exists
				created <- err
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	out, code := e.selfTest(e.Context(), "--nodes", "node-a,node-b", "--explain", "2", "--measure", "0")
	e.check(<-created)
	if code != 1 {
		e.Errorf("exit code %d", code)
	}
	for _, want := range []string{"FAIL  pod → pod: ", "FAIL  pod → ClusterIP: ", "FAIL  host → NodePort: ",
		"ok    pod → ClusterIP of a server on a host: ", "ok    pod → DNS: ", "ok    pod → NetworkPolicy accepts: ",
		"$ kubectl hairpin explain pod/hairpin-test/client-0 ", "NetworkPolicy/hairpin-test/intruder"} {
		if !strings.Contains(out, want) {
			e.Errorf("no %q", want)
		}
	}
}

// selfTestInterrupted interrupts the test when its pods run.
func (e *e2e) selfTestInterrupted() {
	ctx, interrupt := context.WithCancel(e.Context())
	go func() {
		defer interrupt()
		for e.Context().Err() == nil {
			list, err := e.Client().CoreV1().Pods(testNamespace).List(e.Context(),
				metav1.ListOptions{FieldSelector: "status.phase=" + string(corev1.PodRunning)})
			if err == nil && len(list.Items) > 2 {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	begin := time.Now()
	out, code := e.selfTest(ctx)
	if code != 2 || !strings.Contains(out, "interrupt signal received") {
		e.Errorf("exit code %d", code)
	}
	e.Logf("ended after %s", time.Since(begin).Round(time.Second))
}
