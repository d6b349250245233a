package agent_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"hairpin/image"
	"hairpin/lab"
	"hairpin/ovsdb"
)

// world is one node, an API server and many Services with two endpoints each.
type world struct {
	b      *testing.B
	node   *lab.Node
	client kubernetes.Interface
	nb     *ovsdb.Client
	slices []*discoveryv1.EndpointSlice
}

const worldConfig = "/etc/hairpin/hairpin.conf"

func must(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// newWorld starts everything except the agent.
func newWorld(b *testing.B, services int) *world {
	b.Helper()
	ctx := b.Context()
	kube, err := lab.BuildKube(ctx, image.DefaultDir, func(string) {})
	must(b, err)
	binary := filepath.Join(b.TempDir(), "hairpin")
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, "hairpin/cmd/hairpin")
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("build: %v\n%s", err, out)
	}
	l := lab.Start(b, lab.Config{})
	p := netip.MustParsePrefix
	host, err := l.StartHost(ctx, lab.HostConfig{Name: "api", Addresses: []netip.Prefix{p("172.18.0.10/16")}})
	must(b, err)
	server, err := lab.StartAPIServer(ctx, lab.APIServerConfig{
		Binary: kube, Dir: l.APIServerDir(), Address: host.Addresses()[0].Addr(), Netns: host.Netns(),
		DieWithCaller: true,
	})
	must(b, err)
	b.Cleanup(func() { _ = server.Stop() })
	config, err := server.RESTConfig()
	must(b, err)
	w := &world{b: b}
	w.client, err = kubernetes.NewForConfig(config)
	must(b, err)
	kubeconfig, err := os.ReadFile(server.Kubeconfig())
	must(b, err)
	w.makeNode()
	w.makeServices(services)
	w.node = l.Add(b, lab.NodeConfig{
		Name: "node-a", Addresses: []netip.Prefix{p("172.18.0.3/16"), p("fc00:f853:ccd::3/64")},
		Binds: map[string]string{"/usr/local/bin/hairpin": binary, "/opt/cni/bin/hairpin": binary},
		Files: map[string]string{
			worldConfig:                  "[kubernetes]\nkubeconfig = /etc/hairpin/kubeconfig\n",
			"/etc/hairpin/kubeconfig":    string(kubeconfig),
			"/etc/cni/net.d/10.conflist": `{"cniVersion": "1.1.0", "name": "hairpin", "plugins": [{"type": "hairpin"}]}`,
		},
	})
	w.nb, err = ovsdb.Open(ovsdb.Config{
		Endpoint: "unix:" + w.node.Path("/run/ovn/ovnnb_db.sock"), Database: "OVN_Northbound",
		Tables: []ovsdb.Table{ovsdb.Mirror[balancer]("name", "vips"), ovsdb.Mirror[balancerGroup]("name"),
			ovsdb.Mirror[ovsdb.NBGlobal]("nb_cfg", "hv_cfg")},
	})
	must(b, err)
	b.Cleanup(w.nb.Close)
	must(b, w.nb.WaitSynced(ctx))
	return w
}

func (w *world) makeNode() { must(w.b, makeNode(w.b.Context(), w.client, "10.244.1.0/24")) }

// makeServices creates Services without selectors and a slice for each, eight at a time.
func (w *world) makeServices(count int) {
	w.slices = make([]*discoveryv1.EndpointSlice, count)
	next := make(chan int)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range next {
				w.slices[i] = w.makeService(i)
			}
		})
	}
	for i := range count {
		next <- i
	}
	close(next)
	wg.Wait()
}

func (w *world) makeService(i int) *discoveryv1.EndpointSlice {
	ctx := context.Background()
	name := fmt.Sprintf("s%05d", i)
	_, err := w.client.CoreV1().Services("default").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{ClusterIP: fmt.Sprintf("10.96.%d.%d", 64+i/250, 1+i%250),
			Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		panic(err) // not on the benchmark's goroutine
	}
	port := int32(8080)
	s, err := w.client.DiscoveryV1().EndpointSlices("default").Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.244.1.10"}}, {Addresses: []string{"10.244.2.10"}}},
		Ports:       []discoveryv1.EndpointPort{{Port: &port}},
	}, metav1.CreateOptions{})
	if err != nil {
		panic(err)
	}
	return s
}

