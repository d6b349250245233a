package ovsdb_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"hairpin/ovsdb"
)

// open opens a client of the northbound database and waits until it is in sync.
func open(tb testing.TB, s *server, tables ...ovsdb.Table) *ovsdb.Client {
	tb.Helper()
	return openAt(tb, s.endpoint, tables...)
}

func openAt(tb testing.TB, endpoint string, tables ...ovsdb.Table) *ovsdb.Client {
	tb.Helper()
	c, err := ovsdb.Open(ovsdb.Config{Endpoint: endpoint, Database: nb, Tables: tables})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	if err := c.WaitSynced(timeout(tb)); err != nil {
		tb.Fatal(err)
	}
	return c
}

// transact executes a transaction that must succeed.
func transact(tb testing.TB, c *ovsdb.Client, ops ...ovsdb.Op) []ovsdb.Result {
	tb.Helper()
	res, err := c.Transact(timeout(tb), ops...)
	if err != nil {
		tb.Fatal(err)
	}
	return res
}

// loadBalancers returns n load balancers like those of a node.
func loadBalancers(n int) []LoadBalancer {
	list := make([]LoadBalancer, n)
	for i := range list {
		a, b := i>>8, i&255
		list[i] = LoadBalancer{
			UUID: ovsdb.NewUUID(),
			Name: fmt.Sprintf("Service_default/web-%05d_TCP", i),
			VIPs: map[string]string{fmt.Sprintf("10.96.%d.%d:80", a,
				b): fmt.Sprintf("10.244.0.%d:8080,10.244.1.%d:8080", b, b)},
			Protocol: new("tcp"),
			Options: map[string]string{"event": "false", "hairpin_snat_ip": "169.254.169.5 fd69::5",
				"reject": "true", "skip_snat": "false"},
			ExternalIDs: map[string]string{"k8s.ovn.org/kind": "Service",
				"k8s.ovn.org/owner": fmt.Sprintf("default/web-%05d", i), "hairpin": "lb"},
		}
	}
	return list
}

// fill inserts n load balancers, and refers to them from a switch and a router.
func fill(tb testing.TB, c *ovsdb.Client, n int) {
	tb.Helper()
	var ops []ovsdb.Op
	var ids []ovsdb.UUID
	for _, lb := range loadBalancers(n) {
		ops = append(ops, ovsdb.Insert(lb))
		ids = append(ids, lb.UUID)
	}
	transact(tb, c, append(ops,
		ovsdb.Insert(ovsdb.NBGlobal{}),
		ovsdb.Insert(LogicalSwitch{Name: "node", LoadBalancer: ids}),
		ovsdb.Insert(LogicalRouter{Name: "GR_node", LoadBalancer: ids}))...)
}

// tables returns the tables that fill writes.
func tables() []ovsdb.Table {
	return []ovsdb.Table{
		ovsdb.Mirror[ovsdb.NBGlobal](), ovsdb.Mirror[LoadBalancer](), ovsdb.Mirror[LogicalSwitch](),
		ovsdb.Mirror[LogicalRouter](),
	}
}

// equal compares the rows of two clients.
func equal(t *testing.T, a, b *ovsdb.Client) {
	t.Helper()
	for i, same := range []bool{
		reflect.DeepEqual(rows[LoadBalancer](a), rows[LoadBalancer](b)),
		reflect.DeepEqual(rows[LogicalSwitch](a), rows[LogicalSwitch](b)),
		reflect.DeepEqual(rows[LogicalRouter](a), rows[LogicalRouter](b)),
		reflect.DeepEqual(rows[ovsdb.NBGlobal](a), rows[ovsdb.NBGlobal](b)),
	} {
		if !same {
			t.Errorf("table %d differs", i)
		}
	}
}

func rows[T ovsdb.Row](c *ovsdb.Client) []*T { return slices.Collect(ovsdb.Rows[T](c.View())) }

// TestLarge: a transaction of several megabytes, as at the start of a node with 5 000 Services. A
// mirror that existed before and got updates equals a mirror that was created later.
func TestLarge(t *testing.T) {
	s := startServer(t, nbSchema)
	before := open(t, s, tables()...)
	writer := open(t, s)
	fill(t, writer, 5000)
	after := open(t, s, tables()...)
	if err := before.WaitFor(timeout(t),
		func(v ovsdb.View) bool { return ovsdb.Len[LoadBalancer](v) == 5000 }); err != nil {
		t.Fatal(err)
	}
	if n := len(ovsdb.First[LogicalRouter](after.View()).LoadBalancer); n != 5000 {
		t.Error(n)
	}
	equal(t, before, after)
	transact(t, writer, ovsdb.Delete("Load_Balancer").Where("name", "!=", "Service_default/web-00007_TCP"))
	if err := before.WaitFor(timeout(t),
		func(v ovsdb.View) bool { return ovsdb.Len[LoadBalancer](v) == 1 }); err != nil {
		t.Fatal(err)
	}
	equal(t, before, open(t, s, tables()...))
}

