package ovsdb_test

import (
	"errors"
	"testing"

	"hairpin/ovsdb"
)

func dial(t testing.TB, s *server) *ovsdb.Conn {
	t.Helper()
	c, err := ovsdb.Dial(timeout(t), s.endpoint)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestTransactErrors(t *testing.T) {
	c := dial(t, startServer(t, nbSchema))
	lsp := ovsdb.LogicalSwitchPort{UUID: ovsdb.NamedUUID("p"), Name: "pod-a"}
	for _, ops := range [][]ovsdb.Op{
		{ovsdb.Insert(ovsdb.LogicalSwitch{Name: "sw", Ports: []ovsdb.UUID{lsp.UUID}}), ovsdb.Insert(lsp)},
		{ovsdb.Insert(ovsdb.LogicalSwitch{Name: "sw2", Ports: []ovsdb.UUID{lsp.UUID}}), ovsdb.Insert(lsp)},
		{ovsdb.Insert(ovsdb.LogicalSwitch{Name: "sw2", Ports: []ovsdb.UUID{ovsdb.NewUUID()}})},
		{ovsdb.Mutate("Logical_Switch", ovsdb.InsertInto("ports", lsp.UUID)).Where("name", "==", "sw"), ovsdb.Comment("x")},
		{ovsdb.Insert(ovsdb.LogicalRouterPolicy{Priority: 40000, Match: "m", Action: "allow"})},
		{ovsdb.Insert(ovsdb.LogicalRouterPolicy{Priority: 40, Match: "m", Action: "foo"})},
		{ovsdb.Delete("Logical_Switch_Port").Where("name", "==", "pod-a")},
		{ovsdb.Comment("hi"), ovsdb.Abort()},
		{ovsdb.Delete("Logical_Switch_Port")},
		{ovsdb.Wait(0, "Logical_Switch", []string{"name"}, "==", ovsdb.LogicalSwitch{Name: "foo"})},
		{ovsdb.Select[ovsdb.LogicalSwitch]()},
	} {
		res, err := c.Transact(timeout(t), "OVN_Northbound", ops...)
		var te *ovsdb.TransactError
		t.Logf("%v\n%v %v", res, err, errors.As(err, &te))
		if err == nil && len(res) == 1 {
			rows, err := ovsdb.Selected[ovsdb.LogicalSwitch](res[0])
			t.Log(rows, err)
		}
	}
	t.Log(c.Databases(timeout(t)))
	_, err := c.Transact(timeout(t), "foo")
	t.Log(err)
	_, err = c.Schema(timeout(t), "foo")
	t.Log(err)
	s, err := c.Schema(timeout(t), "OVN_Northbound")
	t.Log(len(s.Tables), err)
	t.Log(c.Echo(timeout(t)))
}
