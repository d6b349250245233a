package ovsdb_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"hairpin/ovsdb"
)

// databases returns all row types of this package, by database.
func databases() map[string][]ovsdb.Table {
	return map[string][]ovsdb.Table{
		"OVN_Northbound": {
			ovsdb.Mirror[ovsdb.NBGlobal](), ovsdb.Mirror[LogicalSwitch](), ovsdb.Mirror[LogicalSwitchPort](),
			ovsdb.Mirror[LogicalRouter](),
			ovsdb.Mirror[LogicalRouterPort](), ovsdb.Mirror[LogicalRouterStaticRoute](),
			ovsdb.Mirror[LogicalRouterPolicy](),
			ovsdb.Mirror[NAT](), ovsdb.Mirror[LoadBalancer](), ovsdb.Mirror[LoadBalancerGroup](),
			ovsdb.Mirror[StaticMACBinding](),
			ovsdb.Mirror[AddressSet](), ovsdb.Mirror[ovsdb.GatewayChassis](), ovsdb.Mirror[QoS](),
		},
		"OVN_Southbound": {
			ovsdb.Mirror[ovsdb.Encap](),
		},
		"Open_vSwitch": {
			ovsdb.Mirror[ovsdb.OpenVSwitch](), ovsdb.Mirror[ovsdb.Bridge](), ovsdb.Mirror[ovsdb.Port](),
			ovsdb.Mirror[ovsdb.Interface](),
			ovsdb.Mirror[ovsdb.FlowTable](), ovsdb.Mirror[ovsdb.Datapath](), ovsdb.Mirror[ovsdb.CTZone](),
		},
	}
}

func schemas() map[string]string {
	return map[string]string{"OVN_Northbound": nbSchema, "OVN_Southbound": sbSchema, "Open_vSwitch": ovsSchema}
}

// TestSchemas: the server has every table and column of the row types, with a matching type. A
// client checks that by get_schema before it mirrors.
func TestSchemas(t *testing.T) {
	here := 0 // types of this package; the others belong to its tests
	for db, tables := range databases() {
		s := startServer(t, schemas()[db])
		c, err := ovsdb.Open(ovsdb.Config{Endpoint: s.endpoint, Database: db, Tables: tables})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.WaitSynced(timeout(t)); err != nil {
			t.Error(err)
		}
		for _, table := range tables {
			if strings.HasPrefix(table.String(), "ovsdb.") {
				here++
			}
		}
	}
	if names := declaredRows(t); len(names) != here {
		t.Errorf("%d row types are declared, %d are in databases(): %v", len(names), here, names)
	}
}

// declaredRows returns the names of the types in the files rows_*.go.
func declaredRows(t *testing.T) (names []string) {
	files, err := filepath.Glob("rows_o*.go")
	if err != nil || len(files) != 2 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				names = append(names, spec.Name.Name)
			}
			return true
		})
	}
	return names
}

// wrong is a row type that does not fit its table.
type wrong struct {
	UUID     ovsdb.UUID        `ovsdb:"_uuid"`
	Name     *string           `ovsdb:"name"`
	VIPs     []string          `ovsdb:"vips"`
	Protocol string            `ovsdb:"protocol"`
	Options  map[string]int    `ovsdb:"options"`
	Colour   map[string]string `ovsdb:"colour"`
}

func (wrong) Table() string { return "Load_Balancer" }

// unknown is a row type of a table that does not exist.
type unknown struct {
	UUID ovsdb.UUID `ovsdb:"_uuid"`
}

func (unknown) Table() string { return "Unknown" }

