package lab_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"hairpin/lab"
)

// kubeCache is the lab's cache of programs and images that take long to build.
const kubeCache = "/var/cache/hairpin"

// TestAPIServer tests the real control plane: a Node and a Pod without a kubelet, a Service that
// selects the Pod, and a restart that keeps all objects.
func TestAPIServer(t *testing.T) {
	ctx := t.Context()
	address := netip.MustParseAddr("172.18.0.10")
	cfg := lab.APIServerConfig{
		Binary: buildKube(t), Dir: t.TempDir(), Address: address, Netns: newNetns(t, netip.PrefixFrom(address, 16)),
		Nodes: []string{"node-a"}, DieWithCaller: true,
	}
	server, client := startAPIServer(t, cfg)

	version, err := client.Discovery().ServerVersion()
	check(t, err)
	if version.GitVersion != "v1.37.1" {
		t.Errorf("the server calls itself %s", version.GitVersion)
	}
	makeNode(t, client, "node-a")
	makeReadyPod(t, client, "web-0", "10.244.0.5", "fd00:10:244::5")
	makeService(t, client, "web")
	wantSlices(t, client, "web", map[string]string{"IPv4": "10.244.0.5", "IPv6": "fd00:10:244::5"})
	wantNodeIdentity(t, server, cfg, "system:node:node-a")

	// A watch is open while the server stops, as with an agent.
	watch, err := client.CoreV1().Services("").Watch(ctx, metav1.ListOptions{})
	check(t, err)
	defer watch.Stop()
	begin := time.Now()
	check(t, server.Stop())
	t.Logf("stopped in %s", time.Since(begin).Round(time.Millisecond))
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", server.PID())); err == nil {
		t.Errorf("process %d is still there", server.PID())
	}
	check(t, server.Stop()) // a second time

	cfg.DieWithCaller = false
	_, client = startAPIServer(t, cfg)
	wantSlices(t, client, "web", map[string]string{"IPv4": "10.244.0.5", "IPv6": "fd00:10:244::5"})
	found, err := lab.OpenAPIServer(cfg.Dir)
	check(t, err)
	check(t, found.Stop())
	if _, err := lab.OpenAPIServer(cfg.Dir); err == nil {
		t.Error("a stopped server was found again")
	}
}

// TestAPIServerCannotStart checks that a failed start returns soon, with the reason in the error.
func TestAPIServerCannotStart(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, err := lab.StartAPIServer(ctx, lab.APIServerConfig{
		Binary: buildKube(t), Dir: t.TempDir(), Address: netip.MustParseAddr("127.0.0.1"), DieWithCaller: true,
	})
	if err == nil || !strings.Contains(err.Error(), "cannot advertise a loopback") {
		t.Errorf("error is %v", err)
	}
}

