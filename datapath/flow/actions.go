package flow

import (
	"encoding/hex"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"hairpin/cluster"
	"hairpin/openflow"
)

// codec describes how actions of one type are written as text, in ovs-ofctl's syntax, and in
// OpenFlow. append and encode return false for an action of another codec, parse and decode for a
// text or a message that does not begin with such an action.
type codec interface {
	zeroAction() Action
	append(b []byte, a Action) ([]byte, bool)
	parse(s string) (a Action, rest string, ok bool)
	encode(b []byte, a Action) ([]byte, bool)
	decode(b []byte) (a Action, rest []byte, ok bool)
}

// codecs lists the codecs of all actions. It is read-only.
var codecs = []codec{
	outputCodec{},
	ctCodec{},
	numberCodec{InPort{}, "IN_PORT", openflow.ToInPort},
	numberCodec{Normal{}, "NORMAL", openflow.ToNormal},
	numberCodec{Drop{}, "drop", openflow.Action{}},
	numberCodec{MoveEthDstToSrc{}, "move:NXM_OF_ETH_DST[]->NXM_OF_ETH_SRC[]", openflow.MoveEthDstToSrc},
	numberCodec{SetEthDstByCT{}, "move:NXM_NX_CT_LABEL[0..47]->NXM_OF_ETH_DST[]", openflow.MoveCTToEthDst},
	numberCodec{MarkLonger{}, "check_pkt_larger(%d)->NXM_NX_PKT_MARK[0]", openflow.CheckLarger},
	numberCodec{Resubmit{}, "resubmit(,%d)", openflow.Resubmit},
	numberCodec{ToGroup{}, "group:%d", openflow.ToGroup},
	numberCodec{Conjunction{}, "conjunction(%d,%d/%d)", openflow.Conjunction},
	learnCodec(cluster.IPv4, "NXM_OF_IP_SRC", openflow.LearnIPSrc),
	learnCodec(cluster.IPv6, "NXM_NX_IPV6_SRC", openflow.LearnIPv6Src),
	setCodec{SetEthDst{}, fieldsOf(openflow.EthDst)},
	setCodec{SetEthSrc{}, fieldsOf(openflow.EthSrc)},
	setCodec{SetSrc{}, fieldsOf(openflow.IPSrc)},
	setCodec{SetSrc{}, fieldsOf(openflow.IPv6Src)},
	setCodec{SetTTL{}, fieldsOf(openflow.IPTTL)},
	setCodec{SetPktMark{}, fieldsOf(openflow.PktMark)},
	setCodec{SetProfile{}, fieldsOf(openflow.Reg5)},
	setCodec{SetGroup{}, fieldsOf(openflow.Reg6)},
	setCodec{SetTunnel{}, fieldsOf(openflow.TunID, openflow.TunMetadata0, openflow.TunDst)},
	setCodec{SetTunnel{}, fieldsOf(openflow.TunID, openflow.TunMetadata0, openflow.TunIPv6Dst)},
}

// Actions lists an action of each type.
func Actions() []Action {
	list := []Action{UnknownActions{}}
	for _, f := range codecs {
		if a := f.zeroAction(); !slices.Contains(list, a) {
			list = append(list, a)
		}
	}
	return list
}

// codecsOf maps types of actions to their codecs. It is read-only.
var codecsOf = func() map[reflect.Type][]codec {
	m := map[reflect.Type][]codec{}
	for _, f := range codecs {
		t := reflect.TypeOf(f.zeroAction())
		m[t] = append(m[t], f)
	}
	return m
}()

func appendActions(b []byte, actions []Action) []byte {
	for i, a := range actions {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendAction(b, a)
	}
	return b
}

func appendAction(b []byte, a Action) []byte {
	if u, ok := a.(UnknownActions); ok {
		return append(b, u.Text...)
	}
	for _, f := range codecsOf[reflect.TypeOf(a)] {
		if text, ok := f.append(b, a); ok {
			return text
		}
	}
	return fmt.Appendf(b, "unprintable:%T", a)
}

func encodeAction(b []byte, a Action) []byte {
	for _, f := range codecsOf[reflect.TypeOf(a)] {
		if encoded, ok := f.encode(b, a); ok {
			return encoded
		}
	}
	return openflow.Invalid(b) // the switch's error identifies the flow
}

func parseActions(s string) ([]Action, error) {
	var list []Action
	for s != "" {
		a, rest := parseAction(s)
		if word, _ := cutOutside(s, ','); a == nil || rest != "" && rest[0] != ',' {
			return nil, wordError(word, "is not an action known here")
		}
		list, s = append(list, a), strings.TrimPrefix(rest, ",")
	}
	switch {
	case len(list) == 0:
		return []Action{Drop{}}, nil // "actions=" without any action drops (ovs-ofctl(8))
	case len(list) > 1 && slices.Contains(list, Action(Drop{})):
		return nil, wordError("drop", "must be the only action")
	}
	return list, nil
}

func parseAction(s string) (Action, string) {
	for _, f := range codecs {
		if a, rest, ok := f.parse(s); ok {
			return a, rest
		}
	}
	return nil, s
}

// decodeActions returns UnknownActions with the bytes as text for each action without a codec.
func decodeActions(b []byte) (list []Action, known bool) {
	known = true
	for len(b) > 0 {
		a, rest := decodeAction(b)
		if a == nil {
			var unknown []byte
			unknown, rest = openflow.CutAction(b)
			a, known = UnknownActions{Text: "unknown(" + hex.EncodeToString(unknown) + ")"}, false
		}
		list, b = append(list, a), rest
	}
	if len(list) == 0 {
		list = []Action{Drop{}}
	}
	return list, known
}

func decodeAction(b []byte) (Action, []byte) {
	for _, f := range codecs {
		if a, rest, ok := f.decode(b); ok {
			return a, rest
		}
	}
	return nil, b
}
