package demo

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"hairpin/cluster"
	"hairpin/image"
	"hairpin/lab"
	"hairpin/lab/probe"
)

// testWriter writes lines to a test's log.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSuffix(string(p), "\n"))
	return len(p), nil
}

// program builds hairpin, once.
var program = sync.OnceValues(func() (string, error) { return lab.BuildHairpin(context.Background()) })

// demos counts the demos of this process, which run in parallel: they wait most of the time.
var demos atomic.Int32

// startDemo builds hairpin and starts a demo that ends with the test.
func startDemo(t *testing.T, api string) *Demo {
	t.Helper()
	return startDemoIn(t, api, Options{TSO: true}) // as in the chart
}

// startDemoIn starts a demo in a gateway mode, with one of the paths of NodePorts and of the host
// to Services.
func startDemoIn(t *testing.T, api string, with Options) *Demo {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a lab needs root")
	}
	binary, err := program()
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("t%d-%d", os.Getpid(), demos.Add(1))
	t.Cleanup(func() {
		if err := lab.Remove(name); err != nil {
			t.Error(err)
		}
	})
	with.Name, with.Objects, with.Hairpin, with.API, with.DieWithCaller, with.Out = name, demoObjects, binary, api,
		true, testWriter{t}
	d, err := Start(t.Context(), with)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, n := range d.lab.Nodes() {
			if log, err := os.ReadFile(n.LogFile("hairpin")); err == nil && t.Failed() {
				t.Logf("end of the log of %s's agent:\n%s", n.Name(), log[max(0, len(log)-3000):])
			}
		}
	})
	return d
}

// Trials of NetworkPolicies change the policies of one pod one after another, which takes minutes.
// One demo runs all, demos in other modes run those of single packets.
var (
	noPolicyTrials  = regexp.MustCompile("^policy ")
	fewPolicyTrials = regexp.MustCompile("^policy (revoked|collusion)")
)

// checkDemo requires every case of the matrix to pass, and every trial but those left out.
func checkDemo(t *testing.T, d *Demo, without *regexp.Regexp) {
	t.Helper()
	var out bytes.Buffer
	err := Check(t.Context(), Checks{Name: d.lab.Name(), Slow: 1, Without: without, Out: &out})
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if err != nil {
		for _, l := range lines {
			if strings.Contains(l, "FAILED") {
				t.Log(l)
			}
		}
		t.Fatal(err)
	}
	least := 4 * len(Cases()) // a kernel with SCTP tries more
	for _, a := range Attacks() {
		if a.Not == nil { // some need an API server
			least++
		}
	}
	for _, x := range Trials() {
		if x.Not == nil && (without == nil || !without.MatchString(x.Name)) {
			least++
		}
	}
	var passed int
	if last := lines[len(lines)-1]; !strings.HasSuffix(last, " passed, 0 failed") {
		t.Fatalf("the last line is %q", last)
	} else if _, err := fmt.Sscanf(last, "%d passed", &passed); err != nil || passed < least {
		t.Fatalf("%d passed of %d", passed, least)
	}
}

// With a real API server, the controllers of Kubernetes create the slices and hairpin controller
// assigns the node IDs.
func TestMatrixWithAPI(t *testing.T) {
	t.Parallel()
	d := startDemo(t, Kubernetes)
	checkDemo(t, d, nil)
	replacePod(t, d)
	rollPort(t, d)
}

