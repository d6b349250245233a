//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"hairpin/lab/cluster"
)

// TestKubelet tests the functions of a kubelet that use the pod network: exec, logs, port-forward,
// probes.
func TestKubelet(t *testing.T) {
	e := open(t)
	pod := e.pods("web")[0].Name
	if out := e.kubectl("logs", pod); !strings.Contains(out, "serving as "+pod) {
		t.Errorf("kubectl logs: %q", out)
	}
	if out := e.kubectl("exec", pod, "--", "/bin/pod", "lookup",
		"kubernetes.default"); strings.TrimSpace(out) != "10.96.0.1" {
		t.Errorf("kubectl exec: kubernetes.default has the addresses %q", out)
	}
	e.portForward(pod)
	e.probes()
}

// portForward reads a page of a pod through kubectl port-forward.
func (e *e2e) portForward(pod string) {
	ctx, cancel := context.WithCancel(e.Context())
	defer cancel()
	path, argv := e.KubectlArgv("port-forward", "--address", "127.0.0.1", "pod/"+pod, ":8081")
	cmd := exec.CommandContext(ctx, path)
	cmd.Args = argv
	out, err := cmd.StdoutPipe()
	e.check(err)
	e.check(cmd.Start())
	defer func() { _ = cmd.Wait() }()
	defer cancel()
	line, err := bufio.NewReader(out).ReadString('\n') // Forwarding from 127.0.0.1:NNN -> 8081
	e.check(err)
	var port int
	_, err = fmt.Sscanf(line, "Forwarding from 127.0.0.1:%d", &port)
	e.check(err)
	answer, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/", port))
	e.check(err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	e.check(err)
	if strings.TrimSpace(string(text)) != pod {
		e.Errorf("port-forward to %s: answered by %q", pod, text)
	}
}

// probes checks that a kubelet's probe reaches a pod, and fails when it cannot.
func (e *e2e) probes() {
	e.apply(`
apiVersion: v1
kind: Pod
metadata: {name: probed, labels: {app: probed}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: good
    image: pod:dev
    imagePullPolicy: Never
    args: [serve]
    readinessProbe: {httpGet: {port: 8081}, periodSeconds: 1}
    startupProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: unprobed, labels: {app: probed}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: bad
    image: pod:dev
    imagePullPolicy: Never
    args: [serve]
    readinessProbe: {httpGet: {port: 8082}, periodSeconds: 1}
`)
	took := e.until("the probed pod is ready", 30*time.Second,
		func() (bool, error) { return len(e.pods("probed")) > 0, nil })
	e.until("the probe of the other fails", 30*time.Second, func() (bool, error) {
		out, err := e.Kubectl(e.Context(), "", "get", "events", "--field-selector",
			"involvedObject.name=unprobed,reason=Unhealthy", "-o", "name")
		return strings.Contains(out, "event/"), err
	})
	if list := e.pods("probed"); len(list) != 1 || list[0].Name != "probed" {
		e.Errorf("ready: %d pods, want only the one whose probe is answered", len(list))
	}
	e.Logf("ready by HTTP and TCP probes after %s", took.Round(time.Millisecond))
}

// TestHostPort checks that a pod is reachable at a port of its node.
func TestHostPort(t *testing.T) {
	e := open(t)
	e.apply(`
apiVersion: v1
kind: Pod
metadata: {name: hostport, labels: {app: hostport}}
spec:
  nodeName: node-b
  terminationGracePeriodSeconds: 0
  containers:
  - name: server
    image: pod:dev
    imagePullPolicy: Never
    args: [serve]
    ports:
    - {containerPort: 8080, hostPort: 8088}
    - {containerPort: 8080, hostPort: 8088, protocol: UDP}
`)
	e.until("the pod is ready", time.Minute, func() (bool, error) { return len(e.pods("hostport")) == 1, nil })
	for _, a := range e.Lab().Node("node-b").Addresses() {
		for _, protocol := range []string{"tcp", "udp"} {
			for _, from := range []string{cluster.ClientName, "node-a"} {
				if err := e.ask(e.Lab().Host(from), protocol, netip.AddrPortFrom(a.Addr(), 8088)); err != nil {
					t.Error(err)
				}
			}
			if err := e.ask(e.place(e.clientPod("node-c").Name), protocol,
				netip.AddrPortFrom(a.Addr(), 8088)); err != nil {
				t.Error(err)
			}
		}
	}
}
