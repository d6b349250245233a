package watch_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"hairpin/cluster"
	"hairpin/kubeapi"
	"hairpin/watch"
)

// web is a Service with one slice; the endpoint's address is to be filled in.
const web = `
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: ClusterIP, clusterIP: 10.96.0.80, clusterIPs: [10.96.0.80], ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: "", port: 8080}]
endpoints: [{addresses: [%s]}]
`

const webKeys = "Service/default/web EndpointSlice/default/web-1"

func webText(address string) string {
	return fmt.Sprintf("service default/web:/tcp/IPv4 10.96.0.80:80\n  %s:8080 node= zone= ready=true serving=true "+
		"terminating=false zones=[] nodes=[]\n", address)
}

// until waits for a Snapshot of this text and counts those before it.
func (n *newest) until(t *testing.T, text string) (came int) {
	t.Helper()
	limit := time.After(30 * time.Second)
	for n.last == nil || describe(plain(n.last)) != text {
		select {
		case n.last = <-n.from:
			came++
		case <-limit:
			t.Fatalf("the last Snapshot is %s", describe(n.last))
		}
	}
	return came
}

// silent checks that no Snapshot arrives for a while.
func (n *newest) silent(t *testing.T, why string) {
	t.Helper()
	select {
	case s := <-n.from:
		t.Fatalf("%s, and there is a Snapshot:\n%s", why, describe(s))
	case <-time.After(300 * time.Millisecond):
	}
}

// hold delays requests for one resource until it is opened, and records the requests.
type hold struct {
	http.RoundTripper
	resource string
	selector string // only those with this field selector; empty: all
	open     chan struct{}
	mu       sync.Mutex
	asked    map[string]bool
}

