package nbdb_test

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"hairpin/apply/nbdb"
	"hairpin/cluster"
	"hairpin/datapath/nb"
	"hairpin/lab"
)

// services returns n load balancers with two backends in the groups of a small topology.
func services(n int) nb.State {
	owner := cluster.Owner{Kind: "Node", Name: "node-a"}
	s := nb.State{}
	s.Add(&nb.Group{Name: "g", Owner: owner}, &nb.Switch{Name: "node-a", Groups: []string{"g"}, Owner: owner},
		&nb.Router{Name: "GR_node-a", Groups: []string{"g"}, Owner: owner})
	for i := range n {
		s.Add(service(i, 1))
	}
	return s
}

func service(i, backend int) *nb.LoadBalancer {
	a := func(net byte, i int) netip.Addr { return netip.AddrFrom4([4]byte{10, net, byte(i >> 8), byte(i)}) }
	return &nb.LoadBalancer{
		Name: fmt.Sprintf("default/service-%d:http/tcp/IPv4", i), Protocol: cluster.TCP,
		VIPs: []nb.VIP{{Addr: netip.AddrPortFrom(a(96, i), 80), Backends: []netip.AddrPort{
			netip.AddrPortFrom(a(200, backend), 8080), netip.AddrPortFrom(a(244, i), 8080)}}},
		Options: map[string]string{"reject": "true", "hairpin_snat_ip": "169.254.169.5 fd69::5"}, Groups: []string{"g"},
		Owner: cluster.Owner{Kind: "Service", Namespace: "default", Name: fmt.Sprintf("service-%d", i)},
	}
}

// databases starts a node with only its two databases, so that no other program takes time.
func databases(b *testing.B) *lab.Node {
	return lab.StartNode(b, lab.NodeConfig{Daemons: []string{lab.NB, lab.SB}})
}

func must(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// BenchmarkWrite10000 measures a cold start. ms/ours excludes the time of the bare transaction.
func BenchmarkWrite10000(b *testing.B) {
	target := open(b, databases(b))
	for b.Loop() {
		want := services(10000)
		have, err := target.Read(b.Context())
		must(b, err)
		begin := time.Now()
		d := nb.Diff(want, have)
		ops, client := target.Raw(d)
		compiled := time.Since(begin)
		begin = time.Now()
		_, err = client.Transact(b.Context(), ops...)
		must(b, err)
		raw := time.Since(begin)
		b.ReportMetric(float64(compiled.Milliseconds()), "ms/compile")
		b.ReportMetric(float64(raw.Milliseconds()), "ms/transaction")
		reach(b, target, nil)
		begin = time.Now()
		must(b, target.Apply(b.Context(), d))
		b.ReportMetric(float64(time.Since(begin).Milliseconds()), "ms/Apply")
		reach(b, target, nil)
	}
}

// work reports a thread's CPU time per iteration, which depends less on other load.
func work(b *testing.B) func() {
	runtime.LockOSThread()
	used := func() time.Duration {
		var u unix.Rusage
		must(b, unix.Getrusage(unix.RUSAGE_THREAD, &u))
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	begin := used()
	return func() {
		b.ReportMetric(float64((used()-begin).Microseconds())/float64(b.N), "µs-worked/op")
		runtime.UnlockOSThread()
	}
}

// BenchmarkRead20000 measures the first Read of a new agent, when the mirror is complete.
func BenchmarkRead20000(b *testing.B) {
	target := open(b, databases(b))
	reach(b, target, services(20000))
	defer work(b)()
	for b.Loop() {
		if rows := target.Remodel(); rows < 20000 {
			b.Fatal(rows)
		}
	}
}

// loaded writes 10 000 load balancers and reads them back.
func loaded(b *testing.B) (*nbdb.Target, nb.State) {
	target := open(b, databases(b))
	want := services(10000)
	reach(b, target, want)
	have, err := target.Read(b.Context())
	must(b, err)
	if d := nb.Diff(want, have); !d.Empty() {
		b.Fatal(d)
	}
	return target, want
}

// BenchmarkDiff10000 compares plan's State with the one read back, after one load balancer changed.
func BenchmarkDiff10000(b *testing.B) {
	target, want := loaded(b)
	want.Add(service(7, 2))
	have, err := target.Read(b.Context())
	must(b, err)
	defer work(b)()
	for b.Loop() {
		if d := nb.Diff(want, have); d.Count() != 1 {
			b.Fatal(d)
		}
	}
}

// BenchmarkEndpoint measures one changed endpoint among 10 000 load balancers: Diff, Apply and the
// next Read, and the bare transaction. The results are medians.
func BenchmarkEndpoint(b *testing.B) {
	target, want := loaded(b)
	have, err := target.Read(b.Context())
	must(b, err)
	var diff, all, after, raw []time.Duration
	i := 0
	for b.Loop() {
		i++
		want.Add(service(i%10000, 2+i))
		t0 := time.Now()
		d := nb.Diff(want, have)
		t1 := time.Now()
		must(b, target.Apply(b.Context(), d))
		t2 := time.Now()
		have, err = target.Read(b.Context())
		must(b, err)
		t3 := time.Now()
		diff, all, after = append(diff, t1.Sub(t0)), append(all, t2.Sub(t1)), append(after, t3.Sub(t2))

		want.Add(service(i%10000, 20002+i))
		ops, client := target.Raw(nb.Diff(want, have))
		t4 := time.Now()
		_, err = client.Transact(b.Context(), ops...)
		must(b, err)
		raw = append(raw, time.Since(t4))
		have, err = target.Read(b.Context())
		must(b, err)
	}
	median := func(list []time.Duration) float64 {
		slices.Sort(list)
		return float64(list[len(list)/2].Microseconds())
	}
	b.ReportMetric(median(diff), "µs/Diff")
	b.ReportMetric(median(all), "µs/Apply")
	b.ReportMetric(median(after), "µs/Read")
	b.ReportMetric(median(raw), "µs/transaction")
}
