package ovsdb_test

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strings"
	"sync"
	"testing"

	"hairpin/ovsdb"
)

const nb = "OVN_Northbound"

func dial(tb testing.TB, endpoint string, options ...ovsdb.Option) *ovsdb.Conn {
	tb.Helper()
	c, err := ovsdb.Dial(timeout(tb), endpoint, options...)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return c
}

// uuids are not the same in every run.
var uuids = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)

// either: which of two rows with one key is the first is left to the server; of the last text, Open
// vSwitch 4.0 has another form.
var either = strings.NewReplacer(
	"was inserted by this transaction.", "ROW",
	"existed in the database before this transaction and was not modified by the transaction.", "ROW",
	`[U is operation 1: insert Logical_Switch_Port "pod-a"; U is Logical_Switch_Port "pod-a"]`, "[U is ROW; U is ROW]",
	`[U is Logical_Switch_Port "pod-a"; U is operation 1: insert Logical_Switch_Port "pod-a"]`, "[U is ROW; U is ROW]",
	`within the "Logical_Switch" table or deleted from this table within`, "within the table or deleted within",
)

// TestTransactErrors: what the server refuses is said with operation, table, row and reason, and
// leaves nothing behind.
func TestTransactErrors(t *testing.T) {
	c := open(t, startServer(t, nbSchema), ovsdb.Mirror[LogicalSwitch](), ovsdb.Mirror[LogicalSwitchPort]())
	port := LogicalSwitchPort{UUID: ovsdb.NamedUUID("pod a"), Name: "pod-a"}
	sw := LogicalSwitch{UUID: ovsdb.NewUUID(), Name: "node", Ports: []ovsdb.UUID{port.UUID}}
	transact(t, c, ovsdb.Insert(sw), ovsdb.Insert(port))
	before := c.View()
	for _, test := range []struct {
		ops    []ovsdb.Op
		index  int
		reason string
		want   string
	}{
		{
			[]ovsdb.Op{ovsdb.Insert(LogicalSwitch{Name: "other", Ports: []ovsdb.UUID{port.UUID}}), ovsdb.Insert(port)},
			-1, ovsdb.ConstraintViolation,
			`constraint violation: Transaction causes multiple rows in "Logical_Switch_Port" table to have identical values (pod-a) for index on column "name".  ` +
				`First row, with UUID U, ROW  Second row, with UUID U, ROW [U is ROW; U is ROW]`,
		},
		{
			[]ovsdb.Op{ovsdb.Insert(LogicalSwitch{Name: "other", Ports: []ovsdb.UUID{ovsdb.NewUUID()}})}, -1,
			ovsdb.ReferentialViolation,
			`referential integrity violation: Table Logical_Switch column ports row U references nonexistent row U in table Logical_Switch_Port. ` +
				`[U is operation 0: insert Logical_Switch "other"]`,
		},
		{
			[]ovsdb.Op{ovsdb.Mutate("Logical_Switch", ovsdb.InsertInto("ports", ovsdb.NewUUID())).Row(sw.UUID)}, -1,
			ovsdb.ReferentialViolation,
			`referential integrity violation: Table Logical_Switch column ports row U references nonexistent row U in table Logical_Switch_Port. [U is Logical_Switch "node"]`,
		},
		{
			[]ovsdb.Op{ovsdb.Delete("Logical_Switch_Port").Where("name", "==", "pod-a")}, -1,
			ovsdb.ReferentialViolation,
			`referential integrity violation: cannot delete Logical_Switch_Port row U because of 1 remaining reference(s) [U is Logical_Switch_Port "pod-a"]`,
		},
		{
			[]ovsdb.Op{ovsdb.Insert(LogicalSwitch{Name: "x"}),
				ovsdb.Insert(LogicalRouterPolicy{Priority: 40000, Match: "ip4", Action: "allow"})}, 1,
			ovsdb.ConstraintViolation,
			`operation 1 (insert Logical_Router_Policy "ip4"): constraint violation: 40000 is not in the valid range 0 to 32767 (inclusive)`,
		},
		{
			[]ovsdb.Op{ovsdb.Update(LogicalSwitchPort{Name: "pod-b", TagRequest: new(-1)}, "tag_request").Where("name",
				"==", "pod-a").Where("type", "!=", "x")},
			0, ovsdb.ConstraintViolation,
			`operation 0 (update Logical_Switch_Port "pod-b" where name == pod-a and type != x): constraint violation: -1 is not in the valid range 0 to 4095 (inclusive)`,
		},
		{
			[]ovsdb.Op{ovsdb.Insert(sw)}, 0, ovsdb.DuplicateUUID,
			`operation 0 (insert Logical_Switch "node"): duplicate uuid: This UUID would duplicate a UUID already present within the table or deleted within the same transaction.`,
		},
	} {
		_, err := c.Transact(timeout(t), test.ops...)
		var refused *ovsdb.TransactError
		if !errors.As(err, &refused) || refused.Index != test.index || refused.Reason != test.reason ||
			refused.Database != nb {
			t.Errorf("%v: %#v", test.ops, err)
		}
		if got := either.Replace(uuids.ReplaceAllString(fmt.Sprint(err),
			"U")); got != "ovsdb: transact OVN_Northbound: "+test.want {
			t.Errorf("%v:\n%s, want\novsdb: transact OVN_Northbound: %s", test.ops, got, test.want)
		}
	}
	if ch := c.View().Since(before); ch != nil {
		t.Errorf("something was carried out: %v", ch)
	}
}

