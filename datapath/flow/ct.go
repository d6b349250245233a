package flow

import (
	"net/netip"
	"strconv"
	"strings"

	"hairpin/openflow"
)

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
	return setting{openflow.CTMark, maskedNumber(uint64(c.Mark), uint64(c.MarkMask))}
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

func parseCT(s string) (Action, error) {
	var c CT
	for s != "" {
		var item string
		item, s = cutOutside(s, ',')
		if err := c.parseItem(item); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *CT) parseItem(item string) error {
	if inside, ok := between(item, "exec(", ")"); ok {
		return c.parseExec(inside)
	}
	if inside, ok := between(item, "nat(", ")"); ok {
		return c.NAT.parse(item, inside)
	}
	word, value, _ := strings.Cut(item, "=")
	switch word {
	case "commit":
		c.Commit = true
	case "nat":
		c.NAT = NAT{Kind: NATUndo}
	case "table":
		n, err := strconv.ParseUint(value, 0, 8)
		if err != nil || n == 0 {
			return wordError(item, "is not a table that ct can send packets on to")
		}
		c.Table = uint8(n)
	case "zone":
		n, err := strconv.ParseUint(value, 0, 16)
		if err != nil {
			return wordError(item, "is not a zone number")
		}
		c.Zone = uint16(n)
	default:
		return wordError(item, "is not an argument of ct known here")
	}
	return nil
}

// parseExec parses both spellings of setting the mark: ovs-ofctl prints the one with which the flow
// was added.
func (c *CT) parseExec(s string) error {
	mark, more, also := strings.Cut(s, ",")
	if c.EthSrc = also; also && more != ethSrcToCT {
		return wordError("exec("+s+")", "notes something not known here")
	}
	value, ok := between(mark, "load:", "->NXM_NX_CT_MARK[]")
	if ok { // the flow was added with load
		mark = value + "->ct_mark"
	}
	x, err := parseSetting(mark)
	c.Mark = uint32(x.value.low)
	if !x.exact() {
		c.MarkMask = uint32(x.mask.low)
	}
	if err != nil || x.oxm != openflow.CTMark || !c.marks() {
		return wordError("exec("+s+")", "is not the setting of a ct_mark")
	}
	return nil
}

func (n *NAT) parse(word, s string) error {
	*n = NAT{Kind: NATSrc}
	kind, value, _ := strings.Cut(s, "=")
	switch {
	case s == "":
		n.Kind = NATUndo
		return nil
	case s == "src":
		return nil
	case kind == "dst":
		n.Kind = NATDst
	case kind != "src":
		return wordError(word, "is neither src nor dst")
	}
	if a, err := parseAddr(value); err == nil {
		n.Addr = a
		return nil
	}
	value, last, isRange := cutLast(value, '-')
	ap, err := netip.ParseAddrPort(value)
	if err != nil || ap.Addr().Zone() != "" || ap.Port() == 0 {
		return wordError(word, "is not one address, with or without ports")
	}
	n.Addr, n.PortMin, n.PortMax = ap.Addr(), ap.Port(), ap.Port()
	if !isRange {
		return nil
	}
	max, err := strconv.ParseUint(last, 10, 16)
	if err != nil || uint16(max) < n.PortMin {
		return wordError(word, "has no port range")
	}
	n.PortMax = uint16(max)
	return nil
}
