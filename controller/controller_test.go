package controller_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"hairpin/cluster"
	"hairpin/cluster/annotation"
	"hairpin/controller"
	"hairpin/kube"
	"hairpin/kubeapi"
	"hairpin/lab"
	"hairpin/lab/chart"
)

// controlPlane is a real API server on a host of its own, with the roles and admission policies of
// the chart.
type controlPlane struct {
	host   *lab.Host
	server *lab.APIServer
	client kubernetes.Interface // of an administrator
	pod    *rest.Config         // of a controller's pod
	own    *kubeapi.Client      // a controller's client
}

func startControlPlane(t *testing.T) *controlPlane {
	t.Helper()
	p := &controlPlane{}
	p.server, p.host = lab.StartAPI(t) // skips without root
	config, err := p.server.RESTConfig()
	noError(t, err)
	config.WarningHandlerWithContext = rest.NoWarnings{}
	config.QPS = -1 // tests poll every few milliseconds
	admin, err := chart.NewAdmin(config)
	noError(t, err)
	p.client = admin.Client
	noError(t, admin.InstallAccess(t.Context()))
	p.pod, err = admin.As(t.Context(), "hairpin-controller", "")
	noError(t, err)
	p.pod.WarningHandlerWithContext = rest.NoWarnings{}
	p.own = p.connect(t, nil)
	p.waitForPolicy(t)
	return p
}

// waitForPolicy waits until the API server enforces the policy for the controller, which takes some
// time after its creation.
func (p *controlPlane) waitForPolicy(t *testing.T) {
	t.Helper()
	p.addNode(t, "policy", "")
	defer p.removeNode(t, "policy")
	try := 0
	soon(t, 60*time.Second, func() string {
		try++ // the same label again would be no change
		labels := map[string]string{"try": strconv.Itoa(try)}
		err := kube.PatchNode(t.Context(), p.own, "policy", map[string]any{"labels": labels})
		if err == nil || !strings.Contains(err.Error(), "Hairpin") {
			return fmt.Sprintf("the policy does not refuse a label: %v", err)
		}
		return ""
	})
}

// connect returns a controller's client. change modifies the configuration of its connections.
func (p *controlPlane) connect(t *testing.T, change func(*rest.Config)) *kubeapi.Client {
	t.Helper()
	c := rest.CopyConfig(p.pod)
	if change != nil {
		change(c)
	}
	client, err := kubeapi.New(c)
	noError(t, err)
	return client
}

// by returns a change that makes connections fail while cut is set, also open ones.
func by(cut *atomic.Bool) func(*rest.Config) {
	return func(c *rest.Config) {
		dial := c.Dial
		c.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
			if cut.Load() {
				return nil, errors.New("the network is cut")
			}
			conn, err := dial(ctx, network, address)
			return &cuttable{conn, cut}, err
		}
	}
}

type cuttable struct {
	net.Conn
	cut *atomic.Bool
}

func (c *cuttable) Write(b []byte) (int, error) {
	if c.cut.Load() {
		return 0, errors.Join(errors.New("the network is cut"), c.Close())
	}
	return c.Conn.Write(b)
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// soon polls until done returns "".
func soon(t *testing.T, limit time.Duration, done func() (missing string)) {
	t.Helper()
	var missing string
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if missing = done(); missing == "" {
			return
		}
	}
	t.Fatalf("after %s still: %s", limit, missing)
}

// ids returns the IDs of all Nodes as "a=1 b=2".
func (p *controlPlane) ids(t *testing.T) string {
	t.Helper()
	list, err := p.client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	noError(t, err)
	var words []string
	for _, n := range list.Items {
		words = append(words, n.Name+"="+n.Annotations[annotation.NodeID])
	}
	return strings.Join(words, " ")
}

