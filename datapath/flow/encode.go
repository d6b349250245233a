package flow

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"hairpin/claims"
	"hairpin/openflow"
)

// Encode returns the flow in the form of a flow mod. All its ports must be numbers or Local.
func (f *Flow) Encode() openflow.Flow {
	e := openflow.Flow{Cookie: f.Cookie(), Table: f.Table, Priority: f.Priority}
	e.Match = openflow.AppendMatch(make([]byte, 0, 128), f.Match.encode)
	e.Actions = make([]byte, 0, 128)
	for _, a := range f.Actions {
		e.Actions = encodeAction(e.Actions, a)
	}
	return e
}

// Encode returns the group in the form of a group mod.
func (g *Group) Encode() openflow.SelectGroup {
	e := openflow.SelectGroup{ID: g.ID, Hashed: g.Hashed.hashed()}
	for _, x := range g.Buckets {
		e.Buckets = openflow.AppendBucket(e.Buckets, x.ID, x.encode())
	}
	return e
}

// encode returns the bucket's actions.
func (b Bucket) encode() []byte {
	if b.Next == 0 {
		return b.CT.encode(nil)
	}
	return openflow.Resubmit.Append(b.setBucket().encode(nil), uint64(b.Next))
}

// cookie returns the cookie of the learned flows.
func (l Learn) cookie() uint64 {
	return uint64(l.Client)<<32 | claims.CookieLearned | uint64(l.Timeout)
}

// Decode returns a flow that the switch has, with numbers of ports. It returns false if a Match
// cannot represent what the flow matches. What else a Flow cannot represent, such as a timeout,
// makes its actions UnknownActions.
func Decode(e *openflow.InstalledFlow) (f *Flow, known bool) {
	f = &Flow{Key: Key{Table: e.Table, Priority: e.Priority}, Feature: uint32(e.Cookie >> 32)}
	var attributes []string
	if known = f.Match.decode(openflow.Content(e.Match)); !known {
		f.Match, attributes = Match{}, append(attributes, "match="+hex.EncodeToString(e.Match))
	}
	for _, x := range []struct {
		name  string
		value uint16
	}{{"idle_timeout", e.IdleTimeout}, {"hard_timeout", e.HardTimeout}, {"importance", e.Importance},
		{"flags", e.Flags}} {
		if x.value != 0 {
			attributes = append(attributes, fmt.Sprintf("%s=%d", x.name, x.value))
		}
	}
	if len(e.Other) > 0 {
		attributes = append(attributes, "instructions="+hex.EncodeToString(e.Other))
	}
	var decoded bool
	if f.Actions, decoded = decodeActions(e.Actions); !decoded || attributes != nil {
		f.Actions = []Action{UnknownActions{strings.Join(attributes, ","), string(appendActions(nil, f.Actions))}}
	}
	return f, known
}

// decode sets the fields of a match that is encoded as OXMs. It returns false for what a Match
// cannot represent.
func (m *Match) decode(oxms []byte) bool {
	var set Fields
	var used []fieldForm
	for encoded := range openflow.Fields(oxms) {
		list := byOXM[encoded.Field]
		i := slices.IndexFunc(list, func(x fieldForm) bool { return x.set(m, x.decode(encoded)) })
		if i < 0 || set.has(list[i].index) {
			return false
		}
		set, used = set|1<<list[i].index, append(used, list[i])
	}
	// Of several forms with one OXM (nd_target), one must fit the match that is now complete.
	for _, x := range used {
		if !slices.ContainsFunc(byOXM[x.oxm], func(y fieldForm) bool { return y.index == x.index && y.needs.met(m) }) {
			return false
		}
	}
	return m.Fields() == set && m.checkTogether() == nil
}

// DecodeGroup returns a group that the switch has. If a Group cannot represent it, it has no
// buckets, and equals no wanted one.
func DecodeGroup(e openflow.SelectGroup, bridge string) *Group {
	g := &Group{GroupKey: GroupKey{bridge, e.ID}}
	i := slices.IndexFunc(hashable, func(p Protocol) bool { return slices.Equal(p.hashed(), e.Hashed) })
	if i < 0 {
		return g
	}
	g.Hashed = hashable[i]
	for id, actions := range openflow.Buckets(e.Buckets) {
		b, ok := decodeBucket(id, actions)
		if !ok {
			return &Group{GroupKey: g.GroupKey}
		}
		g.Buckets = append(g.Buckets, b)
	}
	return g
}

func decodeBucket(id uint32, actions []byte) (Bucket, bool) {
	b := Bucket{ID: id}
	if ct, _, ok := (ctCodec{}).decode(actions); ok {
		b.CT = ct.(CT)
	} else if _, rest, ok := decodeSetting(actions); ok {
		if next, _, ok := openflow.Resubmit.Cut(rest); ok {
			b.Next = uint8(next[0])
		}
	}
	return b, bytes.Equal(b.encode(), actions)
}