// TestSchemaMismatch: missing columns, as in an older server, are reported one by one, and in the
// error of a wait.
func TestSchemaMismatch(t *testing.T) {
	s := startServer(t, nbSchema)
	c, err := ovsdb.Open(ovsdb.Config{
		Endpoint: s.endpoint, Database: "OVN_Northbound",
		Tables: []ovsdb.Table{ovsdb.Mirror[wrong](), ovsdb.Mirror[unknown](), ovsdb.Mirror[NAT]()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	eventually(t, "the schema was refused",
		func() bool { return strings.Contains(c.Err().Error(), "database OVN_Northbound") })
	for _, want := range []string{
		"table Load_Balancer: column name: the server has 1 to 1 of string, the Go type is for at most one string",
		"table Load_Balancer: column vips: the server has 0 or more of map of string to string, the Go type is " +
			"for a set of string",
		"table Load_Balancer: column protocol: the server has 0 to 1 of string, the Go type is for one string",
		"table Load_Balancer: column options: the server has 0 or more of map of string to string, the Go type is " +
			"for a map of string to integer",
		"table Load_Balancer has no column colour",
		" has no table Unknown",
	} {
		if !strings.Contains(c.Err().Error(), want) {
			t.Errorf("%q is not in: %v", want, c.Err())
		}
	}
	if strings.Contains(c.Err().Error(), "NAT") || c.Synced() {
		t.Errorf("NAT fits: %v", c.Err())
	}
}

// bare is not a row type: it has no UUID.
type bare struct {
	Name string `ovsdb:"name"`
}

func (bare) Table() string { return "Load_Balancer" }

// odd is no row type: OVSDB has no such column.
type odd struct {
	UUID ovsdb.UUID `ovsdb:"_uuid"`
	Name []byte     `ovsdb:"name"`
}

func (odd) Table() string { return "Load_Balancer" }

// TestOpenErrors: a wrong configuration is refused at once.
func TestOpenErrors(t *testing.T) {
	for want, tables := range map[string][]ovsdb.Table{
		"ovsdb: ovsdb_test.bare has no field UUID of type UUID with the tag _uuid":    {ovsdb.Mirror[bare]()},
		"ovsdb: ovsdb_test.odd: field Name of type []uint8 cannot stand for a column": {ovsdb.Mirror[odd]()},
		`ovsdb: mirror NAT: ovsdb_test.NAT has no column "ip"`:                        {ovsdb.Mirror[NAT]("ip")},
		"ovsdb: mirror NAT: given twice": {ovsdb.Mirror[NAT](),
			ovsdb.Mirror[AddressSet](), ovsdb.Mirror[NAT]("type")},
		"ovsdb: *ovsdb_test.NAT is not a row: want a struct with a method Table() string": {ovsdb.Mirror[*NAT]()},
	} {
		if _, err := ovsdb.Open(ovsdb.Config{Endpoint: "unix:/nowhere", Database: "x", Tables: tables}); err == nil ||
			err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if _, err := ovsdb.Open(ovsdb.Config{Endpoint: "/nowhere"}); err == nil {
		t.Error("an endpoint without a scheme is accepted")
	}
}

// TestRoundTrip: every kind of column comes back from the server, by select and by monitor, as it
// was written; then changed, by what is a difference in the monitor; then with its defaults.
func TestRoundTrip(t *testing.T) {
	s := startServer(t, nbSchema)
	c := open(t, s, databases()["OVN_Northbound"]...)
	text := "quotes \" and \\, a tab \t, é, 😀 and \x7f"
	nat := NAT{UUID: ovsdb.NewUUID(), Type: "snat", ExternalIP: "192.0.2.1", LogicalIP: "10.0.0.0/8"}
	router := LogicalRouter{UUID: ovsdb.NewUUID(), Name: text, NAT: []ovsdb.UUID{nat.UUID}, Enabled: new(false)}
	policy := LogicalRouterPolicy{
		UUID: ovsdb.NewUUID(), Priority: 1004, Match: text, Action: "reroute",
		Nexthops: []string{"10.0.0.1", "10.0.0.2", "fd00::1"},
		Options:  map[string]string{"pkt_mark": "1008", text: text},
	}
	router.Policies = []ovsdb.UUID{policy.UUID}
	transact(t, c, ovsdb.Insert(router), ovsdb.Insert(&nat), ovsdb.Insert(policy))
	check := func() {
		t.Helper()
		v := c.View()
		res := transact(t, c, ovsdb.Select[LogicalRouter](), ovsdb.Select[NAT](), ovsdb.Select[LogicalRouterPolicy]())
		same(t, "router", res[0], v, router)
		same(t, "nat", res[1], v, nat)
		same(t, "policy", res[2], v, policy)
	}
	check()
	policy.Nexthops, policy.Options = []string{"10.0.0.2", "10.0.0.3"}, map[string]string{"pkt_mark": "1009", "new": ""}
	router.Enabled, policy.Priority = new(true), 7
	transact(t, c, ovsdb.Update(policy), ovsdb.Update(router, "enabled"))
	check()
	policy.Nexthops, policy.Options, policy.Match, router.Enabled = nil, nil, "", nil
	transact(t, c, ovsdb.Update(policy), ovsdb.Update(router))
	check()
}

// same compares the only row of a select, and its like in the view, with what was written.
func same[T ovsdb.Row](t *testing.T, what string, r ovsdb.Result, v ovsdb.View, want T) {
	t.Helper()
	rows, err := ovsdb.Selected[T](r)
	if err != nil || len(rows) != 1 || !reflect.DeepEqual(rows[0], want) {
		t.Errorf("select %s: %+v %v, want %+v", what, rows, err, want)
	}
	if got := slices.Collect(ovsdb.Rows[T](v)); len(got) != 1 || !reflect.DeepEqual(*got[0], want) ||
		ovsdb.First[T](v) != got[0] || ovsdb.Len[T](v) != 1 {
		t.Errorf("mirror %s: %+v, want %+v", what, got, want)
	}
}

// TestLayout: rows of a description made at run time are written, mirrored and changed as those of
// a struct.
func TestLayout(t *testing.T) {
	text, ids := reflect.TypeFor[string](), reflect.TypeFor[map[string]string]()
	sets := ovsdb.NewLayout("Address_Set", ovsdb.Column{Name: "name", Type: text},
		ovsdb.Column{Name: "addresses", Type: reflect.TypeFor[[]string]()},
		ovsdb.Column{Name: "external_ids", Type: ids})
	groups := ovsdb.NewLayout("Load_Balancer_Group", ovsdb.Column{Name: "name", Type: text})
	s := startServer(t, nbSchema)
	c, typed := open(t, s, sets.Mirror(), groups.Mirror()),
		open(t, s, ovsdb.Mirror[AddressSet](), ovsdb.Mirror[LoadBalancerGroup]())
	row := sets.New(ovsdb.NewUUID())
	*row.Column(0).(*string) = "a"
	*row.Column(1).(*[]string) = []string{"10.0.0.1", "10.0.0.2"}
	group := groups.New(ovsdb.NewUUID())
	*group.Column(0).(*string) = "g"
	transact(t, c, ovsdb.Insert(row), ovsdb.Insert(group))
	if got := sets.Get(c.View(), row.UUID()); !got.Exists() || got.UUID() != row.UUID() ||
		!reflect.DeepEqual(got.Column(1), row.Column(1)) || got.Table() != "Address_Set" {
		t.Errorf("%+v", got)
	}
	*row.Column(2).(*map[string]string) = map[string]string{"k": "v"}
	transact(t, c, ovsdb.Update(row, "external_ids").Row(row.UUID()),
		ovsdb.Mutate("Address_Set", ovsdb.DeleteFrom("addresses", []string{"10.0.0.1"})).Row(row.UUID()))
	if got := sets.Get(c.View(), row.UUID()); !reflect.DeepEqual(got.Column(1), &[]string{"10.0.0.2"}) ||
		!reflect.DeepEqual(got.Column(2), row.Column(2)) {
		t.Errorf("%+v", got)
	}
	want := AddressSet{UUID: row.UUID(), Name: "a", Addresses: []string{"10.0.0.2"},
		ExternalIDs: map[string]string{"k": "v"}}
	if err := typed.WaitFor(timeout(t), func(v ovsdb.View) bool {
		got := ovsdb.Get[AddressSet](v, want.UUID)
		return got != nil && reflect.DeepEqual(*got, want)
	}); err != nil {
		t.Error(err)
	}
	transact(t, c, ovsdb.Delete("Address_Set").Row(row.UUID()))
	if n := len(slices.Collect(sets.Rows(c.View()))); n != 0 || sets.Get(c.View(), row.UUID()).Exists() ||
		len(slices.Collect(groups.Rows(c.View()))) != 1 {
		t.Errorf("%d address sets are left", n)
	}
}
