package ovsdb_test

import (
	"fmt"
	"io"
	"net"
	"runtime"
	"syscall"
	"testing"
	"time"

	"hairpin/ovsdb"
)

// raw talks to a server without this package, to measure the time of the server and the socket
// alone.
type raw struct {
	tb   testing.TB
	conn net.Conn
}

func dialRaw(tb testing.TB, s *server) *raw {
	conn, err := net.Dial("unix", s.file("s"))
	if err != nil {
		tb.Fatal(err)
	}
	return &raw{tb: tb, conn: conn}
}

// call sends a request and reads until the braces of the response balance; it ignores values.
func (r *raw) call(text string) (size int) {
	if _, err := io.WriteString(r.conn, text); err != nil {
		r.tb.Fatal(err)
	}
	buf := make([]byte, 1<<20)
	for depth := 0; ; {
		n, err := r.conn.Read(buf)
		if err != nil {
			r.tb.Fatal(err)
		}
		for _, c := range buf[:n] { // no string of these tests has a brace
			switch c {
			case '{':
				depth++
			case '}':
				depth--
			}
		}
		if size += n; depth == 0 {
			return size
		}
	}
}

// cpu returns the CPU time of this process.
func cpu() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkSync10k: the first sync of 10 000 load balancers and the switch and router that refer to
// them all, compared with the bare exchange of the same messages.
func BenchmarkSync10k(b *testing.B) {
	s := startServer(b, nbSchema)
	writer := open(b, s)
	fill(b, writer, 10000)
	var bare, busy time.Duration
	size := 0
	for b.Loop() {
		b.StopTimer()
		start := time.Now()
		r := dialRaw(b, s)
		r.call(`{"method":"get_schema","params":["OVN_Northbound"],"id":1}`)
		size = r.call(`{"method":"monitor_cond_since","params":["OVN_Northbound","x",{"NB_Global":{},"Load_Balancer":{"columns":["name","vips",` +
			`"protocol","selection_fields","options","ip_port_mappings","external_ids"]},"Logical_Switch":{},"Logical_Router":{}},` +
			`"00000000-0000-0000-0000-000000000000"],"id":2}`)
		r.conn.Close()
		bare += time.Since(start)
		was := cpu()
		b.StartTimer()
		c := openAt(b, s.endpoint, tables()...)
		b.StopTimer()
		busy += cpu() - was
		c.Close()
		b.StartTimer()
	}
	report(b, bare, busy)
	b.ReportMetric(float64(size)/1e6, "MB")
}

// report adds the time of the bare exchange, the additional time, and the CPU time of this process.
func report(b *testing.B, bare, busy time.Duration) {
	b.Helper()
	ms := func(d time.Duration) float64 { return d.Seconds() * 1e3 / float64(b.N) }
	b.ReportMetric(ms(bare), "bare-ms/op")
	b.ReportMetric(ms(b.Elapsed()-bare), "beyond-ms/op")
	b.ReportMetric(ms(b.Elapsed())/ms(bare), "ratio")
	if busy > 0 {
		b.ReportMetric(ms(busy), "cpu-ms/op")
	}
}

// BenchmarkTransact: a change of one row among 10 000 by a client that mirrors them, compared with
// the bare exchange.
func BenchmarkTransact(b *testing.B) {
	s := startServer(b, nbSchema)
	c := open(b, s, tables()...)
	fill(b, c, 10000)
	lb := *ovsdb.First[LoadBalancer](c.View())
	r := dialRaw(b, s)
	defer r.conn.Close()
	var bare time.Duration
	i := 0
	for b.Loop() {
		i++
		lb.VIPs = map[string]string{"10.96.0.1:80": fmt.Sprintf("10.244.0.%d:8080", i&255)}
		transact(b, c, ovsdb.Update(lb, "vips"))
		b.StopTimer()
		text := fmt.Sprintf(`{"method":"transact","params":["OVN_Northbound",{"op":"update","table":"Load_Balancer","where":[["_uuid","==",["uuid","%s"]]],`+
			`"row":{"vips":["map",[["10.96.0.1:80","10.245.0.%d:8080"]]]}}],"id":%d}`, lb.UUID, i&255, i)
		start := time.Now()
		r.call(text)
		bare += time.Since(start)
		b.StartTimer()
	}
	report(b, bare, 0)
}

// BenchmarkMemory20k: the memory of a mirror of 20 000 load balancers.
func BenchmarkMemory20k(b *testing.B) {
	s := startServer(b, nbSchema)
	writer := open(b, s)
	fill(b, writer, 10000)
	transact(b, writer, ovsdb.Delete("NB_Global").All())
	fill(b, writer, 10000)
	writer.Close()
	for b.Loop() {
		before := heap()
		c := openAt(b, s.endpoint, tables()...)
		b.ReportMetric(float64(heap()-before)/1e6, "MB")
		if n := ovsdb.Len[LoadBalancer](c.View()); n != 20000 {
			b.Fatal(n)
		}
		c.Close()
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkView: taking a View, finding a row, and computing changes, among 10 000 rows.
func BenchmarkView(b *testing.B) {
	c := open(b, startServer(b, nbSchema), tables()...)
	fill(b, c, 10000)
	old := c.View()
	id := rows[LoadBalancer](c)[5000].UUID
	transact(b, c, ovsdb.Mutate("Load_Balancer", ovsdb.InsertInto("options", map[string]string{"new": "x"})).Row(id))
	b.Run("get", func(b *testing.B) {
		for b.Loop() {
			if ovsdb.Get[LoadBalancer](c.View(), id) == nil {
				b.Fatal("gone")
			}
		}
	})
	b.Run("since", func(b *testing.B) {
		for b.Loop() {
			if ch := c.View().Since(old); len(ch) != 1 || len(ch[0].Changed) != 1 {
				b.Fatal(ch)
			}
		}
	})
	b.Run("rows", func(b *testing.B) {
		for b.Loop() {
			n := 0
			for range ovsdb.Rows[LoadBalancer](c.View()) {
				n++
			}
			if n != 10000 {
				b.Fatal(n)
			}
		}
	})
}
