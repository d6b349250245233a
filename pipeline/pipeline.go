// Package pipeline declares the OpenFlow tables of Hairpin's bridges: number, name, what a packet
// is when it enters, what happens to a packet that matches no flow, and which tables may come next.
//
// The plan refers to the numbers, Open vSwitch and explain to the names.
// docs/design/openflow-pipeline.md is generated from the declaration. A test checks that every
// planned flow leads to a declared table, so a packet passes the tables of a bridge in their order,
// except for the returns in Again.
package pipeline

import (
	"fmt"
	"slices"

	"hairpin/claims"
)

// Bridge is one of Hairpin's bridges, as in flow.Key.
type Bridge string

// The bridges with flows.
const (
	Gateway Bridge = "" // the gateway bridge, br-ex by default
	Service Bridge = claims.ServiceBridge
	Tunnel  Bridge = claims.TunnelBridge
)

// Table is one OpenFlow table of a bridge.
type Table struct {
	Bridge Bridge
	ID     uint8
	// Name is what ovs-ofctl --names and explain call it. OpenFlow allows 31 bytes.
	Name   string
	Packet string  // what a packet is when it enters
	Does   string  // what its flows do
	Miss   string  // what happens to a packet that matches no flow
	Next   []uint8 // later tables to which its flows may lead, in their order
	// Again are tables at this place or before it to which a packet may return once, when its
	// connection or its endpoint is known.
	Again []uint8
}

// Lookup returns the declaration of a table.
func Lookup(b Bridge, id uint8) (Table, bool) {
	i := slices.IndexFunc(tables, func(t Table) bool { return t.Bridge == b && t.ID == id })
	if i < 0 {
		return Table{}, false
	}
	return tables[i], true
}

// Name returns the name of a table, or "table N" if it is not declared.
func Name(b Bridge, id uint8) string {
	if t, ok := Lookup(b, id); ok {
		return t.Name
	}
	return fmt.Sprintf("table %d", id)
}

// Named reports whether a table of any bridge has the name.
func Named(name string) bool {
	return slices.ContainsFunc(tables, func(t Table) bool { return t.Name == name })
}

// Tables returns the tables of a bridge in the order in which packets pass them.
func Tables(b Bridge) []Table {
	return slices.DeleteFunc(slices.Clone(tables), func(t Table) bool { return t.Bridge != b })
}