func (w *world) startAgent() {
	must(w.b, w.node.StartDaemon(w.b.Context(), "hairpin", "/usr/local/bin/hairpin", "node", "--config-file="+
		worldConfig))
}

func (w *world) waitReady() {
	must(w.b, w.node.WaitFor(w.b.Context(), 2*time.Minute, func(string) bool { return true }, "hairpin", "status",
		"--config-file="+worldConfig))
}

// inSwitch waits until all of the Northbound database is in the switch.
func (w *world) inSwitch() {
	ctx, cancel := context.WithTimeout(w.b.Context(), 2*time.Minute)
	defer cancel()
	_, err := w.nb.Transact(ctx, ovsdb.Mutate("NB_Global", ovsdb.Add("nb_cfg", 1)).All())
	must(w.b, err)
	want := ovsdb.First[ovsdb.NBGlobal](w.nb.View()).NBCfg
	must(w.b, w.nb.WaitFor(ctx, func(v ovsdb.View) bool { return ovsdb.First[ovsdb.NBGlobal](v).HVCfg >= want }))
}

// changeEndpoint writes one slice and returns the times until the row and until the flow.
func (w *world) changeEndpoint(i, round int) (row, flow time.Duration) {
	ctx, cancel := context.WithTimeout(w.b.Context(), time.Minute)
	defer cancel()
	s := w.slices[i].DeepCopy()
	address := fmt.Sprintf("10.244.1.%d", 20+round%200)
	s.Endpoints[0].Addresses[0] = address
	name := fmt.Sprintf("default/%s:/tcp/IPv4", s.Name)
	start := time.Now()
	s, err := w.client.DiscoveryV1().EndpointSlices("default").Update(ctx, s, metav1.UpdateOptions{})
	must(w.b, err)
	w.slices[i] = s
	must(w.b, w.nb.WaitFor(ctx, func(v ovsdb.View) bool {
		for lb := range ovsdb.Rows[balancer](v) {
			if lb.Name == name {
				for _, backends := range lb.VIPs {
					return strings.Contains(backends, address+":")
				}
			}
		}
		return false
	}))
	row = time.Since(start)
	w.inSwitch()
	return row, time.Since(start)
}

// bare measures OVN's own minimum: the time of one transaction on a load balancer that Hairpin does
// not own, to the flow.
func (w *world) bare(rounds int) []time.Duration {
	ctx := w.b.Context()
	var group ovsdb.UUID
	for g := range ovsdb.Rows[balancerGroup](w.nb.View()) {
		if g.Name == "clusterLBGroup-00" {
			group = g.UUID
		}
	}
	id := ovsdb.NewUUID()
	tcp := "tcp"
	_, err := w.nb.Transact(ctx,
		ovsdb.Insert(balancer{UUID: id, Name: "bare", Protocol: &tcp,
			VIPs: map[string]string{"10.96.1.1:80": "10.244.1.5:80"}}),
		ovsdb.Mutate("Load_Balancer_Group", ovsdb.InsertInto("load_balancer", id)).Row(group))
	must(w.b, err)
	w.inSwitch()
	var times []time.Duration
	for i := range rounds {
		start := time.Now()
		_, err := w.nb.Transact(ctx, ovsdb.Update(balancer{UUID: id,
			VIPs: map[string]string{"10.96.1.1:80": fmt.Sprintf("10.244.1.%d:80", 20+i)}}, "vips"))
		must(w.b, err)
		w.inSwitch()
		times = append(times, time.Since(start))
	}
	_, err = w.nb.Transact(ctx, ovsdb.Mutate("Load_Balancer_Group", ovsdb.DeleteFrom("load_balancer", id)).Row(group),
		ovsdb.Delete("Load_Balancer").Row(id))
	must(w.b, err)
	w.inSwitch()
	return times
}

