package flow

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"hairpin/cluster"
)

const (
	moveEthDstToSrc = "move:NXM_OF_ETH_DST[]->NXM_OF_ETH_SRC[]"
	longerToMark    = ")->NXM_NX_PKT_MARK[0]" // after check_pkt_larger
	ethSrcToCT      = "move:NXM_OF_ETH_SRC[]->NXM_NX_CT_LABEL[0..47]"
	ethDstByCT      = "move:NXM_NX_CT_LABEL[0..47]->NXM_OF_ETH_DST[]"
	synFlags        = "+syn-ack"         // in tcp_flags
	pushVLAN        = "push_vlan:0x8100" // with the next action, which says the number
	vlanPresent     = 0x1000             // in vlan_vid: there is a tag
	tagged          = "vlan_tci=0x1000/0x1000"
	toTunnelKey     = "->tun_id" // with the next two actions, which say the rest of a Tunnel
)

func appendActions(b []byte, actions []Action) []byte {
	for i, a := range actions {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendAction(b, a)
	}
	return b
}

// appendAction knows every Action; TestEveryActionHasWords fails for a new one.
func appendAction(b []byte, a Action) []byte {
	switch a := a.(type) {
	case Output:
		if a.Port == Local {
			return append(b, Local...)
		}
		return appendPort(append(b, "output:"...), a.Port)
	case InPort:
		return append(b, "IN_PORT"...)
	case Normal:
		return append(b, "NORMAL"...)
	case Drop:
		return append(b, "drop"...)
	case SetEthDst:
		return append(appendMAC(append(b, "set_field:"...), a.MAC), "->eth_dst"...)
	case SetEthSrc:
		return append(appendMAC(append(b, "set_field:"...), a.MAC), "->eth_src"...)
	case SetSrc:
		b = a.Addr.AppendTo(append(b, "set_field:"...))
		if a.Addr.Is4() {
			return append(b, "->ip_src"...)
		}
		return append(b, "->ipv6_src"...)
	case SetTTL:
		return append(strconv.AppendUint(append(b, "set_field:"...), uint64(a.TTL), 10), "->nw_ttl"...)
	case MoveEthDstToSrc:
		return append(b, moveEthDstToSrc...)
	case SetEthDstByCT:
		return append(b, ethDstByCT...)
	case MarkLonger:
		return append(strconv.AppendUint(append(b, "check_pkt_larger("...), uint64(a.Length), 10), longerToMark...)
	case SetPktMark:
		return append(strconv.AppendUint(append(b, "set_field:0x"...), uint64(a.Mark), 16), "->pkt_mark"...)
	case SetTunnel:
		return a.append(b)
	case Resubmit:
		return append(strconv.AppendUint(append(b, "resubmit(,"...), uint64(a.Table), 10), ')')
	case PushVLAN:
		return append(strconv.AppendUint(append(b, pushVLAN+",set_field:"...), vlanPresent|uint64(a.ID), 10), "->vlan_vid"...)
	case PopVLAN:
		return append(b, "pop_vlan"...)
	case ToGroup:
		return strconv.AppendUint(append(b, "group:"...), uint64(a.ID), 10)
	case SetGroup:
		return append(strconv.AppendUint(append(b, "set_field:0x"...), uint64(a.ID), 16), "->reg6"...)
	case Learn:
		return a.append(b)
	case CT:
		return a.append(b)
	case UnknownActions:
		return append(b, a.Text...)
	}
	return fmt.Appendf(b, "unprintable:%T", a)
}

func (t SetTunnel) append(b []byte) []byte {
	b = append(strconv.AppendUint(append(b, "set_field:0x"...), uint64(t.Key), 16), toTunnelKey...)
	b = append(strconv.AppendUint(append(b, ",set_field:0x"...), uint64(t.Ports), 16), "->tun_metadata0"...)
	b = t.Peer.AppendTo(append(b, ",set_field:"...))
	return append(append(b, "->"...), t.field("dst")...)
}

// field is ovs-ofctl's word for an end of the tunnel.
func (t Tunnel) field(end string) string {
	if t.Peer.Is6() {
		return "tun_ipv6_" + end
	}
	return "tun_" + end
}

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
	if c.Mark != 0 {
		item("exec(set_field:0x")
		b = append(strconv.AppendUint(b, uint64(c.Mark), 16), "->ct_mark"...)
		if c.EthSrc {
			b = append(append(b, ','), ethSrcToCT...)
		}
		b = append(b, ')')
	}
	return append(b, ')')
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

func parseActions(s string) ([]Action, error) {
	var list []Action
	for s != "" {
		var word string
		word, s = cutOutside(s, ',')
		if word == pushVLAN {
			next, rest := cutOutside(s, ',')
			word, s = word+","+next, rest
		}
		for range 2 * strings.Count(word, toTunnelKey) {
			next, rest := cutOutside(s, ',')
			word, s = word+","+next, rest
		}
		a, err := parseAction(strings.TrimSpace(word))
		if err != nil {
			return nil, err
		}
		list = append(list, a)
	}
	switch {
	case len(list) == 0:
		return []Action{Drop{}}, nil // "actions=" without anything drops, says ovs-ofctl(8)
	case len(list) > 1 && slices.Contains(list, Action(Drop{})):
		return nil, wordError("drop", "stands alone")
	}
	return list, nil
}

