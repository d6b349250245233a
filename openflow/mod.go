package openflow

import (
	"bytes"
	"fmt"
	"slices"
)

// Flow is the body of a flow mod. Match and Actions are encoded.
type Flow struct {
	Cookie, CookieMask uint64
	Table              uint8
	Priority           uint16
	Match, Actions     []byte
}

const (
	flowAdd          = 0
	flowDeleteStrict = 4
	applyActions     = 4 // an instruction
)

// Add returns the body of a message that adds the flow, or changes the one with the same table,
// priority and match.
func (f *Flow) Add() []byte {
	b := f.mod(flowAdd)
	if len(f.Actions) == 0 {
		return b
	}
	start := len(b)
	return putSize(append(append(b, 0, applyActions, 0, 0, 0, 0, 0, 0), f.Actions...), start+2, start)
}

// Delete returns the body of a message that deletes the flow with the same table, priority and
// match. The bits of the flow's cookie in CookieMask must equal those of Cookie.
func (f *Flow) Delete() []byte { return f.mod(flowDeleteStrict) }

func (f *Flow) mod(command uint8) []byte {
	const noBuffer = 0xffffffff
	b := make([]byte, 0, 64+len(f.Match)+len(f.Actions))
	b = be.AppendUint64(be.AppendUint64(b, f.Cookie), f.CookieMask)
	b = append(b, f.Table, command, 0, 0, 0, 0) // no timeouts
	b = be.AppendUint32(be.AppendUint16(b, f.Priority), noBuffer)
	b = be.AppendUint32(be.AppendUint32(b, anyPort), anyGroup)
	b = append(b, 0, 0, 0, 0) // no flags, no importance
	return append(b, f.Match...)
}

// SelectGroup is the body of a group mod. Its type is select.
type SelectGroup struct {
	ID      uint32
	Buckets []byte  // made with AppendBucket
	Hashed  []Field // the switch hashes these to choose; none: the datapath chooses (dp_hash)
}

const (
	groupAddOrModify = 0x8000
	groupDelete      = 2
	typeSelect       = 1
)

// AddOrModify returns the body of a message that adds the group, or changes the one with the same
// ID.
func (g *SelectGroup) AddOrModify() ([]byte, error) {
	if len(g.Buckets) > MaxMessage-1024 { // reserve space for the rest of the message
		return nil, fmt.Errorf("group %d: its buckets are too long for one message", g.ID)
	}
	return g.appendMethod(g.mod(groupAddOrModify, g.Buckets)), nil
}

// Delete returns the body of a message that deletes the group with the ID.
func (g *SelectGroup) Delete() []byte { return g.mod(groupDelete, nil) }

func (g *SelectGroup) mod(command uint16, buckets []byte) []byte {
	const allBuckets = 0xffffffff
	b := append(be.AppendUint16(nil, command), typeSelect, 0)
	b = be.AppendUint16(be.AppendUint32(b, g.ID), uint16(len(buckets)))
	return append(be.AppendUint32(append(b, 0, 0), allBuckets), buckets...)
}

// appendMethod appends the property with the selection method (ntr_group_property).
func (g *SelectGroup) appendMethod(b []byte) []byte {
	const experimenter, selectionMethod = 0x154d, 1
	name := "dp_hash"
	if len(g.Hashed) > 0 {
		name = "hash"
	}
	start := len(b)
	b = append(b, 0xff, 0xff, 0, 0)
	b = be.AppendUint32(be.AppendUint32(b, experimenter), selectionMethod)
	b = append(b, 0, 0, 0, 0)
	b = append(append(b, name...), make([]byte, 16-len(name)+8)...) // and its parameter
	for _, f := range g.Hashed {
		b = f.Append(b, slices.Repeat([]byte{0xff}, f.Width()), nil)
	}
	return padded(putSize(b, start+2, start), start)
}

// hashed returns the fields of a property of appendMethod.
func hashed(property []byte) (list []Field) {
	const fixed = 36
	if p := Content(property); len(p) >= fixed {
		for x := range Fields(p[fixed:]) {
			list = append(list, x.Field)
		}
	}
	return list
}

// AppendBucket appends a bucket with encoded actions and weight 1.
func AppendBucket(b []byte, id uint32, actions []byte) []byte {
	start := len(b)
	b = append(be.AppendUint32(append(b, 0, 0, 0, 0), id), actions...)
	b = putSize(b, start+2, start+8)
	b = append(b, 0, 0, 0, 8, 0, 1, 0, 0) // the property weight (type 0, 8 bytes): 1
	return putSize(b, start, start)
}

// Buckets yields the ID and the actions of each bucket. The actions are nil if AppendBucket cannot
// make the bucket, as with another weight.
func Buckets(list []byte) func(yield func(id uint32, actions []byte) bool) {
	return func(yield func(uint32, []byte) bool) {
		const head, properties = 8, 8
		for len(list) >= head {
			size := int(be.Uint16(list))
			if size < head || size > len(list) {
				return
			}
			var b []byte
			b, list = list[:size], list[size:]
			id, actions := be.Uint32(b[4:]), b[head:max(head, size-properties)]
			if !bytes.Equal(AppendBucket(nil, id, actions), b) {
				actions = nil
			}
			if !yield(id, actions) {
				return
			}
		}
	}
}