// agentUsed returns the agent's CPU time and resident memory (now, and the most so far).
func (w *world) agentUsed() (cpu time.Duration, rss, peak float64) {
	proc := w.node.Path("/proc/" + strconv.Itoa(w.node.Pid("hairpin")))
	stat, err := os.ReadFile(proc + "/stat")
	must(w.b, err)
	f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	for _, t := range f[11:13] {
		n, err := strconv.Atoi(t)
		must(w.b, err)
		cpu += time.Duration(n) * 10 * time.Millisecond // USER_HZ is 100
	}
	status, err := os.ReadFile(proc + "/status")
	must(w.b, err)
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		kb, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(value), " kB"))
		switch name {
		case "VmRSS":
			rss = float64(kb) / 1024
		case "VmHWM":
			peak = float64(kb) / 1024
		}
	}
	return cpu, rss, peak
}

func quantile(list []time.Duration, q float64) float64 {
	slices.Sort(list)
	return float64(list[int(q*float64(len(list)-1))].Microseconds()) / 1000
}

// BenchmarkEndpoint changes one endpoint of one Service, with 1 000 Services there. It measures
// from the write to the API until the row is in the Northbound database, and until the flow is in
// the switch. The same run measures the bare transaction to the same flow. Package lab/bench
// measures what a client sees, with up to 10 000 Services and in comparison with kube-proxy.
func BenchmarkEndpoint(b *testing.B) {
	const services = 1000
	w := newWorld(b, services)
	start := time.Now()
	w.startAgent()
	ctx, cancel := context.WithTimeout(b.Context(), 3*time.Minute)
	defer cancel()
	must(b, w.nb.WaitFor(ctx, func(v ovsdb.View) bool { return ovsdb.Len[balancer](v) > services }))
	wall := time.Since(start)
	cpu, _, _ := w.agentUsed()
	w.waitReady()
	w.inSwitch()
	b.ReportMetric(wall.Seconds(), "cold-start-to-rows-s")
	b.ReportMetric(cpu.Seconds(), "cold-start-agent-cpu-s")

	const rounds = 40
	w.bare(5)
	bare := w.bare(rounds)
	var rows, flows []time.Duration
	for i := range rounds {
		row, flow := w.changeEndpoint((i*37)%services, i)
		rows, flows = append(rows, row), append(flows, flow)
	}
	b.ReportMetric(quantile(bare, 0.5), "bare-to-flow-p50-ms")
	b.ReportMetric(quantile(flows, 0.5), "api-to-flow-p50-ms")
	b.ReportMetric(quantile(flows, 0.99), "api-to-flow-p99-ms")
	b.ReportMetric(quantile(rows, 0.5), "api-to-row-p50-ms")
	b.ReportMetric(quantile(flows, 0.5)-quantile(bare, 0.5), "added-p50-ms")
	b.ReportMetric(quantile(flows, 0.5)/quantile(bare, 0.5), "ratio")
	_, rss, peak := w.agentUsed()
	b.ReportMetric(rss, "agent-rss-MB")
	b.ReportMetric(peak, "agent-rss-peak-MB")
	b.ReportMetric(0, "ns/op")
}

// balancer is a row of Load_Balancer.
type balancer struct {
	UUID     ovsdb.UUID        `ovsdb:"_uuid"`
	Name     string            `ovsdb:"name"`
	VIPs     map[string]string `ovsdb:"vips"`
	Protocol *string           `ovsdb:"protocol"`
}

func (balancer) Table() string { return "Load_Balancer" }

// balancerGroup is a row of Load_Balancer_Group.
type balancerGroup struct {
	UUID ovsdb.UUID `ovsdb:"_uuid"`
	Name string     `ovsdb:"name"`
}

func (balancerGroup) Table() string { return "Load_Balancer_Group" }
