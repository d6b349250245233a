package flow

import (
	"bytes"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"hairpin/datapath/flow/oxm"
	"hairpin/openflow"
)

// ethSrcToCT is openflow.MoveEthSrcToCT in ovs-ofctl's syntax.
const ethSrcToCT = "move:NXM_OF_ETH_SRC[]->NXM_NX_CT_LABEL[0..47]"

// ctCodec is the codec of CT.
type ctCodec struct{}

func (ctCodec) zeroAction() Action { return CT{} }

func (ctCodec) append(b []byte, a Action) ([]byte, bool) { return a.(CT).append(b), true }

func (ctCodec) encode(b []byte, a Action) ([]byte, bool) { return a.(CT).encode(b), true }

func (c CT) append(b []byte) []byte {
	b = append(b, "ct("...)
	start := len(b)
	item := func(word string) {
		if len(b) > start {
			b = append(b, ',')
		}
		b = append(b, word...)
	}
	if c.Commit {
		item("commit")
	}
	if c.Table != 0 {
		item("table=")
		b = strconv.AppendUint(b, uint64(c.Table), 10)
	}
	if c.Zone != 0 {
		item("zone=")
		b = strconv.AppendUint(b, uint64(c.Zone), 10)
	}
	switch c.NAT.Kind {
	case NATUndo:
		item("nat")
	case NATSrc:
		if !c.NAT.Addr.IsValid() {
			item("nat(src)")
			break
		}
		item("nat(src=")
		b = append(c.NAT.append(b), ')')
	case NATDst:
		item("nat(dst=")
		b = append(c.NAT.append(b), ')')
	}
	if c.marks() {
		item("exec(")
		b = c.mark().append(b)
		if c.EthSrc {
			b = append(append(b, ','), ethSrcToCT...)
		}
		b = append(b, ')')
	}
	return append(b, ')')
}

// marks reports whether the action writes ct_mark.
func (c CT) marks() bool { return c.Mark != 0 || c.MarkMask != 0 }

func (c CT) mark() setting {
	return setting{byName["ct_mark"], oxm.Masked(uint64(c.Mark), uint64(c.MarkMask))}
}

func (n NAT) append(b []byte) []byte {
	if n.PortMin == 0 {
		return n.Addr.AppendTo(b)
	}
	b = netip.AddrPortFrom(n.Addr, n.PortMin).AppendTo(b)
	if n.PortMax > n.PortMin {
		b = strconv.AppendUint(append(b, '-'), uint64(n.PortMax), 10)
	}
	return b
}

func (ctCodec) parse(s string) (Action, string, bool) {
	word, _ := cutOutside(s, ',')
	items, ok := between(word, "ct(", ")")
	var c CT
	for ok && items != "" {
		var item string
		item, items = cutOutside(items, ',')
		ok = c.parseItem(item)
	}
	return c, s[len(word):], ok
}

func (c *CT) parseItem(item string) bool {
	if inside, ok := between(item, "exec(", ")"); ok {
		return c.parseExec(inside)
	}
	if inside, ok := between(item, "nat(", ")"); ok {
		return c.NAT.parse(inside)
	}
	word, value, _ := strings.Cut(item, "=")
	switch word {
	case "commit":
		c.Commit = true
	case "nat":
		c.NAT = NAT{Kind: NATUndo}
	case "table":
		return number(&c.Table, item, value, 8) == nil && c.Table != 0
	case "zone":
		return number(&c.Zone, item, value, 16) == nil
	default:
		return false
	}
	return true
}

func (c *CT) parseExec(s string) bool {
	x, rest, ok := parseSetting(s)
	c.EthSrc = rest == ","+ethSrcToCT
	return ok && c.setMark(x) && (rest == "" || c.EthSrc)
}

// setMark makes the action write ct_mark. It returns false if x is a setting of another field.
func (c *CT) setMark(x setting) bool {
	c.Mark = uint32(x.Bits.Low)
	if !x.Exact() {
		c.MarkMask = uint32(x.Mask.Low)
	}
	return x.oxm == openflow.CTMark && c.marks()
}

func (n *NAT) parse(s string) bool {
	*n = NAT{Kind: NATSrc}
	kind, value, _ := strings.Cut(s, "=")
	switch {
	case s == "src":
		return true
	case kind == "dst":
		n.Kind = NATDst
	case kind != "src":
		return false
	}
	if a, err := oxm.ParseAddr(value); err == nil {
		n.Addr = a
		return true
	}
	value, last, isRange := cutLast(value, '-')
	ap, err := netip.ParseAddrPort(value)
	n.Addr, n.PortMin, n.PortMax = ap.Addr(), ap.Port(), ap.Port()
	if err == nil && isRange {
		err = number(&n.PortMax, s, last, 16)
	}
	return err == nil && n.Addr.Zone() == "" && n.PortMin != 0 && n.PortMax >= n.PortMin
}

// natFlags maps kinds of NAT to OpenFlow. It is read-only.
var natFlags = [...]uint16{NATSrc: openflow.NATSrc, NATDst: openflow.NATDst}

func (c CT) encode(b []byte) []byte {
	var nested []byte
	if n := c.NAT; n.Kind != NoNAT {
		w := openflow.NAT{Flags: natFlags[n.Kind], Addr: n.Addr.AsSlice(), First: n.PortMin, Last: n.PortMax}
		nested = w.Append(nested)
	}
	if c.marks() {
		nested = c.mark().encode(nested)
	}
	if c.EthSrc {
		nested = openflow.MoveEthSrcToCT.Append(nested)
	}
	return openflow.CT{Commit: c.Commit, Zone: c.Zone, Table: c.Table, Nested: nested}.Append(b)
}

func (ctCodec) decode(b []byte) (Action, []byte, bool) {
	w, rest, ok := openflow.CutCT(b)
	c := CT{Commit: w.Commit, Zone: w.Zone, Table: w.Table}
	if n, more, is := openflow.CutNAT(w.Nested); is {
		kind := slices.Index(natFlags[NATUndo:], n.Flags)
		if kind < 0 {
			return nil, b, false
		}
		c.NAT = NAT{NATUndo + NATKind(kind), netip.Addr{}, n.First, n.Last}
		c.NAT.Addr, _ = netip.AddrFromSlice(n.Addr)
		w.Nested = more
	}
	if x, more, is := decodeSetting(w.Nested); is && c.setMark(x) {
		w.Nested = more
	}
	_, _, c.EthSrc = openflow.MoveEthSrcToCT.Cut(w.Nested)
	return c, rest, ok && bytes.Equal(c.encode(nil), b[:len(b)-len(rest)])
}
