package ovsdb_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"hairpin/ovsdb"
)

// open opens a client of the northbound database.
func open(tb testing.TB, s *server, tables ...ovsdb.Table) *ovsdb.Client {
	tb.Helper()
	c, err := ovsdb.Open(ovsdb.Config{Endpoint: s.endpoint, Database: "OVN_Northbound", Tables: tables})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	if err := c.WaitSynced(timeout(tb)); err != nil {
		tb.Fatal(err)
	}
	return c
}

// transact carries out a transaction that must succeed.
func transact(tb testing.TB, c *ovsdb.Client, ops ...ovsdb.Op) []ovsdb.Result {
	tb.Helper()
	res, err := c.Transact(timeout(tb), ops...)
	if err != nil {
		tb.Fatal(err)
	}
	return res
}

// loadBalancers returns n load balancers as a node has them.
func loadBalancers(n int) []ovsdb.LoadBalancer {
	list := make([]ovsdb.LoadBalancer, n)
	for i := range list {
		list[i] = ovsdb.LoadBalancer{
			UUID:     ovsdb.NewUUID(),
			Name:     fmt.Sprintf("Service_default/web-%05d_TCP", i),
			VIPs:     map[string]string{fmt.Sprintf("10.96.%d.%d:80", i>>8, i&255): fmt.Sprintf("10.244.0.%d:8080,10.244.1.%d:8080", i&255, i&255)},
			Protocol: new("tcp"),
			Options:  map[string]string{"event": "false", "hairpin_snat_ip": "169.254.169.5 fd69::5", "reject": "true", "skip_snat": "false"},
			ExternalIDs: map[string]string{
				"k8s.ovn.org/kind": "Service", "k8s.ovn.org/owner": fmt.Sprintf("default/web-%05d", i), "hairpin": "lb",
			},
		}
	}
	return list
}

// fill inserts load balancers, and refers to them from a switch and a router.
func fill(tb testing.TB, c *ovsdb.Client, n int) {
	tb.Helper()
	var ops []ovsdb.Op
	var ids []ovsdb.UUID
	for _, lb := range loadBalancers(n) {
		ops = append(ops, ovsdb.Insert(lb))
		ids = append(ids, lb.UUID)
	}
	ops = append(ops, ovsdb.Insert(ovsdb.LogicalSwitch{Name: "node", LoadBalancer: ids}), ovsdb.Insert(ovsdb.LogicalRouter{Name: "GR_node", LoadBalancer: ids}))
	transact(tb, c, ops...)
}

func everything() []ovsdb.Table {
	return []ovsdb.Table{
		ovsdb.Mirror[ovsdb.NBGlobal](), ovsdb.Mirror[ovsdb.LoadBalancer](), ovsdb.Mirror[ovsdb.LogicalSwitch](), ovsdb.Mirror[ovsdb.LogicalRouter](),
	}
}

func TestX(t *testing.T) {
	s := startServer(t, nbSchema)
	c := open(t, s, everything()...)
	start := time.Now()
	fill(t, c, 10000)
	t.Log("fill", time.Since(start), ovsdb.Len[ovsdb.LoadBalancer](c.View()), c.Stats())
	for range 4 {
		start = time.Now()
		c2 := open(t, s, everything()...)
		t.Log("sync", time.Since(start), ovsdb.Len[ovsdb.LoadBalancer](c2.View()), c2.Stats())
		c2.Close()
	}
	var m0, m1 runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m0)
	c2 := open(t, s, everything()...)
	runtime.GC()
	runtime.ReadMemStats(&m1)
	t.Log("heap", (m1.HeapAlloc-m0.HeapAlloc)>>10, "KB")
	start = time.Now()
	v := c2.View()
	s.restart()
	eventually(t, "back", func() bool { return c2.Connected() && c2.Stats().Connects == 2 })
	t.Log("restart", time.Since(start), c2.View().Since(v))
	v = c.View()
	for lb := range ovsdb.Rows[ovsdb.LoadBalancer](c.View()) {
		start = time.Now()
		transact(t, c, ovsdb.Delete("Load_Balancer").Row(lb.UUID))
		t.Log("del", time.Since(start))
		break
	}
	start = time.Now()
	ch := c.View().Since(v)
	t.Log("since", time.Since(start), ch)
}