func parseAction(s string) (Action, error) {
	switch strings.ToLower(s) {
	case "local", "output:local":
		return Output{Local}, nil
	case "in_port", "output:in_port":
		return InPort{}, nil
	case "normal":
		return Normal{}, nil
	case "drop":
		return Drop{}, nil
	case "pop_vlan", "strip_vlan":
		return PopVLAN{}, nil
	}
	if s == moveEthDstToSrc || s == "move:eth_dst[]->eth_src[]" || s == "move:eth_dst->eth_src" {
		return MoveEthDstToSrc{}, nil
	}
	if s == ethDstByCT {
		return SetEthDstByCT{}, nil
	}
	if isNumber(s) {
		return Output{s}, nil
	}
	if inside, ok := between(s, "ct(", ")"); ok {
		return parseCT(inside)
	}
	if length, ok := between(s, "check_pkt_larger(", longerToMark); ok {
		n, err := strconv.ParseUint(length, 10, 16)
		return MarkLonger{uint16(n)}, wrapWord(s, err)
	}
	if inside, ok := between(s, "learn(", ")"); ok {
		return parseLearn(s, inside)
	}
	if inside, ok := between(s, "resubmit(,", ")"); ok {
		return parseResubmit(s, inside)
	}
	if id, ok := between(s, pushVLAN+",set_field:", "->vlan_vid"); ok {
		n, err := strconv.ParseUint(id, 0, 13)
		if err != nil || n <= vlanPresent {
			return nil, wordError(s, "is not the tag of a VLAN")
		}
		return PushVLAN{uint16(n &^ vlanPresent)}, nil
	}
	if strings.Contains(s, toTunnelKey+",") {
		return parseSetTunnel(s)
	}
	word, value, _ := strings.Cut(s, ":")
	switch word {
	case "group":
		n, err := strconv.ParseUint(value, 0, 32)
		return ToGroup{uint32(n)}, wrapWord(s, err)
	case "output":
		port, err := unquote(value)
		if err != nil || port == "" || strings.ContainsAny(value, "[(") && value[0] != '"' {
			return nil, wordError(s, "is not an output to a port")
		}
		return Output{port}, nil
	case "mod_dl_dst":
		m, err := cluster.ParseMAC(value)
		return SetEthDst{m}, wrapWord(s, err)
	case "mod_dl_src":
		m, err := cluster.ParseMAC(value)
		return SetEthSrc{m}, wrapWord(s, err)
	case "mod_nw_src":
		addr, err := parseAddr(value)
		return SetSrc{addr}, wrapWord(s, err)
	case "set_field":
		return parseSetField(s, value)
	}
	return nil, wordError(s, "is not an action known here")
}

func parseResubmit(word, table string) (Action, error) {
	n, err := strconv.ParseUint(table, 0, 8)
	if err != nil {
		return nil, wordError(word, "has no table number")
	}
	return Resubmit{uint8(n)}, nil
}

// parseSetTunnel reads what append writes, and nothing else.
func parseSetTunnel(s string) (Action, error) {
	var t Tunnel
	var err error
	for word := range strings.SplitSeq(s, ",") {
		value, field, _ := strings.Cut(strings.TrimPrefix(word, "set_field:"), "->")
		switch field {
		case "tun_id":
			err = number(&t.Key, word, value, 24)
		case "tun_metadata0":
			err = number(&t.Ports, word, value, 32)
		case "tun_dst", "tun_ipv6_dst":
			t.Peer, err = parseAddr(value)
			err = wrapWord(word, err)
		}
		if err != nil {
			return nil, err
		}
	}
	if a := (SetTunnel{t}); string(a.append(nil)) == s {
		return a, nil
	}
	return nil, wordError(s, "is not how a flow of ours sends through a tunnel")
}

func parseSetField(word, s string) (Action, error) {
	value, field, _ := strings.Cut(s, "->")
	switch fieldName(field) {
	case "dl_dst":
		m, err := cluster.ParseMAC(value)
		return SetEthDst{m}, wrapWord(word, err)
	case "dl_src":
		m, err := cluster.ParseMAC(value)
		return SetEthSrc{m}, wrapWord(word, err)
	case "nw_src", "ipv6_src":
		addr, err := parseAddr(value)
		return SetSrc{addr}, wrapWord(word, err)
	case "nw_ttl":
		var ttl uint8
		err := number(&ttl, word, value, 8)
		return SetTTL{ttl}, err
	}
	n, err := strconv.ParseUint(value, 0, 32)
	switch field {
	case "pkt_mark":
		return SetPktMark{uint32(n)}, wrapWord(word, err)
	case "reg6":
		return SetGroup{uint32(n)}, wrapWord(word, err)
	}
	return nil, wordError(word, "sets a field not known here")
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

// parseExec reads both spellings of setting the mark: ovs-ofctl prints the one that the flow was made with.
func (c *CT) parseExec(s string) error {
	mark, more, also := strings.Cut(s, ",")
	if c.EthSrc = also; also && more != ethSrcToCT {
		return wordError("exec("+s+")", "notes something not known here")
	}
	value, ok := between(mark, "set_field:", "->ct_mark")
	if !ok {
		value, ok = between(mark, "load:", "->NXM_NX_CT_MARK[]")
	}
	n, err := strconv.ParseUint(value, 0, 32)
	if !ok || err != nil || n == 0 {
		return wordError("exec("+s+")", "is not the setting of a ct_mark")
	}
	c.Mark = uint32(n)
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
