package flow

import (
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
	e := openflow.SelectGroup{ID: g.ID}
	for _, x := range g.Buckets {
		var actions []byte
		if x.Next == 0 {
			actions = encodeAction(nil, x.CT)
		} else {
			actions = openflow.Resubmit(x.chosen().encode(nil), x.Next)
		}
		e.Buckets = openflow.AppendBucket(e.Buckets, x.ID, actions)
	}
	for _, x := range g.Hashed.hashed() {
		e.Hashed = append(e.Hashed, x.oxm)
	}
	return e
}

// encodeAction must handle every Action that Flow.Check accepts.
func encodeAction(b []byte, a Action) []byte {
	switch a := a.(type) {
	case Output:
		return openflow.Output(b, portNumber(a.Port))
	case MarkLonger:
		return openflow.CheckLarger(b, a.Length, openflow.PktMark)
	case Resubmit:
		return openflow.Resubmit(b, a.Table)
	case PushVLAN:
		return setting{openflow.VLAN, exactly(openflow.VLANPresent | uint64(a.ID))}.encode(openflow.PushVLAN(b))
	case ToGroup:
		return openflow.Group(b, a.ID)
	case Conjunction:
		return openflow.Conjunction(b, a.ID, a.Clause, a.Of)
	case Learn:
		return a.encode(b)
	case CT:
		return a.encode(b)
	}
	for _, c := range constants {
		if c.action == a {
			return append(b, c.encoded...)
		}
	}
	list := settings(a)
	if list == nil {
		return openflow.Invalid(b) // the switch's error identifies the flow
	}
	for _, s := range list {
		b = s.encode(b)
	}
	return b
}

// encode appends the action that writes the field.
func (s setting) encode(b []byte) []byte {
	value, mask := s.value.bytes(), s.mask.bytes()
	from := 16 - s.oxm.Width()
	if s.exact() {
		return openflow.SetField(b, s.oxm, value[from:], nil)
	}
	return openflow.SetField(b, s.oxm, value[from:], mask[from:])
}

func (c CT) encode(b []byte) []byte {
	var nested []byte
	if c.NAT.Kind != NoNAT {
		flags := map[NATKind]uint16{NATSrc: openflow.NATSrc, NATDst: openflow.NATDst}[c.NAT.Kind]
		nested = openflow.NAT(nested, flags, c.NAT.Addr.AsSlice(), c.NAT.PortMin, c.NAT.PortMax)
	}
	if c.marks() {
		nested = c.mark().encode(nested)
	}
	if c.EthSrc {
		nested = openflow.Copy(nested, macBits, openflow.EthSrc, openflow.CTLabel)
	}
	return openflow.CT(b, c.Commit, c.Zone, c.Table, nested)
}

func (l Learn) encode(b []byte) []byte {
	m := Match{Protocol: ip(l.Family)}
	return openflow.Learn(b, openflow.Learned{Table: l.Table, Cookie: l.cookie(), IdleTimeout: l.Timeout,
		Limit: l.Limit},
		openflow.LearnEthType(m.Protocol.row().etherType), openflow.LearnMatch(openflow.Reg6, uint16(l.Ways)),
		openflow.LearnMatch(byName["nw_src"].field.form(&m, datum{}).oxm, 0), openflow.LearnLoad(openflow.Reg7))
}

// cookie returns the cookie of the learned flows.
func (l Learn) cookie() uint64 {
	return uint64(l.Client)<<32 | claims.CookieLearned | uint64(l.Timeout)
}
