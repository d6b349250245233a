package scale

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"hairpin/lab"
)

// kubeletPort is where the API server requests commands in containers, on all nodes.
const kubeletPort = 10250

// agentNamespace is the namespace of the chart.
const agentNamespace = "hairpin"

// kubelets serves as the kubelet of all nodes. For any command in an agent's container, it prints
// the report, or its brief form.
type kubelets struct {
	report, brief []byte // of the first node
}

// startKubelets listens on all nodes, real and simulated, with the API server's own certificate.
func (w *world) startKubelets() (*kubelets, error) {
	pki := filepath.Join(w.serverConfig.Dir, "pki")
	pair, err := tls.LoadX509KeyPair(filepath.Join(pki, "apiserver.crt"), filepath.Join(pki, "apiserver.key"))
	if err != nil {
		return nil, fmt.Errorf("certificate of the kubelets: %w", err)
	}
	k := &kubelets{}
	for _, h := range []lab.Place{w.others.host, w.nodes[0], w.nodes[1]} {
		var l net.Listener
		if err := lab.Do(h, func() (err error) {
			l, err = net.Listen("tcp4", fmt.Sprintf(":%d", kubeletPort))
			return err
		}); err != nil {
			return nil, fmt.Errorf("kubelets: %w", err)
		}
		w.others.listeners = append(w.others.listeners, l)
		// SPDY needs HTTP/1.1.
		go func() {
			_ = (&http.Server{Handler: k, ReadHeaderTimeout: time.Minute}).Serve(tls.NewListener(l,
				&tls.Config{Certificates: []tls.Certificate{pair}}))
		}()
	}
	return k, nil
}

// ServeHTTP runs a command in a container: /exec/NAMESPACE/agent-NODE/CONTAINER.
func (k *kubelets) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	parts := strings.Split(r.URL.Path, "/")
	if len(parts) != 5 || parts[1] != "exec" {
		http.NotFound(rw, r)
		return
	}
	name := strings.TrimPrefix(parts[3], agentPod(""))
	if _, err := httpstream.Handshake(r, rw, []string{"v4.channel.k8s.io"}); err != nil {
		return // Handshake has replied
	}
	made := make(chan httpstream.Stream, 3)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(rw, r, func(s httpstream.Stream, replied <-chan struct{}) error {
		go func() {
			<-replied
			made <- s
		}()
		return nil
	})
	if conn == nil {
		return // it has replied
	}
	defer conn.Close()
	streams := map[string]httpstream.Stream{}
	for len(streams) < cap(made) {
		select {
		case s := <-made:
			streams[s.Headers().Get(corev1.StreamType)] = s
		case <-conn.CloseChan():
			return
		}
	}
	report := k.report
	if slices.Contains(r.URL.Query()["command"], "--brief") {
		report = k.brief
	}
	// If a write fails, no client waits for it.
	_, _ = streams[corev1.StreamTypeStdout].Write([]byte(strings.ReplaceAll(string(report), realNodes[0], name)))
	_ = json.NewEncoder(streams[corev1.StreamTypeError]).Encode(metav1.Status{Status: metav1.StatusSuccess})
	for _, s := range streams {
		_ = s.Close()
	}
}

func agentPod(node string) string { return "agent-" + node }

// makeAgentPods makes the Pods of nodes' agents, as the chart's DaemonSet does.
func (w *world) makeAgentPods(ctx context.Context) error {
	first := w.agentPods + 1
	if first == 1 {
		if _, err := w.client.CoreV1().Namespaces().Create(ctx,
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: agentNamespace}},
			metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create Namespace %s: %w", agentNamespace, err)
		}
	}
	w.agentPods = w.size.nodes
	return parallel(ctx, first, w.size.nodes+1, func(ctx context.Context, i int) error {
		pod := &corev1.Pod{ObjectMeta: named(agentNamespace, agentPod(node(i).name())),
			Spec: corev1.PodSpec{NodeName: node(i).name(), HostNetwork: true}}
		pod.Labels = map[string]string{"app.kubernetes.io/name": "hairpin", "app.kubernetes.io/component": "node"}
		made, err := w.makePod(ctx, pod)
		if err != nil {
			return err
		}
		made.ResourceVersion = ""
		made.Status = corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{
			{Name: podContainer, Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}
		if _, err := w.client.CoreV1().Pods(agentNamespace).UpdateStatus(ctx, made,
			metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("status of Pod %s: %w", pod.Name, err)
		}
		return nil
	})
}