func (p *controlPlane) wantIDs(t *testing.T, limit time.Duration, want string) {
	t.Helper()
	soon(t, limit, func() string {
		if got := p.ids(t); got != want {
			return fmt.Sprintf("node IDs are %s, not %s", got, want)
		}
		return ""
	})
}

func (p *controlPlane) addNode(t *testing.T, name, id string) {
	t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{"other": "stays"}}}
	if id != "" {
		n.Annotations[annotation.NodeID] = id
	}
	soon(t, 60*time.Second, func() string { // the API server enforces a removed policy for some time
		_, err := p.client.CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{})
		if err != nil && strings.Contains(err.Error(), "only the controller of Hairpin gives") {
			return err.Error()
		}
		noError(t, err)
		return ""
	})
}

func (p *controlPlane) removeNode(t *testing.T, name string) {
	t.Helper()
	noError(t, p.client.CoreV1().Nodes().Delete(t.Context(), name, metav1.DeleteOptions{}))
}

// holder returns the holder of the Lease.
func (p *controlPlane) holder(t *testing.T) string {
	t.Helper()
	l, err := p.client.CoordinationV1().Leases("kube-system").Get(t.Context(), "hairpin-controller",
		metav1.GetOptions{})
	if err != nil || l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

func quietLog() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// candidate runs a controller in this process until stop is called.
func candidate(t *testing.T, client *kubeapi.Client, name string) (stop func()) {
	t.Helper()
	return candidateLogging(t, client, name, quietLog())
}

// candidateLogging is candidate with a log.
func candidateLogging(t *testing.T, client *kubeapi.Client, name string, log *slog.Logger) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			if err := controller.Lead(ctx, client, name, cluster.DefaultConfig(), log); err != nil {
				ended <- err
				return
			}
		}
		ended <- nil
	}()
	done := false
	stop = func() {
		if done {
			return
		}
		done = true
		cancel()
		select {
		case err := <-ended:
			noError(t, err)
		case <-time.After(20 * time.Second):
			t.Errorf("%s does not end", name)
		}
	}
	t.Cleanup(stop)
	return stop
}

func TestController(t *testing.T) {
	p := startControlPlane(t)
	t.Run("node IDs", func(t *testing.T) { testNodeIDs(t, p) })
	t.Run("node IDs at once", func(t *testing.T) { testNodeIDsAtOnce(t, p) })
	t.Run("problems", func(t *testing.T) { testProblems(t, p) })
	t.Run("one leader", func(t *testing.T) { testOneLeader(t, p) })
	t.Run("leader ends in an acquisition", func(t *testing.T) { testEndsInWrite(t, p, 1) })
	t.Run("leader ends in a renewal", func(t *testing.T) { testEndsInWrite(t, p, 2) })
	t.Run("leader cut off", func(t *testing.T) { testLeaderCutOff(t, p) })
	t.Run("leader killed", func(t *testing.T) { testLeaderKilled(t, p) })
}

