// Package openflow encodes and decodes messages of OpenFlow 1.5, with the fields and actions that
// Open vSwitch adds (its openflow/nicira-ext.h and lib/ofp-actions.c). It handles bytes and numbers
// only: its callers know the flows of a bridge and the names of ports. It opens no connection.
package openflow

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"
)

var be = binary.BigEndian

// Type is the type of a message (OFPT_*).
type Type uint8

// The types of messages that Hairpin sends or understands.
const (
	Hello            Type = 0
	Error            Type = 1
	EchoRequest      Type = 2
	EchoReply        Type = 3
	FlowMod          Type = 14
	GroupMod         Type = 15
	MultipartRequest Type = 18
	MultipartReply   Type = 19
	BarrierRequest   Type = 20
	BarrierReply     Type = 21
	SetAsync         Type = 28
	RequestForward   Type = 32
	BundleControl    Type = 33
	BundleAdd        Type = 34
)

const (
	version    = 6 // OpenFlow 1.5
	headerSize = 8
	// MaxMessage is the largest size of a message.
	MaxMessage = 1<<16 - 1
)

// Message appends a message with its header.
func Message(b []byte, t Type, xid uint32, parts ...[]byte) []byte {
	start := len(b)
	b = be.AppendUint32(append(b, version, byte(t), 0, 0), xid)
	for _, p := range parts {
		b = append(b, p...)
	}
	return putSize(b, start+2, start)
}

// Receive reads a message.
func Receive(r io.Reader) (t Type, xid uint32, body []byte, err error) {
	var head [headerSize]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, 0, nil, err
	}
	body = make([]byte, max(0, int(be.Uint16(head[2:]))-headerSize))
	_, err = io.ReadFull(r, body)
	return Type(head[1]), be.Uint32(head[4:]), body, err
}

// SwitchError is an error message (OFPT_ERROR) of the switch.
type SwitchError struct {
	XID        uint32 // of the rejected message
	Type, Code uint16
}

// Error returns the numbers of the reason in OpenFlow.
func (r *SwitchError) Error() string {
	return fmt.Sprintf("ovs-vswitchd refuses it (OpenFlow 1.5: type %d, code %d)", r.Type, r.Code)
}

// ParseError parses the body of an error message.
func ParseError(xid uint32, body []byte) *SwitchError {
	body = append(slices.Clone(body), 0, 0, 0, 0) // missing bytes are zeros
	return &SwitchError{xid, be.Uint16(body), be.Uint16(body[2:])}
}

// Steps of a bundle.
const (
	BundleOpen    = 0
	BundleCommit  = 4
	BundleDiscard = 6

	bundleFlags = 3 // atomic, ordered
)

// BundleStep appends a message that opens, commits or discards a bundle.
func BundleStep(b []byte, xid uint32, step uint16) []byte {
	return Message(b, BundleControl, xid, u32(1), u16(step), u16(bundleFlags))
}

// AddToBundle appends a message that adds another to the open bundle. Both have the same xid.
func AddToBundle(b []byte, xid uint32, t Type, body []byte) []byte {
	return Message(b, BundleAdd, xid, u32(1), u16(0), u16(bundleFlags), Message(nil, t, xid, body))
}

// padded adds zeros until the bytes from start on are a multiple of 8.
func padded(b []byte, start int) []byte {
	return append(b, make([]byte, (8-(len(b)-start)%8)%8)...)
}

// putSize writes the number of bytes from start on into the two bytes at place.
func putSize(b []byte, place, start int) []byte {
	be.PutUint16(b[place:], uint16(len(b)-start))
	return b
}

func u16(v uint16) []byte { return be.AppendUint16(nil, v) }
func u32(v uint32) []byte { return be.AppendUint32(nil, v) }
