package watch_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"hairpin/cluster"
	"hairpin/kubeapi"
	"hairpin/lab"
	"hairpin/watch"
)

// childEnv names the API server's folder to the child process whose memory is measured.
const childEnv = "HAIRPIN_WATCH_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		child(dir)
		return
	}
	os.Exit(m.Run())
}

// cost is the cost of watching in a process.
type cost struct {
	Frontends int
	First     time.Duration // until the first Snapshot
	Peak      int           // MiB of memory, at most
}

// child only watches, and writes the cost to stdout.
func child(dir string) {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	server, err := lab.OpenAPIServer(dir)
	must(err)
	config, err := server.RESTConfig()
	must(err)
	config.ContentType = "application/vnd.kubernetes.protobuf"
	client, err := kubeapi.New(config)
	must(err)
	begin := time.Now()
	snapshots, err := watch.Kube(context.Background(), client, "node-a", cluster.DefaultConfig())
	must(err)
	s := <-snapshots
	c := cost{Frontends: len(s.Frontends), First: time.Since(begin)}
	c.Peak = peak()
	must(json.NewEncoder(os.Stdout).Encode(c))
}

// peak returns the peak memory of this process, in MiB (proc(5), VmHWM).
func peak() int {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	var kib int
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		return 0
	}
	return kib >> 10
}

// BenchmarkKube: the time from an API write to its Snapshot, compared with a bare watch of the same
// object; and the cost of a start, with Services of two endpoints each.
func BenchmarkKube(b *testing.B) {
	a := startAPI(b)
	client := a.client(b)
	from := 0
	for _, n := range []int{1_000, 10_000} {
		fill(b, client, from, n)
		from = n
		b.Run(fmt.Sprintf("services=%d/change", n), func(b *testing.B) { benchmarkChange(b, client, a.agent(b)) })
		b.Run(fmt.Sprintf("services=%d/start", n), func(b *testing.B) { benchmarkStart(b, a, n) })
	}
}

// fill creates Services from..to with a slice each.
func fill(b testing.TB, client kubernetes.Interface, from, to int) {
	b.Helper()
	begin := time.Now()
	work := make(chan int)
	var wg sync.WaitGroup
	for range 100 { // the API server delays a Service by 100 ms, and then creates many at once
		wg.Go(func() {
			for i := range work {
				name := fmt.Sprintf("service-%05d", i)
				_, err := client.CoreV1().Services("default").Create(b.Context(), &corev1.Service{
					ObjectMeta: metav1.ObjectMeta{Name: name},
					Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
				}, metav1.CreateOptions{})
				if err == nil {
					_, err = client.DiscoveryV1().EndpointSlices("default").Create(b.Context(), sliceOf(name, i, 0),
						metav1.CreateOptions{})
				}
				if err != nil {
					b.Error(err)
				}
			}
		})
	}
	for i := from; i < to; i++ {
		work <- i
	}
	close(work)
	wg.Wait()
	b.Logf("%d Services made in %s", to-from, time.Since(begin).Round(time.Second))
}

func sliceOf(name string, i, turn int) *discoveryv1.EndpointSlice {
	port, portName, node := int32(8080), "http", "node-a"
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name + "-x7x7x",
			Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Port: &port}},
	}
	for _, a := range []string{fmt.Sprintf("10.244.%d.%d", i/250, i%250),
		fmt.Sprintf("10.245.%d.%d", turn/250%250, turn%250)} {
		s.Endpoints = append(s.Endpoints,
			discoveryv1.Endpoint{Addresses: []string{a}, NodeName: &node,
				TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: name}})
	}
	return s
}

// changes is the number of writes in one measurement.
const changes = 200

func benchmarkChange(b *testing.B, client kubernetes.Interface, agent *kubeapi.Client) {
	api := client.DiscoveryV1().EndpointSlices("default")
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	snapshots, err := watch.Kube(ctx, agent, "node-a", cluster.DefaultConfig())
	check(b, err)
	<-snapshots
	bare, err := api.Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=service-00000-x7x7x"})
	check(b, err)
	defer bare.Stop()
	var toEvent, toSnapshot []time.Duration
	for b.Loop() {
		for range changes {
			o := sliceOf("service-00000", 0, int(time.Now().UnixMilli()%62_500))
			want := o.Endpoints[1].Addresses[0]
			seen := make(chan time.Time, 1)
			go func() {
				for e := range bare.ResultChan() {
					if s, is := e.Object.(*discoveryv1.EndpointSlice); is && s.Endpoints[1].Addresses[0] == want {
						seen <- time.Now()
						return
					}
				}
			}()
			begin := time.Now()
			_, err := api.Update(b.Context(), o, metav1.UpdateOptions{})
			check(b, err)
			for s := range snapshots {
				if firstHas(s, want) {
					break
				}
			}
			toSnapshot = append(toSnapshot, time.Since(begin))
			toEvent = append(toEvent, (<-seen).Sub(begin))
		}
	}
	slices.Sort(toEvent)
	slices.Sort(toSnapshot)
	event, snapshot := toEvent[len(toEvent)/2], toSnapshot[len(toSnapshot)/2]
	b.ReportMetric(float64(event.Microseconds()), "µs-to-bare-event")
	b.ReportMetric(float64(snapshot.Microseconds()), "µs-to-snapshot")
	b.ReportMetric(float64(snapshot)/float64(event), "x-bare-event")
}

// firstHas reports whether the first Service has an endpoint at that address.
func firstHas(s *cluster.Snapshot, address string) bool {
	i := slices.IndexFunc(s.Frontends, func(f *cluster.Frontend) bool { return f.Owner.Name == "service-00000" })
	return slices.ContainsFunc(s.Frontends[i].Backends,
		func(e cluster.Backend) bool { return e.Addr.String() == address })
}

func benchmarkStart(b *testing.B, a *api, n int) {
	self, err := os.Executable()
	check(b, err)
	var c cost
	for b.Loop() {
		cmd := exec.CommandContext(b.Context(), self)
		cmd.Env = append(os.Environ(), childEnv+"="+a.config.Dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		check(b, err)
		check(b, json.Unmarshal(out, &c))
		if c.Frontends < n {
			b.Fatalf("%d frontends of %d", c.Frontends, n)
		}
	}
	b.ReportMetric(float64(c.First.Milliseconds()), "ms-to-first-snapshot")
	b.ReportMetric(float64(c.Peak), "MiB-peak")
}