func testNodeIDs(t *testing.T, p *controlPlane) {
	// Nodes with an ID must exist before the chart: its policy rejects them.
	bindings := p.client.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	noError(t, bindings.Delete(t.Context(), "hairpin-node-ids", metav1.DeleteOptions{}))
	p.addNode(t, "b", "")
	p.addNode(t, "c", "7")
	stop := candidate(t, p.own, "one")
	p.wantIDs(t, 60*time.Second, "b=1 c=7")
	for _, name := range []string{"a", "d", "e", "f"} {
		p.addNode(t, name, "")
	}
	soon(t, 30*time.Second, func() string {
		got := map[string]bool{}
		for _, w := range strings.Fields(p.ids(t)) {
			_, id, _ := strings.Cut(w, "=")
			got[id] = true
		}
		for _, id := range []string{"1", "2", "3", "4", "5", "7"} {
			if !got[id] {
				return "node IDs are " + p.ids(t)
			}
		}
		return ""
	})
	before := p.ids(t)

	c, err := p.client.CoreV1().Nodes().Get(t.Context(), "c", metav1.GetOptions{})
	noError(t, err)
	soon(t, 5*time.Second, func() string { // timestamps have a resolution of one second, within which the UID decides
		if time.Since(c.CreationTimestamp.Time) < 2*time.Second {
			return "c and g would be of the same age"
		}
		return ""
	})
	p.addNode(t, "g", "7") // another Node has an ID that is in use
	p.wantIDs(t, 30*time.Second, before+" g=6")
	p.addNode(t, "h", "seven") // and one has an invalid ID
	p.wantIDs(t, 30*time.Second, before+" g=6 h=8")
	p.removeNode(t, "c")
	p.addNode(t, "i", "")
	p.wantIDs(t, 30*time.Second, strings.Replace(before, "c=7 ", "", 1)+" g=6 h=8 i=7")
	n, err := p.client.CoreV1().Nodes().Get(t.Context(), "i", metav1.GetOptions{})
	noError(t, err)
	if n.Annotations["other"] != "stays" {
		t.Errorf("annotations are %v", n.Annotations)
	}

	// Another controller changes nothing.
	before = p.ids(t)
	stop()
	if got := p.holder(t); got != "" {
		t.Errorf("the Lease was not given back: %s has it", got)
	}
	stop = candidate(t, p.own, "two")
	p.addNode(t, "j", "")
	p.wantIDs(t, 60*time.Second, before+" j=9")
	stop()
	for _, w := range strings.Fields(p.ids(t)) {
		name, _, _ := strings.Cut(w, "=")
		p.removeNode(t, name)
	}
}

// testNodeIDsAtOnce checks many new nodes, of which most cannot be written for a while, and one
// write fails. The others get their IDs meanwhile, and these get theirs later. No ID is sent for
// two nodes.
func testNodeIDsAtOnce(t *testing.T, p *controlPlane) {
	const hang, nodes = 15, 24
	name := func(i int) string { return fmt.Sprintf("m%02d", i) }
	for i := range nodes {
		p.addNode(t, name(i), "")
		defer p.removeNode(t, name(i))
	}
	w := &nodeWrites{hangs: map[string]bool{}, fails: map[string]bool{name(hang): true}, ids: map[string]string{},
		goOn: make(chan struct{})}
	for i := range hang {
		w.hangs[name(i)] = true
	}
	defer candidate(t, p.connect(t, func(c *rest.Config) {
		c.Wrap(func(next http.RoundTripper) http.RoundTripper {
			w.next = next
			return w
		})
	}), "one")()
	without := func(first int) func() string {
		return func() string {
			var missing []string
			for _, x := range strings.Fields(p.ids(t)) {
				if n, id, _ := strings.Cut(x, "="); n >= name(first) && id == "" {
					missing = append(missing, n)
				}
			}
			return strings.Join(missing, " ")
		}
	}
	soon(t, 60*time.Second, without(hang+1))
	close(w.goOn)
	soon(t, 60*time.Second, without(0))
	w.mu.Lock()
	defer w.mu.Unlock()
	owners := map[string]string{}
	for n, id := range w.ids {
		if owners[id] != "" {
			t.Errorf("%s and %s got %s", n, owners[id], id)
		}
		owners[id] = n
	}
}

// nodeWrites changes a client's writes of Nodes: some hang until they are released, and the first
// of some others fails.
type nodeWrites struct {
	next  http.RoundTripper
	hangs map[string]bool
	goOn  chan struct{}

	mu    sync.Mutex
	fails map[string]bool
	ids   map[string]string // sent IDs by node
}

