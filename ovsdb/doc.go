// Package ovsdb is a client of the Open vSwitch Database management protocol (RFC 7047, with the
// extensions of ovsdb-server(7)). Package codec converts its rows, package jsontext reads and
// writes its messages. The client has two levels.
//
// [Dial] opens a connection: [Conn.Transact], [Conn.Schema], [Conn.Databases]. It answers the
// server's echo requests and probes the server with its own.
//
// [Open] keeps such a connection alive and mirrors chosen tables of one database:
//
//	c, err := ovsdb.Open(ovsdb.Config{
//		Endpoint: "unix:/run/ovn/ovnnb_db.sock",
//		Database: "OVN_Northbound",
//		Tables:   []ovsdb.Table{ovsdb.Mirror[ovsdb.NBGlobal](), ovsdb.Mirror[LoadBalancer]()},
//	})
//	err = c.WaitSynced(ctx)
//	for lb := range ovsdb.Rows[LoadBalancer](c.View()) { … }
//
// A [View] is the mirror at one moment. It costs one pointer to take, never changes, and may be
// kept: [View.Since] says which rows differ between two of them. When [Client.Transact] returns,
// [Client.View] contains what it wrote.
//
// # Rows
//
// A row is a Go struct with a Table method and a tag for each column. The package has those of Open
// vSwitch that Hairpin uses, and accepts any other of the same form. A [Layout] is a row type built
// from a description at run time.
//
//	type LoadBalancer struct {
//		UUID     UUID              `ovsdb:"_uuid"`
//		Name     string            `ovsdb:"name"`
//		VIPs     map[string]string `ovsdb:"vips"`
//		Protocol *string           `ovsdb:"protocol"`
//	}
//
//	func (LoadBalancer) Table() string { return "Load_Balancer" }
//
// An atom is a string, bool, int, float64 or [UUID]; a pointer to one is an optional value; a slice
// is a set; a map from string or int is a map. Sets are in ascending order without duplicates, and
// an empty set or map is nil, so equal rows are equal Go values (reflect.DeepEqual). Rows of a View
// are shared between all readers: do not modify them, their slices or their maps.
//
// # Transactions
//
// Building an operation returns no error; [Conn.Transact] reports an invalid one before it sends
// anything:
//
//	_, err = c.Transact(ctx,
//		ovsdb.Insert(LoadBalancer{UUID: ovsdb.NamedUUID("web"), Name: "web", VIPs: vips}),
//		ovsdb.Mutate("Logical_Router", ovsdb.InsertInto("load_balancer", ovsdb.NamedUUID("web"))).Where("name", "==", "GR_node-a"),
//	)
//
// If the server rejects an operation, the error is a [TransactError] with operation, table, row and
// reason.
package ovsdb
