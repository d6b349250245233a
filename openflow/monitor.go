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
// on the same connection, and those of flows with the cookie ignored in the bits of mask. For
// another message, ok is false.
func Updates(body []byte, mask, ignored uint64) (changes int, ok bool) {
	const short, full = 8, 24
	const added, modified, abbreviated = 1, 3, 4 // the last is a change made on this connection
	content, _, err := reply(body, multipartMonitor)
	for len(content) > 0 && err == nil {
		var e []byte
		if e, content, err = cutEntry(content, short); err != nil {
			break
		}
		switch event := be.Uint16(e[2:]); {
		case event == abbreviated:
		case len(e) < full || event < added || event > modified:
			return 0, false
		case be.Uint64(e[16:])&mask != ignored:
			changes++
		}
	}
	return changes, err == nil
}