// rollPort replaces pods one by one, as a Deployment with maxUnavailable 0 does. The new pods have
// the named port of their Service at another number. Clients that send ten requests a second must
// see no failure.
func rollPort(t *testing.T, d *Demo) {
	t.Helper()
	ctx, nodes := t.Context(), []*lab.Node{d.lab.Node("node-b"), d.lab.Node("node-c")}
	service, err := d.Client().CoreV1().Services("default").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "rolled"}, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, Selector: map[string]string{"app": "rolled"},
			Ports: []corev1.ServicePort{{Name: "web", Port: 80, TargetPort: intstr.FromString("web")}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	start := func(n *lab.Node, port int32) *corev1.Pod {
		t.Helper()
		pod, err := d.Client().CoreV1().Pods("default").Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprintf("rolled-%s-%d", n.Name(), port), Labels: map[string]string{"app": "rolled"},
			},
			Spec: corev1.PodSpec{NodeName: n.Name(), Containers: []corev1.Container{
				{Name: "server", Image: "probe", Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: port}}},
			}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		p, err := n.RunPod(ctx, d.Client(), pod, func(p *lab.Pod) error {
			_, err := lab.Serve(ctx, p, p.Name(), uint16(port))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		pod.Status.PodIP = netip.AddrPortFrom(p.IPs()[0], uint16(port)).String()
		return pod
	}
	knows := func(pod *corev1.Pod, want bool) {
		t.Helper()
		for _, n := range d.lab.Nodes() {
			if err := WaitVIPs(ctx, n, 20*time.Second, func(vips string) bool {
				return strings.Contains(vips, pod.Status.PodIP) == want
			}); err != nil {
				t.Fatalf("%s as an endpoint: want %v: %v", pod.Status.PodIP, want, err)
			}
			// Cached flows send connections there until they are revalidated. The first of two
			// passes may have begun before the change.
			for range 2 {
				if _, err := n.Exec(ctx, "ovs-appctl", "--timeout=20", "revalidator/wait"); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	var old []*corev1.Pod
	for _, n := range nodes {
		old = append(old, start(n, 8080))
		knows(old[len(old)-1], true)
	}
	var streams []*lab.Stream
	node, nodePort := d.lab.Node("node-a").Addresses()[0].Addr(), uint16(service.Spec.Ports[0].NodePort)
	for from, to := range map[lab.Place]netip.AddrPort{
		d.lab.Host(clientName): netip.AddrPortFrom(node, nodePort),
		d.pod("pod-a1"):        netip.AddrPortFrom(netip.MustParseAddr(service.Spec.ClusterIP), 80),
	} {
		s, err := lab.StartStream(ctx, from, probe.StreamConfig{
			Protocol: "tcp", To: to, Rate: 10, Every: time.Second, Timeout: 10 * time.Second, Duration: 5 * time.Minute,
			Speak: true,
		})
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, s)
	}
	for i, n := range nodes {
		start(n, 9090)
		if err := d.Client().CoreV1().Pods("default").Delete(ctx, old[i].Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		knows(old[i], false)
		if err := n.EndPod(ctx, d.Client(), old[i]); err != nil {
			t.Fatal(err)
		}
	}
	for i, s := range streams {
		if err := lab.Flow(ctx, 10, s); err != nil {
			t.Error(err)
		}
		r, err := s.End()
		if err != nil || r.Failed > 0 || r.Opened == 0 {
			t.Errorf("client %d: %d of %d connections failed: %v %v", i, r.Failed, r.Opened, r.Errors, err)
		}
		t.Logf("client %d: %d connections, %d failed, slowest %.0f ms", i, r.Opened, r.Failed, r.SlowestMs)
	}
}

// replacePod deletes a Pod and creates it again. The Services must follow on every node.
func replacePod(t *testing.T, d *Demo) {
	t.Helper()
	ctx := t.Context()
	node, pods := d.lab.Node("node-b"), d.Client().CoreV1().Pods("default")
	pod, err := pods.Get(ctx, "pod-b2", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	knows := func(ip string, want bool) {
		t.Helper()
		for _, n := range d.lab.Nodes() {
			ok := func(vips string) bool { return strings.Contains(vips, ip+":8080") == want }
			if err := WaitVIPs(ctx, n, 20*time.Second, ok); err != nil {
				t.Fatalf("%s as an endpoint: want %v: %v", ip, want, err)
			}
		}
	}
	knows(pod.Status.PodIP, true)
	if err := node.EndPod(ctx, d.Client(), pod); err != nil {
		t.Fatal(err)
	}
	knows(pod.Status.PodIP, false)
	fresh := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Labels: pod.Labels}, Spec: corev1.PodSpec{
		NodeName: pod.Spec.NodeName, Containers: []corev1.Container{{Name: "server", Image: "probe"}},
	}}
	if fresh, err = pods.Create(ctx, fresh, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p, err := node.RunPod(ctx, d.Client(), fresh, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Check(ctx); err != nil {
		t.Error(err)
	}
	knows(p.IPs()[0].String(), true)
}

// Without an API server the same traffic passes after every process of a node was killed.
func TestMatrixWithManifests(t *testing.T) {
	t.Parallel()
	d := startDemo(t, "")
	compareSample(t, d)
	countsPasses(t, d)
	proves(t, d)
	documented(t, d.lab.Node("node-a"))
	connectionsFollow(t, d)
	everySegmentLost(t, d)
	restartEverything(t, d, d.lab.Node("node-a"))
	checkDemo(t, d, noPolicyTrials)
}

// TestMatrixInModes passes the same traffic in the other gateway modes, with the programs that
// redirect NodePorts, and with OVN's load balancers. It also covers a host that reaches Services
// through the management port, a node beside one with flows and groups, and the Open vSwitch and
// OVN of Debian 13.
func TestMatrixInModes(t *testing.T) {
	t.Parallel()
	for _, c := range []Options{
		{Mode: cluster.ModeLocal}, {Mode: cluster.ModeDetached, Engine: cluster.EngineOVN},
		{Mode: cluster.ModeDetached, NodePortPath: cluster.PathRedirect},
		{Mode: cluster.ModeLocal, Engine: cluster.EngineOVN, NodeLocal: cluster.LocalDGP},
		{Mode: cluster.ModeShared, Engine: strings.Join([]string{cluster.EngineOVN, cluster.EngineOVN,
			cluster.EngineOpenFlow}, ",")},
		{Mode: cluster.ModeShared, OVS: image.Debian13},
	} {
		t.Run(strings.Join([]string{c.Mode, c.NodePortPath, c.NodeLocal, c.Engine, c.OVS}, "/"),
			func(t *testing.T) {
				t.Parallel()
				checkDemo(t, startDemoIn(t, "", c), fewPolicyTrials)
			})
	}
}

// restartEverything kills all processes of a node and starts them again. The node must then serve,
// on an idle machine within a second.
func restartEverything(t *testing.T, d *Demo, node *lab.Node) {
	ctx := t.Context()
	names := node.DaemonNames()
	for _, name := range names {
		if err := node.Kill(ctx, name, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	begin := time.Now()
	for _, name := range names {
		if err := node.Start(ctx, name); err != nil {
			t.Fatal(err)
		}
	}
	to := netip.MustParseAddrPort("172.18.0.3:30002")
	for {
		a := lab.Get(ctx, d.lab.Host(clientName),
			probe.Request{Protocol: "tcp", To: to, Timeout: 300 * time.Millisecond})
		took := time.Since(begin)
		if a.Error == "" {
			t.Logf("served %s after the start of the first process", took.Round(time.Millisecond))
			return
		}
		if took > 30*time.Second {
			t.Fatalf("did not serve within %s: %s", took, a.Error)
		}
	}
}