// TestBuildKubeTwice calls BuildKube twice at once; both calls return the same binary.
func TestBuildKubeTwice(t *testing.T) {
	buildKube(t)
	var got [2]string
	var wg sync.WaitGroup
	begin := time.Now()
	for i := range got {
		wg.Go(func() {
			var err error
			if got[i], err = lab.BuildKube(t.Context(), kubeCache, nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got[0] == "" || got[0] != got[1] {
		t.Errorf("got %q", got)
	}
	t.Logf("found the built binary in %s", time.Since(begin).Round(time.Millisecond))
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually polls until done returns no missing text; on a timeout, that text is the message.
func eventually(t *testing.T, what string, done func() (missing string, err error)) {
	t.Helper()
	var missing string
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		var err error
		if missing, err = done(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if missing == "" {
			return
		}
	}
	t.Fatalf("%s: still %s after 30 s", what, missing)
}

func buildKube(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for network namespaces")
	}
	begin := time.Now()
	binary, err := lab.BuildKube(t.Context(), kubeCache, func(line string) { t.Log(line) })
	check(t, err)
	t.Logf("binary after %s", time.Since(begin).Round(time.Millisecond))
	return binary
}

// newNetns makes a network namespace with an address on a veth pair (this needs no kernel module
// that a small kernel may lack) and returns a path that is valid while the test runs.
func newNetns(t *testing.T, address netip.Prefix) string {
	t.Helper()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	home, err := netns.Get()
	check(t, err)
	defer func() { _ = home.Close() }()
	made, err := netns.New() // and enters it
	check(t, err)
	t.Cleanup(func() { _ = made.Close() }) // the last reference: the kernel removes it with all its links
	defer func() { check(t, netns.Set(home)) }()

	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eth0"}, PeerName: "eth0-peer"}
	check(t, netlink.LinkAdd(veth))
	ip, err := netlink.ParseAddr(address.String())
	check(t, err)
	check(t, netlink.AddrAdd(veth, ip))
	for _, name := range []string{"eth0", "eth0-peer"} {
		link, err := netlink.LinkByName(name)
		check(t, err)
		check(t, netlink.LinkSetUp(link))
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(made))
}

func startAPIServer(t *testing.T, cfg lab.APIServerConfig) (*lab.APIServer, kubernetes.Interface) {
	t.Helper()
	begin := time.Now()
	server, err := lab.StartAPIServer(t.Context(), cfg)
	check(t, err)
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", server.PID()))
	check(t, err)
	_, rss, _ := strings.Cut(string(status), "VmRSS:")
	rss, _, _ = strings.Cut(rss, "\n")
	t.Logf("ready in %s, RSS %s", time.Since(begin).Round(time.Millisecond), strings.TrimSpace(rss))
	rest, err := server.RESTConfig()
	check(t, err)
	client, err := kubernetes.NewForConfig(rest)
	check(t, err)
	return server, client
}

// makeNode creates a Node and sets the status that its kubelet would report, then waits for the
// reaction of the controllers.
func makeNode(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	nodes := client.CoreV1().Nodes()
	_, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	check(t, err)
	status := `{"status":{"capacity":{"cpu":"4","memory":"8Gi","pods":"110"},"allocatable":{"cpu":"4","memory":"8Gi","pods":"110"},
		"conditions":[{"type":"Ready","status":"True","reason":"KubeletReady"}],
		"addresses":[{"type":"InternalIP","address":"172.18.0.2"}]}}`
	_, err = nodes.Patch(t.Context(), name, types.StrategicMergePatchType, []byte(status), metav1.PatchOptions{},
		"status")
	check(t, err)
	eventually(t, "Node "+name, func() (string, error) {
		n, err := nodes.Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && (len(n.Spec.Taints) > 0 || len(n.Spec.PodCIDRs) < 2) {
			return fmt.Sprintf("taints %v, podCIDRs %v", n.Spec.Taints, n.Spec.PodCIDRs), nil
		}
		return "", err
	})
	n, err := nodes.Get(t.Context(), name, metav1.GetOptions{})
	check(t, err)
	if got := strings.Join(n.Spec.PodCIDRs, " "); got != "10.244.0.0/24 fd00:10:244::/64" {
		t.Errorf("podCIDRs of %s are %s", name, got)
	}
}

// makeReadyPod creates a Pod, waits until the scheduler has bound it, and sets the status that its
// kubelet would report.
func makeReadyPod(t *testing.T, client kubernetes.Interface, name, ip4, ip6 string) {
	t.Helper()
	pods := client.CoreV1().Pods("default")
	_, err := pods.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "web"}}},
	}, metav1.CreateOptions{})
	check(t, err)
	eventually(t, "Pod "+name, func() (string, error) {
		p, err := pods.Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && p.Spec.NodeName == "" {
			return fmt.Sprintf("unbound, conditions %v", p.Status.Conditions), nil
		}
		return "", err
	})
	status := fmt.Sprintf(`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}],
		"podIP":%q,"podIPs":[{"ip":%q},{"ip":%q}]}}`, ip4, ip4, ip6)
	_, err = pods.Patch(t.Context(), name, types.StrategicMergePatchType, []byte(status), metav1.PatchOptions{},
		"status")
	check(t, err)
}

func makeService(t *testing.T, client kubernetes.Interface, name string) {
	t.Helper()
	both := corev1.IPFamilyPolicyRequireDualStack
	s, err := client.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "web"}, IPFamilyPolicy: &both, Type: corev1.ServiceTypeNodePort,
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080),
				Protocol: corev1.ProtocolTCP}},
		},
	}, metav1.CreateOptions{})
	check(t, err)
	ranges := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:10:96::/112")}
	if len(s.Spec.ClusterIPs) != len(ranges) || s.Spec.Ports[0].NodePort == 0 {
		t.Fatalf("Service has cluster IPs %v and ports %v", s.Spec.ClusterIPs, s.Spec.Ports)
	}
	for i, ip := range s.Spec.ClusterIPs {
		if !ranges[i].Contains(netip.MustParseAddr(ip)) {
			t.Errorf("cluster IP %s is not in %s", ip, ranges[i])
		}
	}
}

// wantSlices waits until the Service's EndpointSlices have just these ready addresses, by family.
func wantSlices(t *testing.T, client kubernetes.Interface, service string, want map[string]string) {
	t.Helper()
	eventually(t, "EndpointSlices of "+service, func() (string, error) {
		list, err := client.DiscoveryV1().EndpointSlices("default").List(t.Context(),
			metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
		if err != nil {
			return "", err
		}
		got := map[string]string{}
		for _, s := range list.Items {
			for _, e := range s.Endpoints {
				if *e.Conditions.Ready && *e.NodeName == "node-a" && *s.Ports[0].Port == 8080 {
					got[string(s.AddressType)] += strings.Join(e.Addresses, " ")
				}
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			return fmt.Sprint(got), nil
		}
		return "", nil
	})
}

// wantNodeIdentity checks that the server recognizes the owner of a Node's token.
func wantNodeIdentity(t *testing.T, server *lab.APIServer, cfg lab.APIServerConfig, user string) {
	t.Helper()
	node, err := clientcmd.BuildConfigFromFlags("", filepath.Join(cfg.Dir, "node-"+cfg.Nodes[0]+".kubeconfig"))
	check(t, err)
	admin, err := server.RESTConfig()
	check(t, err)
	node.Dial = admin.Dial
	client, err := kubernetes.NewForConfig(node)
	check(t, err)
	who, err := client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(),
		&authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	check(t, err)
	if got := who.Status.UserInfo; got.Username != user ||
		!strings.Contains(strings.Join(got.Groups, " "), "system:nodes") {
		t.Errorf("the token of %s belongs to %v", user, got)
	}
}
