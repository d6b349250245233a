package openflow

import (
	"bytes"
	"errors"
	"slices"
)

// Types of multipart messages (OFPMP_*).
const (
	multipartFlows   = 1
	multipartTables  = 3
	multipartGroups  = 7
	multipartMonitor = 16
)

// multipartHeader is the size of the header before the content of a multipart message.
const multipartHeader = 8

func multipart(b []byte, xid uint32, kind uint16, parts ...[]byte) []byte {
	return Message(b, MultipartRequest, xid, u16(kind), make([]byte, 6), slices.Concat(parts...))
}

// errDamaged is the error of a reply that ends too early, or is to another request.
var errDamaged = errors.New("a reply of ovs-vswitchd is damaged")

// reply returns the content of a multipart reply, and whether another message with more follows.
func reply(body []byte, kind uint16) (content []byte, more bool, err error) {
	const flagMore = 1
	if len(body) < multipartHeader || be.Uint16(body) != kind {
		return nil, false, errDamaged
	}
	return body[multipartHeader:], be.Uint16(body[2:])&flagMore != 0, nil
}

// cutEntry cuts an entry off the content of a reply. It begins with its length, and has at least as
// many bytes as fixed.
func cutEntry(content []byte, fixed int) (entry, rest []byte, err error) {
	if len(content) < fixed {
		return nil, nil, errDamaged
	}
	size := int(be.Uint16(content))
	if size < fixed || size > len(content) {
		return nil, nil, errDamaged
	}
	return content[:size], content[size:], nil
}

// InstalledFlow is a flow that the switch has, as it reports it.
type InstalledFlow struct {
	Flow
	IdleTimeout, HardTimeout, Flags, Importance uint16
	Packets                                     uint64 // that matched it
	Other                                       []byte // its instructions, if they do not just apply Actions
}

// RequestFlows appends a request for all flows that have the cookie in the bits of a mask.
func RequestFlows(b []byte, xid uint32, cookie, mask uint64) []byte {
	const allTables = 0xff
	match := AppendMatch(nil, func(b []byte) []byte { return b })
	return multipart(b, xid, multipartFlows, []byte{allTables, 0, 0, 0}, u32(anyPort), u32(anyGroup), u32(0),
		be.AppendUint64(be.AppendUint64(nil, cookie), mask), match)
}

// ParseFlows returns the flows of a reply to RequestFlows, and whether another message with more
// follows.
func ParseFlows(body []byte) (list []InstalledFlow, more bool, err error) {
	content, more, err := reply(body, multipartFlows)
	for len(content) > 0 && err == nil {
		const fixed = 24
		var e []byte
		if e, content, err = cutEntry(content, fixed); err != nil {
			break
		}
		f := InstalledFlow{IdleTimeout: be.Uint16(e[8:]), HardTimeout: be.Uint16(e[10:]), Flags: be.Uint16(e[12:]),
			Importance: be.Uint16(e[14:])}
		f.Table, f.Priority, f.Cookie = e[4], be.Uint16(e[6:]), be.Uint64(e[16:])
		var stats, instructions []byte
		if f.Match, e, err = cutPadded(e[fixed:]); err != nil {
			break
		}
		if stats, instructions, err = cutPadded(e); err != nil {
			break
		}
		f.Packets = packets(stats)
		f.Actions, f.Other = applied(instructions)
		list = append(list, f)
	}
	return list, more, err
}

// cutPadded cuts off a part that has its length, without padding, in its second word.
func cutPadded(b []byte) (part, rest []byte, err error) {
	if len(b) < 4 {
		return nil, nil, errDamaged
	}
	size := (int(be.Uint16(b[2:])) + 7) &^ 7
	if size > len(b) {
		return nil, nil, errDamaged
	}
	return b[:size], b[size:], nil
}

// packets returns the packet count in statistics (OpenFlow 1.5, 7.2.4).
func packets(stats []byte) (n uint64) {
	const packetCount Field = 0x8002<<16 + 4<<9 + 8
	for x := range Fields(Content(stats)) {
		if x.Field == packetCount {
			n = be.Uint64(x.Value)
		}
	}
	return n
}

// applied returns the actions of instructions that just apply them, otherwise the instructions.
func applied(instructions []byte) (actions, other []byte) {
	const head = 8
	if len(instructions) >= head && int(be.Uint16(instructions[2:])) == len(instructions) &&
		be.Uint16(instructions) == applyActions {
		return instructions[head:], nil
	}
	return nil, instructions
}

// RequestGroups appends a request for all groups.
func RequestGroups(b []byte, xid uint32) []byte {
	return multipart(b, xid, multipartGroups, u32(allGroups), u32(0))
}

// ParseGroups returns the groups of a reply to RequestGroups, and whether another message with more
// follows. A group that is no SelectGroup has only an ID.
func ParseGroups(body []byte) (list []SelectGroup, more bool, err error) {
	content, more, err := reply(body, multipartGroups)
	for len(content) > 0 && err == nil {
		const fixed = 16
		var e []byte
		if e, content, err = cutEntry(content, fixed); err != nil {
			break
		}
		g := SelectGroup{ID: be.Uint32(e[4:])}
		if buckets := fixed + int(be.Uint16(e[8:])); buckets <= len(e) {
			g.Buckets, g.Hashed = e[fixed:buckets], hashed(e[buckets:])
		}
		if e[2] != typeSelect || !bytes.Equal(g.appendMethod(slices.Clone(g.Buckets)), e[fixed:]) {
			g = SelectGroup{ID: g.ID}
		}
		list = append(list, g)
	}
	return list, more, err
}

// Table are the figures of a table.
type Table struct {
	Flows            uint32
	Lookups, Matched uint64
}

// RequestTables appends a request for the statistics of all tables.
func RequestTables(b []byte, xid uint32) []byte { return multipart(b, xid, multipartTables) }

// ParseTables adds the tables of a reply to RequestTables (OpenFlow 1.5, 7.3.5.3). It reports
// whether another message with more follows.
func ParseTables(tables map[uint8]Table, body []byte) (more bool, err error) {
	content, more, err := reply(body, multipartTables)
	const entry = 24
	for ; len(content) >= entry; content = content[entry:] {
		tables[content[0]] = Table{be.Uint32(content[4:]), be.Uint64(content[8:]), be.Uint64(content[16:])}
	}
	return more, err
}