// TestOpErrors: an operation that cannot be rendered is not sent.
func TestOpErrors(t *testing.T) {
	c := dial(t, startServer(t, nbSchema).endpoint)
	lb := LoadBalancer{Name: "web"}
	for want, op := range map[string]ovsdb.Op{
		`(delete Load_Balancer): no rows chosen (by Where, Row or All)`:                                    ovsdb.Delete("Load_Balancer"),
		`(update Load_Balancer "web"): no rows chosen (by Where, Row or All)`:                              ovsdb.Update(lb),
		`(mutate Load_Balancer): no rows chosen (by Where, Row or All)`:                                    ovsdb.Mutate("Load_Balancer", ovsdb.Add("x", 1)),
		`(update Load_Balancer "web"): ovsdb_test.LoadBalancer has no column "vip"`:                        ovsdb.Update(lb, "vip").All(),
		`(insert Load_Balancer "a\x00"): column name: string "a\x00" has a NUL`:                            ovsdb.Insert(LoadBalancer{Name: "a\x00"}),
		`(insert Load_Balancer "a\xff"): column name: string "a\xff" is not UTF-8`:                         ovsdb.Insert(LoadBalancer{Name: "a\xff"}),
		`(delete Load_Balancer where name == 1.5): column name: a float32 cannot be written`:               ovsdb.Delete("Load_Balancer").Where("name", "==", float32(1.5)),
		`(delete Load_Balancer where name == <nil>): column name: a <nil> cannot be written`:               ovsdb.Delete("Load_Balancer").Where("name", "==", nil),
		`(delete Load_Balancer where x == +Inf): column x: real +Inf cannot be written`:                    ovsdb.Delete("Load_Balancer").Where("x", "==", math.Inf(1)),
		`(insert Logical_Switch): column ports: empty UUID`:                                                ovsdb.Insert(LogicalSwitch{Ports: []ovsdb.UUID{""}}),
		`(insert Load_Balancer): ovsdb: ovsdb_test.bare has no field UUID of type UUID with the tag _uuid`: ovsdb.Insert(bare{}),
	} {
		_, err := c.Transact(timeout(t), nb, op)
		if want = "ovsdb: transact OVN_Northbound: operation 0 " + want; err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// TestCalls: the methods of a connection, and what a server refuses as a whole.
func TestCalls(t *testing.T) {
	c := dial(t, startServer(t, nbSchema).endpoint)
	names, err := c.Databases(timeout(t))
	if err != nil || strings.Join(names, " ") != "OVN_Northbound _Server" {
		t.Error(names, err)
	}
	s, err := c.Schema(timeout(t), nb)
	if err != nil {
		t.Fatal(err)
	}
	if s.Name != nb || !strings.HasPrefix(s.Version, "7.") ||
		!s.Tables["NAT"].Columns["external_ip"].ReadOnly == (s.Tables["NAT"].Columns["external_ip"].Max != 1) {
		t.Errorf("%+v", s.Tables["NAT"])
	}
	if got := fmt.Sprint(s.Tables["Static_MAC_Binding"].Indexes, s.Tables["NAT"].IsRoot,
		s.Tables["Logical_Router"].Columns["nat"]); got != "[[logical_port ip]] false 0 or more of uuid" {
		t.Error(got)
	}
	if err := c.Echo(timeout(t)); err != nil {
		t.Error(err)
	}
	_, err = c.Transact(timeout(t), "Nothing", ovsdb.Delete("x").All())
	var refused *ovsdb.RPCError
	if !errors.As(err, &refused) ||
		err.Error() != "ovsdb: transact: unknown database: transact request specifies unknown database Nothing" {
		t.Error(err)
	}
	if _, err = c.Schema(timeout(t), "Nothing"); err == nil ||
		err.Error() != "ovsdb: get_schema: unknown database: get_schema request specifies unknown database Nothing" {
		t.Error(err)
	}
	c.Close()
	if _, err := c.Databases(timeout(t)); !errors.Is(err, ovsdb.ErrDisconnected) ||
		!errors.Is(c.Err(), ovsdb.ErrDisconnected) {
		t.Error(err, c.Err())
	}
}

func TestDialErrors(t *testing.T) {
	for _, endpoint := range []string{"", "unix:", "/tmp/x", "ssl:127.0.0.1:1", "unix:/nowhere", "tcp:127.0.0.1"} {
		if c, err := ovsdb.Dial(timeout(t), endpoint); err == nil {
			c.Close()
			t.Errorf("%q: no error", endpoint)
		}
	}
}

// TestMutate: differences of sets, maps and integers, and the count of rows found.
func TestMutate(t *testing.T) {
	c := open(t, startServer(t, nbSchema), ovsdb.Mirror[AddressSet](), ovsdb.Mirror[ovsdb.NBGlobal]())
	transact(t, c, ovsdb.Insert(ovsdb.NBGlobal{}),
		ovsdb.Insert(AddressSet{Name: "a", Addresses: []string{"1", "2"},
			ExternalIDs: map[string]string{"k": "1", "l": "2"}}))
	res := transact(t, c,
		ovsdb.Mutate("Address_Set", ovsdb.InsertInto("addresses", "3"),
			ovsdb.DeleteFrom("addresses", []string{"1", "9"}),
			ovsdb.InsertInto("external_ids", map[string]string{"k": "kept", "m": "new"}),
			ovsdb.DeleteFrom("external_ids", []string{"l"})).Where("name", "==", "a"),
		ovsdb.Mutate("NB_Global", ovsdb.Add("nb_cfg", 5)).All(),
		ovsdb.Mutate("Address_Set", ovsdb.InsertInto("addresses", "4")).Where("external_ids", "includes",
			map[string]string{"k": "9"}),
	)
	set := ovsdb.First[AddressSet](c.View())
	if got := fmt.Sprint(set.Addresses, set.ExternalIDs,
		ovsdb.First[ovsdb.NBGlobal](c.View()).NBCfg); got != "[2 3] map[k:1 m:new] 5" {
		t.Error(got)
	}
	if got := fmt.Sprint(res[0].Count, res[1].Count, res[2].Count); got != "1 1 0" {
		t.Error(got)
	}
}

// TestConcurrent: four goroutines on one connection, each transaction wholly or not at all, and
// none lost.
func TestConcurrent(t *testing.T) {
	const clients, rounds = 4, 50
	s := startServer(t, nbSchema)
	c := open(t, s, ovsdb.Mirror[ovsdb.NBGlobal](), ovsdb.Mirror[AddressSet]())
	transact(t, c, ovsdb.Insert(ovsdb.NBGlobal{}))
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			for j := range rounds {
				name := fmt.Sprintf("set_%d_%d", i, j)
				_, err := c.Transact(timeout(t), ovsdb.Insert(AddressSet{Name: name}),
					ovsdb.Mutate("NB_Global", ovsdb.Add("nb_cfg", 1)).All())
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
				if _, err := c.Transact(timeout(t), ovsdb.Mutate("NB_Global", ovsdb.Add("nb_cfg", 1)).All(),
					ovsdb.Insert(AddressSet{Name: name})); err == nil {
					t.Errorf("%s: a second set with one name", name)
				}
			}
		})
	}
	wg.Wait()
	if v := c.View(); ovsdb.First[ovsdb.NBGlobal](v).NBCfg != clients*rounds ||
		ovsdb.Len[AddressSet](v) != clients*rounds {
		t.Error(ovsdb.First[ovsdb.NBGlobal](v).NBCfg, ovsdb.Len[AddressSet](v))
	}
}
