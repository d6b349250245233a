package flow

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"hairpin/cluster"
	"hairpin/openflow"
)

// Parts of actions in ovs-ofctl's syntax.
const (
	largerToMark = ")->NXM_NX_PKT_MARK[0]" // after check_pkt_larger
	ethSrcToCT   = "move:NXM_OF_ETH_SRC[]->NXM_NX_CT_LABEL[0..47]"
	pushVLAN     = "push_vlan:0x8100" // followed by the action with the VLAN ID
	toTunnelKey  = "->tun_id"         // followed by two actions with the rest of a Tunnel
	macBits      = 48
)

// constants lists the actions without arguments. append writes the first of the words, parse
// accepts all. It is read-only.
var constants = []struct {
	action  Action
	words   []string
	encoded []byte
}{
	{InPort{}, []string{"IN_PORT", "output:IN_PORT"}, openflow.Output(nil, openflow.PortInPort)},
	{Normal{}, []string{"NORMAL"}, openflow.Output(nil, openflow.PortNormal)},
	{Drop{}, []string{"drop"}, nil},
	{PopVLAN{}, []string{"pop_vlan", "strip_vlan"}, openflow.PopVLAN(nil)},
	{MoveEthDstToSrc{},
		[]string{"move:NXM_OF_ETH_DST[]->NXM_OF_ETH_SRC[]", "move:eth_dst[]->eth_src[]", "move:eth_dst->eth_src"},
		openflow.Copy(nil, macBits, openflow.EthDst, openflow.EthSrc)},
	{SetEthDstByCT{}, []string{"move:NXM_NX_CT_LABEL[0..47]->NXM_OF_ETH_DST[]"},
		openflow.Copy(nil, macBits, openflow.CTLabel, openflow.EthDst)},
}

// setters construct the actions that write one field, by that field. They are read-only.
var setters = map[openflow.Field]func(datum) Action{
	openflow.EthDst:  func(d datum) Action { return SetEthDst{d.mac()} },
	openflow.EthSrc:  func(d datum) Action { return SetEthSrc{d.mac()} },
	openflow.IPSrc:   func(d datum) Action { return SetSrc{d.addr()} },
	openflow.IPv6Src: func(d datum) Action { return SetSrc{d.addr()} },
	openflow.IPTTL:   func(d datum) Action { return SetTTL{uint8(d.value.low)} },
	openflow.PktMark: func(d datum) Action { return SetPktMark{uint32(d.value.low)} },
	openflow.Reg5:    func(d datum) Action { return SetProfile{uint32(d.value.low)} },
	openflow.Reg6:    func(d datum) Action { return SetGroup{uint32(d.value.low)} },
}

// setting is a field and the value that an action writes to it.
type setting struct {
	oxm openflow.Field
	datum
}

// settings returns the fields that an action writes, nil for an action that does anything else.
func settings(a Action) []setting {
	switch a := a.(type) {
	case SetEthDst:
		return []setting{{openflow.EthDst, macDatum(a.MAC)}}
	case SetEthSrc:
		return []setting{{openflow.EthSrc, macDatum(a.MAC)}}
	case SetSrc:
		return []setting{{byFamily(a.Addr, openflow.IPSrc, openflow.IPv6Src), addrDatum(a.Addr, a.Addr.BitLen())}}
	case SetTTL:
		return []setting{{openflow.IPTTL, exactly(uint64(a.TTL))}}
	case SetPktMark:
		return []setting{{openflow.PktMark, exactly(uint64(a.Mark))}}
	case SetProfile:
		return []setting{{openflow.Reg5, exactly(uint64(a.ID))}}
	case SetGroup:
		return []setting{{openflow.Reg6, exactly(uint64(a.ID))}}
	case SetTunnel:
		return []setting{
			{openflow.TunID, exactly(uint64(a.Key))},
			{openflow.TunMetadata0, exactly(uint64(a.Ports))},
			{byFamily(a.Peer, openflow.TunDst, openflow.TunIPv6Dst), addrDatum(a.Peer, a.Peer.BitLen())},
		}
	}
	return nil
}

func byFamily(a netip.Addr, v4, v6 openflow.Field) openflow.Field {
	if a.Is6() {
		return v6
	}
	return v4
}

func appendActions(b []byte, actions []Action) []byte {
	for i, a := range actions {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendAction(b, a)
	}
	return b
}