func (w *nodeWrites) RoundTrip(r *http.Request) (*http.Response, error) {
	name, ok := strings.CutPrefix(r.URL.Path, "/api/v1/nodes/")
	if !ok || r.Method != http.MethodPatch {
		return w.next.RoundTrip(r)
	}
	if err := w.note(name, r); err != nil {
		return nil, err
	}
	if w.hangs[name] {
		select {
		case <-w.goOn:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	return w.next.RoundTrip(r)
}

// note records the ID that is sent, and fails if the write is to fail.
func (w *nodeWrites) note(name string, r *http.Request) error {
	body, err := r.GetBody()
	if err != nil {
		return err
	}
	var patch struct{ Metadata metav1.ObjectMeta }
	if err := json.NewDecoder(body).Decode(&patch); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	id := patch.Metadata.Annotations[annotation.NodeID]
	if before := w.ids[name]; before != "" && before != id {
		return fmt.Errorf("%s had %s and is to get %s", name, before, id)
	}
	w.ids[name] = id
	if w.fails[name] {
		delete(w.fails, name)
		return errors.New("this write fails")
	}
	return nil
}

// testProblems checks Events on the objects: once each, with the fields that `kubectl describe`
// uses.
func testProblems(t *testing.T, p *controlPlane) {
	core, slices := p.client.CoreV1(), p.client.DiscoveryV1().EndpointSlices("default")
	_, err := core.Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "multicast"},
		Spec:       corev1.ServiceSpec{ExternalIPs: []string{"239.1.1.1"}, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	noError(t, err)
	orphan := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "orphan",
			Labels: map[string]string{discoveryv1.LabelServiceName: "nobody"}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	orphan, err = slices.Create(t.Context(), orphan, metav1.CreateOptions{})
	noError(t, err)
	_, err = core.Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "odd",
			Annotations: map[string]string{annotation.HostCIDRs: "nonsense"}},
	}, metav1.CreateOptions{})
	noError(t, err)
	defer p.removeNode(t, "odd")
	candidate(t, p.own, "one")

	// A slice that exists before its Service is no problem.
	early := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "early", Labels: map[string]string{discoveryv1.LabelServiceName: "late"}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	_, err = slices.Create(t.Context(), early, metav1.CreateOptions{})
	noError(t, err)
	_, err = core.Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "late"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	noError(t, err)

	want := map[string]string{
		"EndpointSlice/default/orphan": "metadata.labels[kubernetes.io/service-name]: there is no " +
			"Service/default/nobody",
		"Service/default/multicast": "spec.externalIPs[0]: 239.1.1.1 is a multicast address, which other " +
			"machines cannot reach",
		"Node//odd": "metadata.annotations[k8s.ovn.org/host-cidrs]: not a JSON list of strings: " +
			"invalid character 'o' in literal null (expecting 'u')",
	}
	events := func() map[string]corev1.Event {
		list, err := core.Events("").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=HairpinProblem"})
		noError(t, err)
		out := map[string]corev1.Event{}
		for _, e := range list.Items {
			o := e.InvolvedObject
			key := o.Kind + "/" + o.Namespace + "/" + o.Name
			if _, twice := out[key]; twice || e.Count != 1 {
				t.Errorf("%s was reported more than once: %s", key, e.Message)
			}
			out[key] = e
		}
		return out
	}
	soon(t, 90*time.Second, func() string {
		got := events()
		for key, message := range want {
			if got[key].Message != message {
				return fmt.Sprintf("%s has the event %q", key, got[key].Message)
			}
		}
		return ""
	})
	got := events()
	if len(got) != len(want) {
		t.Errorf("there are %d events: %v", len(got), got)
	}
	e := got["EndpointSlice/default/orphan"]
	if e.InvolvedObject.UID != orphan.UID || e.InvolvedObject.APIVersion != "discovery.k8s.io/v1" ||
		e.Type != corev1.EventTypeWarning ||
		e.Source.Component != "hairpin-controller" || e.Namespace != "default" {
		t.Errorf("the event is %+v", e)
	}
}

