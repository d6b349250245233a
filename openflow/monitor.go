package openflow

import "slices"

// FlowMonitor appends a request to report every change of a flow, without its actions.
func FlowMonitor(b []byte, xid uint32) []byte {
	const added, removed, modified, allTables = 2, 4, 8, 0xff
	match := AppendMatch(nil, func(b []byte) []byte { return b })
	return multipart(b, xid, multipartMonitor, u32(1), u32(anyPort), u32(anyGroup), u16(added|removed|modified),
		[]byte{allTables, 0}, match)
}

// ForwardGroupMods appends a request to forward group changes of other controllers, and no other
// asynchronous message of a switch (OpenFlow 1.5, 7.3.10).
func ForwardGroupMods(b []byte, xid uint32) []byte {
	const groupMods = 1
	// The properties have masks of reasons: packets, ports, removed flows, roles, tables, requests.
	var masks []byte
	for _, x := range [][2]uint32{{1, 0}, {3, 0}, {5, 0}, {7, 0}, {9, 0}, {11, groupMods}} {
		masks = slices.Concat(masks, u16(uint16(x[0])), u16(8), u32(x[1]))
	}
	return Message(b, SetAsync, xid, masks)
}

// Updates counts the changes that a multipart reply to FlowMonitor reports. It omits changes made
// on the same connection and those of flows whose masked cookie is ignored. For another message, ok
// is false.
func Updates(body []byte, mask, ignored uint64) (changes int, ok bool) {
	const short, full = 8, 24
	const added, modified, abbreviated = 1, 3, 4 // the last is a change made on this connection
	if len(body) < multipartHeader || be.Uint16(body) != multipartMonitor {
		return 0, false
	}
	for b := body[multipartHeader:]; len(b) > 0; {
		if len(b) < short {
			return 0, false
		}
		size, event := int(be.Uint16(b)), be.Uint16(b[2:])
		switch {
		case size < short || size > len(b):
			return 0, false
		case event == abbreviated:
			b = b[size:]
			continue
		case size < full || event < added || event > modified:
			return 0, false
		}
		if be.Uint64(b[16:])&mask != ignored {
			changes++
		}
		b = b[size:]
	}
	return changes, true
}

// TableStats appends a request for the statistics of all tables.
func TableStats(b []byte, xid uint32) []byte { return multipart(b, xid, multipartTables) }

// CountFlows adds the numbers of flows in tables, from a reply to TableStats (OpenFlow 1.5,
// 7.3.5.3). It reports whether another message with more follows.
func CountFlows(flows map[uint8]uint32, body []byte) (more bool) {
	const entry, active, flagMore = 24, 4, 1
	if len(body) < multipartHeader || be.Uint16(body) != multipartTables {
		return false
	}
	more = be.Uint16(body[2:])&flagMore != 0
	for b := body[multipartHeader:]; len(b) >= entry; b = b[entry:] {
		flows[b[0]] = be.Uint32(b[active:])
	}
	return more
}

// multipartHeader is the size of the header before the content of a multipart message.
const multipartHeader = 8

func multipart(b []byte, xid uint32, kind uint16, parts ...[]byte) []byte {
	return Message(b, MultipartRequest, xid, u16(kind), make([]byte, 6), slices.Concat(parts...))
}