// appendAction must handle every Action; TestEveryActionHasWords fails for a new one.
func appendAction(b []byte, a Action) []byte {
	switch a := a.(type) {
	case Output:
		if a.Port == Local {
			return append(b, Local...)
		}
		return appendPort(append(b, "output:"...), a.Port)
	case MarkLonger:
		return append(strconv.AppendUint(append(b, "check_pkt_larger("...), uint64(a.Length), 10), largerToMark...)
	case Resubmit:
		return append(strconv.AppendUint(append(b, "resubmit(,"...), uint64(a.Table), 10), ')')
	case PushVLAN:
		b = strconv.AppendUint(append(b, pushVLAN+",set_field:"...), openflow.VLANPresent|uint64(a.ID), 10)
		return append(b, "->vlan_vid"...)
	case ToGroup:
		return strconv.AppendUint(append(b, "group:"...), uint64(a.ID), 10)
	case Conjunction:
		return fmt.Appendf(b, "conjunction(%d,%d/%d)", a.ID, a.Clause, a.Of)
	case Learn:
		return a.append(b)
	case CT:
		return a.append(b)
	case UnknownActions:
		return append(b, a.Text...)
	}
	for _, c := range constants {
		if c.action == a {
			return append(b, c.words[0]...)
		}
	}
	list := settings(a)
	if list == nil {
		return fmt.Appendf(b, "unprintable:%T", a)
	}
	for i, s := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = s.append(b)
	}
	return b
}

// append appends set_field:value->field.
func (s setting) append(b []byte) []byte {
	x := byOXM[s.oxm]
	b = x.notation.append(append(b, "set_field:"...), s.datum)
	return append(append(b, "->"...), cmp.Or(x.alias, x.name)...)
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
		return []Action{Drop{}}, nil // "actions=" without any action drops (ovs-ofctl(8))
	case len(list) > 1 && slices.Contains(list, Action(Drop{})):
		return nil, wordError("drop", "stands alone")
	}
	return list, nil
}

func parseAction(s string) (Action, error) {
	if strings.EqualFold(s, Local) || strings.EqualFold(s, "output:"+Local) {
		return Output{Local}, nil
	}
	for _, c := range constants {
		if slices.ContainsFunc(c.words, func(word string) bool { return strings.EqualFold(word, s) }) {
			return c.action, nil
		}
	}
	if isNumber(s) {
		return Output{s}, nil
	}
	if inside, ok := between(s, "ct(", ")"); ok {
		return parseCT(inside)
	}
	if length, ok := between(s, "check_pkt_larger(", largerToMark); ok {
		n, err := strconv.ParseUint(length, 10, 16)
		return MarkLonger{uint16(n)}, wrapWord(s, err)
	}
	if inside, ok := between(s, "conjunction(", ")"); ok {
		return parseConjunction(s, inside)
	}
	if inside, ok := between(s, "learn(", ")"); ok {
		return parseLearn(s, inside)
	}
	if inside, ok := between(s, "resubmit(,", ")"); ok {
		return parseResubmit(s, inside)
	}
	if id, ok := between(s, pushVLAN+",set_field:", "->vlan_vid"); ok {
		n, err := strconv.ParseUint(id, 0, 13)
		if err != nil || n <= openflow.VLANPresent {
			return nil, wordError(s, "is not the tag of a VLAN")
		}
		return PushVLAN{uint16(n &^ openflow.VLANPresent)}, nil
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
		x, err := parseSetting(s)
		if err != nil {
			return nil, err
		}
		if action := setters[x.oxm]; action != nil {
			return action(x.datum), nil
		}
		return nil, wordError(s, "sets a field not known here")
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

// parseSetTunnel accepts only what appendAction writes.
func parseSetTunnel(s string) (Action, error) {
	var t Tunnel
	for word := range strings.SplitSeq(s, ",") {
		x, err := parseSetting(word)
		switch {
		case err != nil:
			return nil, err
		case x.oxm == openflow.TunID:
			t.Key = uint32(x.value.low)
		case x.oxm == openflow.TunMetadata0:
			t.Ports = uint32(x.value.low)
		case x.oxm == openflow.TunDst, x.oxm == openflow.TunIPv6Dst:
			t.Peer = x.addr()
		}
	}
	if a := (SetTunnel{t}); string(appendAction(nil, a)) == s {
		return a, nil
	}
	return nil, wordError(s, "is not how a flow of ours sends through a tunnel")
}

// parseSetting parses set_field:value->field.
func parseSetting(word string) (setting, error) {
	value, name, _ := strings.Cut(strings.TrimPrefix(word, "set_field:"), "->")
	x, ok := byName[name]
	if !ok || x.notation == nil {
		return setting{}, wordError(word, "sets a field not known here")
	}
	d, err := x.notation.parse(value, 8*x.oxm.Width())
	if err == nil && !(d.fits(x.oxm.Width()) && (d.exact() || x.oxm == openflow.CTMark)) {
		return setting{}, wordError(word, "is not a value that the field can have")
	}
	return setting{x.oxm, d}, wrapWord(word, err)
}
