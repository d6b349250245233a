package ovsdb

import (
	"crypto/rand"
	"fmt"
	"strings"

	"hairpin/ovsdb/codec"
)

// Types of package codec that belong to the interface of this package.
type (
	// UUID identifies a row; see [NewUUID] and [NamedUUID].
	UUID = codec.UUID
	// Row is a struct whose fields stand for the columns of a table; see the package comment for
	// its form. As type parameter it is the struct, not a pointer to it.
	Row = codec.Row
	// Schema is a database schema, see [Conn.Schema].
	Schema = codec.Schema
)

// NewUUID returns a random UUID (RFC 9562, version 4). A row may be inserted under it
// (ovsdb-server(7), "uuid" member of insert), so that other rows can refer to it before, in and
// after that transaction.
func NewUUID() UUID {
	var b [16]byte
	rand.Read(b[:]) // never fails, see crypto/rand
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return UUID(fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:]))
}

// NamedUUID returns the UUID by which the operations of one transaction refer to a row that it
// inserts (RFC 7047, 5.1, named-uuid). Key may be any string; different keys give different UUIDs.
func NamedUUID(key string) UUID {
	// The protocol allows only letters, digits and underscores; other bytes are encoded after an
	// underscore.
	var b strings.Builder
	b.WriteString("row_")
	for i := range len(key) {
		c := key[i]
		if c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "_%02x", c)
		}
	}
	return UUID(b.String())
}