func testOneLeader(t *testing.T, p *controlPlane) {
	stopOne := candidate(t, p.own, "one")
	soon(t, 60*time.Second, func() string { return differs(p.holder(t), "one") })
	candidate(t, p.own, "two")
	p.addNode(t, "a", "")
	p.wantIDs(t, 30*time.Second, "a=1")
	if got := p.holder(t); got != "one" {
		t.Errorf("%q leads", got)
	}
	begin := time.Now()
	stopOne() // releases the Lease
	p.addNode(t, "b", "")
	p.wantIDs(t, 60*time.Second, "a=1 b=2")
	t.Logf("the other took over after %s", time.Since(begin).Round(time.Millisecond))
	p.removeNode(t, "a")
	p.removeNode(t, "b")
}

func differs(got, want string) string {
	if got != want {
		return fmt.Sprintf("%q, not %q", got, want)
	}
	return ""
}

// testLeaderCutOff checks that a leader that cannot reach the API stops, and the other takes over.
// When it can reach the API again, it does not lead.
func testLeaderCutOff(t *testing.T, p *controlPlane) {
	var cut atomic.Bool
	candidate(t, p.connect(t, by(&cut)), "one")
	soon(t, 60*time.Second, func() string { return differs(p.holder(t), "one") })
	candidate(t, p.own, "two")
	cut.Store(true)
	begin := time.Now()
	soon(t, 120*time.Second, func() string { return differs(p.holder(t), "two") })
	t.Logf("the other took over after %s", time.Since(begin).Round(time.Millisecond))
	cut.Store(false)
	p.addNode(t, "a", "")
	p.wantIDs(t, 60*time.Second, "a=1")
	if got := p.holder(t); got != "two" {
		t.Errorf("%q leads", got)
	}
	p.removeNode(t, "a")
}

// testLeaderKilled runs the real program twice, and kills the leader.
func testLeaderKilled(t *testing.T, p *controlPlane) {
	hairpin, err := lab.BuildHairpin(t.Context())
	noError(t, err)
	var both [2]*process
	dir := t.TempDir()
	file := filepath.Join(dir, "kubeconfig")
	noError(t, clientcmd.WriteToFile(chart.Kubeconfig(p.pod), file))
	for i := range both {
		both[i] = &process{cmd: p.host.Command(t.Context(), hairpin, "controller", "--run-dir", dir, "--kubeconfig",
			file)}
		both[i].start(t)
	}
	leader := func() *process {
		for _, c := range both {
			if c.said("msg=leading") {
				return c
			}
		}
		return nil
	}
	soon(t, 90*time.Second, func() string {
		if leader() == nil {
			return "none leads"
		}
		return ""
	})
	p.addNode(t, "a", "")
	p.wantIDs(t, 60*time.Second, "a=1")
	first, name := leader(), p.holder(t)
	first.kill(t)
	begin := time.Now()
	p.addNode(t, "b", "")
	p.wantIDs(t, 120*time.Second, "a=1 b=2")
	t.Logf("the other took over after %s", time.Since(begin).Round(time.Millisecond))
	if p.holder(t) == name {
		t.Errorf("%s was killed and leads", name)
	}
}

// process is a program in the host's namespaces, with its output.
type process struct {
	cmd *exec.Cmd
	mu  sync.Mutex
	log strings.Builder
}

// Write collects the log.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

func (p *process) said(words string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Contains(p.log.String(), words)
}

func (p *process) start(t *testing.T) {
	t.Helper()
	p.cmd.Stderr = p
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // nsenter and its child processes
	noError(t, p.cmd.Start())
	t.Cleanup(func() {
		p.kill(t)
		if t.Failed() {
			t.Logf("log of %d:\n%s", p.cmd.Process.Pid, p.log.String())
		}
	})
}

// kill simulates a crash.
func (p *process) kill(t *testing.T) {
	t.Helper()
	if p.cmd.ProcessState != nil {
		return
	}
	noError(t, syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL))
	_ = p.cmd.Wait() // it was killed
}