// TestView: when a transaction returns, the View has its changes; Views never change; Since returns
// exactly the differences.
func TestView(t *testing.T) {
	s := startServer(t, nbSchema)
	c := open(t, s, tables()...)
	fill(t, c, 300)
	var views []ovsdb.View
	var lbs []*LoadBalancer
	for i := range 20 {
		lbs = rows[LoadBalancer](c)
		views = append(views, c.View())
		changed, gone := lbs[i*3], lbs[i*3+1]
		now := *changed
		now.Name = fmt.Sprint("changed", i)
		transact(t, c, ovsdb.Update(now, "name"), ovsdb.Delete("Load_Balancer").Row(gone.UUID))
		v := c.View()
		if got := ovsdb.Get[LoadBalancer](v, now.UUID); got.Name != now.Name || changed.Name == now.Name ||
			ovsdb.Get[LoadBalancer](v, gone.UUID) != nil {
			t.Fatalf("%+v, was %+v", got, changed)
		}
		router, sw := ovsdb.First[LogicalRouter](v), ovsdb.First[LogicalSwitch](v)
		want := []ovsdb.Change{
			{Table: "Load_Balancer", Changed: []ovsdb.UUID{now.UUID}, Deleted: []ovsdb.UUID{gone.UUID}},
			// weak references
			{Table: "Logical_Router", Changed: []ovsdb.UUID{router.UUID}},
			{Table: "Logical_Switch", Changed: []ovsdb.UUID{sw.UUID}},
		}
		if got := v.Since(views[i]); !reflect.DeepEqual(got, want) {
			t.Fatalf("%v, want %v", got, want)
		}
		if len(router.LoadBalancer) != 299-i || slices.Contains(sw.LoadBalancer, gone.UUID) {
			t.Fatal(len(router.LoadBalancer))
		}
	}
	for i, v := range views {
		if ovsdb.Len[LoadBalancer](v) != 300-i || len(ovsdb.First[LogicalRouter](v).LoadBalancer) != 300-i {
			t.Errorf("view %d changed: %d rows", i, ovsdb.Len[LoadBalancer](v))
		}
	}
	all := c.View().Since(ovsdb.View{})
	if len(all) != 4 || len(all[0].Changed) != 280 || all[0].Deleted != nil {
		t.Errorf("%v", all)
	}
	if c.View().Since(c.View()) != nil || (ovsdb.View{}).Since(c.View()) != nil {
		t.Error("differs from itself")
	}
}

// TestChanged: the channel has one value after any number of changes, and none without a change.
func TestChanged(t *testing.T) {
	s := startServer(t, nbSchema)
	c := open(t, s, ovsdb.Mirror[AddressSet]("name"))
	<-c.Changed() // the first content
	for i := range 10 {
		transact(t, c, ovsdb.Insert(AddressSet{Name: fmt.Sprint("a", i)}))
	}
	<-c.Changed()
	select {
	case <-c.Changed():
		t.Error("two values")
	default:
	}
	// not mirrored
	transact(t, c, ovsdb.Insert(ovsdb.NBGlobal{}),
		ovsdb.Mutate("Address_Set", ovsdb.InsertInto("addresses", "x")).All())
	select {
	case <-c.Changed():
		t.Error("changed without a change")
	default:
	}
	if got := ovsdb.First[AddressSet](c.View()); got.Addresses != nil {
		t.Errorf("a column that was not asked for: %+v", got)
	}
}

// TestWaitErrors: the error of a wait that fails has the reason.
func TestWaitErrors(t *testing.T) {
	c, err := ovsdb.Open(ovsdb.Config{Endpoint: "unix:/nowhere/s", Database: nb})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	for _, err := range []error{c.WaitSynced(ctx), c.WaitFor(ctx, func(ovsdb.View) bool { return false }),
		second(c.Transact(ctx))} {
		if !errors.Is(err, context.DeadlineExceeded) ||
			!strings.Contains(err.Error(), "dial unix /nowhere/s: connect: no such file or directory") {
			t.Error(err)
		}
	}
	go c.Close()
	if err := c.WaitSynced(context.Background()); err == nil ||
		err.Error() != "ovsdb: sync OVN_Northbound: client is closed" {
		t.Error(err)
	}
	s := startServer(t, nbSchema)
	d := open(t, s, ovsdb.Mirror[ovsdb.NBGlobal]())
	if err := d.WaitFor(ctx, func(v ovsdb.View) bool { return ovsdb.Len[ovsdb.NBGlobal](v) > 0 }); err == nil ||
		err.Error() != "ovsdb: wait OVN_Northbound: context deadline exceeded" {
		t.Error(err)
	}
}

func second[A, B any](_ A, b B) B { return b }

// TestNotMirrored: reading a table that is not mirrored panics.
func TestNotMirrored(t *testing.T) {
	c := open(t, startServer(t, nbSchema), ovsdb.Mirror[ovsdb.NBGlobal]())
	defer func() {
		if got := fmt.Sprint(recover()); got != "ovsdb: ovsdb_test.NAT is not among the tables that this client mirrors" {
			t.Error(got)
		}
	}()
	ovsdb.First[NAT](c.View())
}

// TestDeletions: of inserted, changed and deleted rows, only the deleted are notified.
func TestDeletions(t *testing.T) {
	s := startServer(t, nbSchema)
	c := open(t, s, ovsdb.Deletions("Load_Balancer"))
	fill(t, c, 3)
	all := ovsdb.Mutate("Load_Balancer", ovsdb.InsertInto("external_ids", map[string]string{"k": "v"})).All()
	transact(t, c, all)
	for _, table := range []string{"Logical_Switch", "Logical_Router", "Load_Balancer"} {
		transact(t, c, ovsdb.Delete(table).All())
	}
	if err := c.WaitFor(timeout(t), func(ovsdb.View) bool { return c.Stats().Updates > 0 }); err != nil {
		t.Fatal(err)
	}
	if got := c.Stats().Updates; got != 1 {
		t.Errorf("%d notifications, not 1", got)
	}
}
