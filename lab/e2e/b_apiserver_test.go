//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// extensions are the places of servers that extend the API: on the API server's node-a, in a pod
// and in the host's network, and on another node. The kubelet gives them their names.
var extensions = []struct{ name, node, hostNetwork string }{
	{"same-node", "node-a", "false"},
	{"same-host", "node-a", "true"},
	{"other-node", "node-b", "false"},
	{"other-host", "node-b", "true"},
}

// TestAPIServerReaches checks that the API server in the host network of node-a reaches webhooks
// and aggregated APIs behind ClusterIPs, and pods and Services by its proxy. It reaches them also
// while the agent on node-a restarts.
func TestAPIServerReaches(t *testing.T) {
	e := open(t)
	certificate, key := e.certificate()
	var manifest strings.Builder
	fmt.Fprintf(&manifest, `
apiVersion: v1
kind: Secret
metadata: {name: extension}
type: kubernetes.io/tls
data: {tls.crt: %s, tls.key: %s}
`, certificate, key)
	for i, x := range extensions {
		fmt.Fprintf(&manifest, `---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {app: extension, at: %[1]s}}
spec:
  nodeName: %[2]s
  hostNetwork: %[3]s
  terminationGracePeriodSeconds: 0
  containers:
  - name: server
    image: pod:dev
    imagePullPolicy: Never
    args: [serve, --name, %[1]s, --port, "9443", --http-port, "9444", --extend-port, "9445"]
    readinessProbe: {httpGet: {port: 9444}, periodSeconds: 1}
    volumeMounts: [{name: tls, mountPath: /tls}]
  volumes: [{name: tls, secret: {secretName: extension}}]
---
apiVersion: v1
kind: Service
metadata: {name: %[1]s}
spec:
  selector: {at: %[1]s}
  ports:
  - {name: https, port: 443, targetPort: 9445}
  - {name: http, port: 80, targetPort: 9444}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v%[4]d.seen.hairpin}
spec:
  group: seen.hairpin
  version: v%[4]d
  service: {namespace: default, name: %[1]s}
  caBundle: %[5]s
  groupPriorityMinimum: 1000
  versionPriority: 15
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: %[1]s}
webhooks:
- name: %[1]s.seen.hairpin
  admissionReviewVersions: [v1]
  sideEffects: None
  timeoutSeconds: 5
  clientConfig: {caBundle: %[5]s, service: {namespace: default, name: %[1]s, path: /validate}}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]
  objectSelector: {matchLabels: {ask: %[1]s}}
`, x.name, x.node, x.hostNetwork, i+1, certificate)
	}
	e.apply(manifest.String())
	e.until("the servers are ready", time.Minute,
		func() (bool, error) { return len(e.pods("extension")) == len(extensions), nil })
	ways := e.waysOfAPI()
	for _, w := range ways { // the API server uses a new registration after a moment
		e.until(w.name, 30*time.Second, func() (bool, error) { err := w.try(e.Context()); return err == nil, err })
	}
	e.Logf("%d ways from the API server", len(ways))
	e.throughRestart(ways)
}

// apiWay is a path from the API server.
type apiWay struct {
	name string
	try  func(context.Context) error
}

func (e *e2e) waysOfAPI() (all []apiWay) {
	e.Helper()
	get := func(path, want string) func(context.Context) error {
		return func(ctx context.Context) error {
			out, err := e.Client().CoreV1().RESTClient().Get().AbsPath(path).DoRaw(ctx)
			if err == nil && !strings.Contains(string(out), want) {
				err = fmt.Errorf("%q, want %q", out, want)
			}
			return err
		}
	}
	for i, x := range extensions {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "asked",
			Labels: map[string]string{"ask": x.name}}}
		all = append(all,
			apiWay{"proxy to pod " + x.name, get("/api/v1/namespaces/default/pods/"+x.name+":9444/proxy/", x.name)},
			apiWay{"proxy to Service " + x.name,
				get("/api/v1/namespaces/default/services/"+x.name+":http/proxy/", x.name)},
			apiWay{"aggregated API " + x.name, get(fmt.Sprintf("/apis/seen.hairpin/v%d/servers", i+1), x.name)},
			apiWay{"webhook " + x.name, func(ctx context.Context) error {
				_, err := e.Client().CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(ctx, object,
					metav1.CreateOptions{})
				if err == nil || !strings.Contains(err.Error(), "denied by "+x.name) {
					return fmt.Errorf("%v, want a denial by %s", err, x.name)
				}
				return nil
			}},
		)
	}
	return all
}

// throughRestart tries all paths while the agent on node-a is replaced. Each try must succeed.
func (e *e2e) throughRestart(ways []apiWay) {
	e.Helper()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	tried, slowest := make([]int, len(ways)), make([]time.Duration, len(ways))
	for i, w := range ways {
		wg.Go(func() {
			for {
				begin := time.Now()
				if err := w.try(e.Context()); err != nil {
					e.Errorf("%s, try %d, beside the agent's restart: %v", w.name, tried[i]+1, err)
					return
				}
				tried[i]++
				slowest[i] = max(slowest[i], time.Since(begin))
				select {
				case <-stop:
					return
				case <-time.After(100 * time.Millisecond):
				}
			}
		})
	}
	old := e.agent("node-a")
	e.kubectl("delete", "pod", "-n", namespace, old, "--wait")
	e.until("another agent is ready on node-a", time.Minute, func() (bool, error) {
		out, err := e.Kubectl(e.Context(), "", "get", "pod", "-n", namespace, "-l", "app.kubernetes.io/component=node",
			"--field-selector", "spec.nodeName=node-a",
			"-o",
			`jsonpath={range .items[*]}{.metadata.name} {.status.conditions[?(@.type=="Ready")].status}{"\n"}{end}`)
		return !strings.Contains(out, old) && strings.Contains(out, "True"), err
	})
	close(stop)
	wg.Wait()
	for i, w := range ways {
		e.Logf("%s: %d tries, slowest %d ms", w.name, tried[i], slowest[i].Milliseconds())
	}
}

// certificate makes a self-signed certificate for all extensions; both results are PEM in base64.
func (e *e2e) certificate() (certificate, key string) {
	e.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	e.check(err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "extension"}, IsCA: true,
		BasicConstraintsValid: true,
		NotBefore:             time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, x := range extensions {
		template.DNSNames = append(template.DNSNames, x.name+".default.svc")
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, k.Public(), k)
	e.check(err)
	secret, err := x509.MarshalPKCS8PrivateKey(k)
	e.check(err)
	encode := func(kind string, b []byte) string {
		var text bytes.Buffer
		e.check(pem.Encode(&text, &pem.Block{Type: kind, Bytes: b}))
		return base64.StdEncoding.EncodeToString(text.Bytes())
	}
	return encode("CERTIFICATE", der), encode("PRIVATE KEY", secret)
}