func (h *hold) RoundTrip(r *http.Request) (*http.Response, error) {
	resource := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	if resource == h.resource && (h.selector == "" || r.URL.Query().Get("fieldSelector") == h.selector) {
		select {
		case <-h.open:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	response, err := h.RoundTripper.RoundTrip(r)
	h.mu.Lock()
	h.asked[resource] = err == nil
	h.mu.Unlock()
	return response, err
}

func testNothingBefore(t *testing.T, a *api) {
	admin := kube{a.client(t)}
	admin.change(t, step{set: fmt.Sprintf(web, "10.244.7.5")})
	defer admin.change(t, step{delete: webKeys})
	all := []string{"nodes", "services", "endpointslices", "pods", "namespaces", "networkpolicies"}
	for _, resource := range all {
		t.Run(resource, func(t *testing.T) {
			h := &hold{resource: resource, open: make(chan struct{}), asked: map[string]bool{}}
			c, err := a.server.RESTConfig()
			check(t, err)
			c.Wrap(func(rt http.RoundTripper) http.RoundTripper { h.RoundTripper = rt; return h })
			client, err := kubeapi.New(c)
			check(t, err)
			snapshots := follow(t, client, "node-a")
			eventually(t, 10*time.Second, func() string {
				h.mu.Lock()
				defer h.mu.Unlock()
				if len(h.asked) < len(all)-1 {
					return fmt.Sprintf("answers only for %v", h.asked)
				}
				return ""
			})
			snapshots.silent(t, resource+" are not read yet")
			close(h.open)
			if came := snapshots.until(t, webText("10.244.7.5")); came != 1 {
				t.Errorf("the first complete Snapshot is number %d", came)
			}
		})
	}
}

// testBurst makes many writes at once, without a reader.
func testBurst(t *testing.T, a *api) {
	const services, rounds = 10, 10
	admin := kube{a.client(t)}
	snapshots := follow(t, a.agent(t), "node-a")
	snapshots.until(t, "")
	replacer := func(i int) *strings.Replacer {
		return strings.NewReplacer("web", fmt.Sprintf("web-%02d", i), "10.96.0.80", fmt.Sprintf("10.96.9.%d", i))
	}
	var wg sync.WaitGroup
	for i := range services {
		wg.Go(func() {
			docs := documents(replacer(i).Replace(fmt.Sprintf(web, "10.244.7.1")))
			admin.change(t, step{set: docs[0].text})
			for round := range rounds {
				admin.change(t, step{set: strings.ReplaceAll(docs[1].text, "10.244.7.1",
					fmt.Sprintf("10.244.7.%d", round+1))})
			}
		})
	}
	wg.Wait()
	var text, keys string
	for i := range services {
		text += replacer(i).Replace(webText(fmt.Sprintf("10.244.7.%d", rounds)))
		keys += replacer(i).Replace(webKeys) + "\n"
	}
	if came := snapshots.until(t, text); came > services*rounds/2 {
		t.Errorf("%d Snapshots were in the queue", came)
	}
	admin.change(t, step{delete: keys})
	snapshots.until(t, "")
}

const podManifests = `
apiVersion: v1
kind: Node
metadata: {name: node-a}
spec: {podCIDR: 10.244.7.0/24, podCIDRs: [10.244.7.0/24]}
---
apiVersion: v1
kind: Pod
metadata: {name: here}
spec: {nodeName: node-a, containers: [{name: c, image: c}]}
status: {phase: Running, podIP: 10.244.7.5, podIPs: [{ip: 10.244.7.5}]}
---
apiVersion: v1
kind: Pod
metadata: {name: there}
spec: {nodeName: node-b, containers: [{name: c, image: c}]}
status: {phase: Running, podIP: 10.244.8.5, podIPs: [{ip: 10.244.8.5}]}
`

// testPods: only Pods of the own node are read, and none without a node. One that is bound later is
// added then.
func testPods(t *testing.T, a *api) {
	admin := kube{a.client(t)}
	defer admin.change(t, step{delete: "Pod/default/here Pod/default/there Node/node-a"})
	admin.change(t, step{set: podManifests})
	const node = "node node-a id=0 addresses=[] host=[] pods=[10.244.7.0/24] zone= gateway=  00:00:00:00:00:00 []\n"
	follow(t, a.agent(t), "node-a").until(t, node+"pod default/here on node-a [10.244.7.5] 0a:58:0a:f4:07:05\n")
	follow(t, a.agent(t), "node-b").until(t, node+"pod default/there on node-b [10.244.8.5] 0a:58:0a:f4:08:05\n")
	follow(t, a.agent(t), "").until(t, node)
}

// testAway disconnects the API server, changes and deletes objects meanwhile, and reconnects.
func testAway(t *testing.T, a *api, restart bool) {
	kube{a.client(t)}.change(t, step{set: fmt.Sprintf(web, "10.244.7.5") + "---\n" + strings.ReplaceAll(
		strings.ReplaceAll(fmt.Sprintf(web, "10.244.7.5"), "web", "gone"), "10.96.0.80", "10.96.0.81")})
	var g gate
	lines := make(chan string, 100)
	ctx := klog.NewContext(t.Context(), funcr.New(func(_, line string) { lines <- line }, funcr.Options{}))
	from, err := watch.Kube(ctx, a.agent(t, &g), "node-a", cluster.DefaultConfig())
	check(t, err)
	snapshots := &newest{from: from}
	snapshots.until(t, strings.ReplaceAll(strings.ReplaceAll(webText("10.244.7.5"), "web", "gone"), "10.96.0.80",
		"10.96.0.81")+webText("10.244.7.5"))

	g.cut()
	if restart {
		check(t, a.server.Stop())
	}
	snapshots.silent(t, "the API server is away")
	if restart {
		a.start(t)
	}
	admin := kube{a.client(t)}
	admin.change(t, step{set: fmt.Sprintf(web, "10.244.7.6"), delete: strings.ReplaceAll(webKeys, "web", "gone")})
	snapshots.silent(t, "the network is cut")
	says := func(want string) {
		t.Helper()
		select {
		case line := <-lines:
			if !strings.Contains(line, want) {
				t.Errorf("the log says %s, not %q", line, want)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("the log does not say %q", want)
		}
	}
	says("does not answer") // maybe there was no request yet
	g.mend()
	begin := time.Now()
	snapshots.until(t, webText("10.244.7.6"))
	t.Logf("back after %s", time.Since(begin).Round(time.Millisecond))

	admin.change(t, step{set: fmt.Sprintf(web, "10.244.7.7")}) // the watch continues
	snapshots.until(t, webText("10.244.7.7"))
	admin.change(t, step{delete: webKeys})
	snapshots.until(t, "")
	says("answers again")
	if len(lines) > 0 {
		t.Errorf("and then %s", <-lines)
	}
}

// testManyAway restarts an API server that has more Services than a page of a list. Its watches
// begin at the state that it found at its start, so the earlier watch cannot resume. All objects
// are listed, in their current state.
func testManyAway(t *testing.T, a *api) {
	const many = 501 // a page has 500
	fill(t, a.client(t), 0, many)
	snapshots := follow(t, a.agent(t), "node-a")
	has := func(want int) {
		t.Helper()
		eventually(t, 30*time.Second, func() string {
			select {
			case snapshots.last = <-snapshots.from:
			case <-time.After(100 * time.Millisecond):
			}
			if snapshots.last == nil {
				return "there is no Snapshot"
			}
			services := 0
			for _, f := range snapshots.last.Frontends {
				if strings.HasPrefix(f.Owner.Name, "service-") {
					services++
				}
			}
			if services != want {
				return fmt.Sprintf("%d Services, not %d", services, want)
			}
			return ""
		})
	}
	has(many)
	_, err := a.client(t).DiscoveryV1().EndpointSlices("default").Update(t.Context(), sliceOf("service-00001", 1, 1),
		metav1.UpdateOptions{})
	check(t, err) // a change that the watch of Services does not receive
	check(t, a.server.Stop())
	a.start(t)
	check(t, a.client(t).CoreV1().Services("default").Delete(t.Context(), "service-00000", metav1.DeleteOptions{}))
	has(many - 1)
}

// testRestored restores etcd's data from a backup. The resourceVersions go back, and the server
// would continue a watch from one that it does not have yet: without what was changed since the
// backup.
func testRestored(t *testing.T, a *api) {
	other := func(text string) string {
		return strings.ReplaceAll(strings.ReplaceAll(text, "web", "other"), "10.96.0.80", "10.96.0.81")
	}
	kube{a.client(t)}.change(t, step{set: fmt.Sprintf(web, "10.244.7.5")})
	snapshots := follow(t, a.agent(t), "node-a")
	snapshots.until(t, webText("10.244.7.5"))
	check(t, a.server.Stop())
	backup := filepath.Join(t.TempDir(), "etcd")
	check(t, os.CopyFS(backup, os.DirFS(a.server.DataDir())))
	a.start(t)

	admin := kube{a.client(t)}
	admin.change(t, step{set: other(fmt.Sprintf(web, "10.244.7.5"))})
	for i := range 300 { // more changes than the server makes before the watches return
		_, err := admin.client.CoreV1().Services("default").Patch(t.Context(), "other", types.MergePatchType,
			fmt.Appendf(nil, `{"metadata":{"annotations":{"turn":"%d"}}}`, i), metav1.PatchOptions{})
		check(t, err)
	}
	admin.change(t, step{set: fmt.Sprintf(web, "10.244.7.6")})
	snapshots.until(t, other(webText("10.244.7.5"))+webText("10.244.7.6"))
	check(t, a.server.Stop())
	check(t, os.RemoveAll(a.server.DataDir()))
	check(t, os.CopyFS(a.server.DataDir(), os.DirFS(backup)))
	a.start(t)
	begin := time.Now()
	snapshots.until(t, webText("10.244.7.5"))
	t.Logf("back after %s", time.Since(begin).Round(time.Millisecond))

	admin = kube{a.client(t)}
	admin.change(t, step{set: fmt.Sprintf(web, "10.244.7.7")}) // the watch continues
	snapshots.until(t, webText("10.244.7.7"))
	admin.change(t, step{delete: webKeys})
	snapshots.until(t, "")
}

// TestKubeWithoutAPI: no server, no Snapshot, and no goroutine is left.
func TestKubeWithoutAPI(t *testing.T) {
	client, err := kubeapi.New(&rest.Config{Host: "127.0.0.1:1"})
	check(t, err)
	t.Run("away", func(t *testing.T) { follow(t, client, "node-a").silent(t, "there is no API server") })
	wantNoGoroutines(t)
	if _, err := watch.Kube(t.Context(), nil, "", cluster.DefaultConfig()); err == nil ||
		!strings.Contains(err.Error(), "no client") {
		t.Errorf("without a client the error is %v", err)
	}
}
