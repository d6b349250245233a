package flow

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
	"strings"

	"hairpin/datapath/flow/oxm"
	"hairpin/openflow"
)

// field describes a field of a Match, for printing, parsing, checking, encoding and matching.
type field struct {
	at       func(*Match) any // pointer to the field in a Match
	notation oxm.Notation     // of its value in text; nil: none (in_port has a port name)
	forms    []form           // by protocol
	add      int              // of a uint16: the value in a packet minus the value in Match
	bits     int              // of a uint16 or uint32: the size of the value in Match; 0: that of its type
}

// form is the name and the encoding of a field.
type form struct {
	name  string // as ovs-ofctl prints it in a match (ovs-fields(7)); empty: not printed
	alias string // as ovs-ofctl prints it in set_field, if that differs; also accepted in a match
	oxm   openflow.Field
	needs need
}

// need is the prerequisite of a form.
type need struct {
	text      string
	protocols uint16 // of which the match must have one, as bits 1<<Protocol
	icmpType  uint16 // as in Match; 0: any
	tracked   bool   // ct_state=+trk
}

func oneOf(text string, list ...Protocol) (n need) {
	n.text = text
	for _, p := range list {
		n.protocols |= 1 << p
	}
	return n
}

// The prerequisites.
var (
	anyPacket    = need{protocols: math.MaxUint16}
	neverMatched = need{} // the form is for set_field only
	arp          = oneOf("arp", ARP)
	ipv4         = oneOf("ip", IP, TCP, UDP, SCTP, ICMP)
	ipv6         = oneOf("ipv6", IPv6, TCP6, UDP6, SCTP6, ICMP6)
	anyIP        = need{text: "ip or ipv6", protocols: ipv4.protocols | ipv6.protocols}
	tracked      = need{text: "ip or ipv6, and ct_state=+trk", protocols: anyIP.protocols, tracked: true}
	tcp          = oneOf("tcp", TCP, TCP6)
	udp          = oneOf("udp", UDP, UDP6)
	sctp         = oneOf("sctp", SCTP, SCTP6)
	icmp4        = oneOf("icmp", ICMP)
	icmp6        = oneOf("icmp6", ICMP6)
	solicit      = need{"icmp6 and icmp_type=135", icmp6.protocols, 135 + 1, false}
	advertise    = need{"icmp6 and icmp_type=136", icmp6.protocols, 136 + 1, false}
)

func (n *need) met(m *Match) bool {
	return n.protocols>>m.Protocol&1 != 0 && (n.icmpType == 0 || n.icmpType == m.ICMPType) &&
		(!n.tracked || m.CTState.Set&CTTrk != 0)
}

// fields lists all fields of a Match in the order in which ovs-ofctl prints them. The protocol has
// two: it is printed as a word, and encoded first, as the prerequisite of others. It is read-only.
var fields = []field{
	{at: func(m *Match) any { return &m.PktMark }, notation: oxm.Hexadecimal,
		forms: oneForm("pkt_mark", "", openflow.PktMark)},
	{at: func(m *Match) any { return &m.ConjID }, notation: oxm.Decimal,
		forms: oneForm("conj_id", "", openflow.ConjID)},
	{at: func(m *Match) any { return &m.CTState }, notation: ctStateText{},
		forms: oneForm("ct_state", "", openflow.CTState)},
	{at: func(m *Match) any { return (*ctMark)(m) }, notation: oxm.Maskable(oxm.Hexadecimal),
		forms: oneForm("ct_mark", "", openflow.CTMark)},
	{at: func(m *Match) any { return &m.CTProtocol }, notation: oxm.Decimal,
		forms: []form{{"ct_nw_proto", "", openflow.CTIPProto, tracked}}},
	{at: func(m *Match) any { return &m.CTDstPort }, notation: oxm.Decimal,
		forms: []form{{"ct_tp_dst", "", openflow.CTTPDst, tracked}}},
	{at: func(m *Match) any { return (*etherType)(&m.Protocol) }, forms: oneForm("", "", openflow.EthType)},
	{at: func(m *Match) any { return (*ipProto)(&m.Protocol) }, forms: oneForm("", "", openflow.IPProto)},
	{at: func(m *Match) any { return &m.Profile }, notation: oxm.Hexadecimal,
		forms: oneForm("reg5", "", openflow.Reg5)},
	{at: func(m *Match) any { return &m.Group }, notation: oxm.Hexadecimal, forms: oneForm("reg6", "", openflow.Reg6)},
	{at: func(m *Match) any { return &m.Bucket }, notation: oxm.Hexadecimal, forms: oneForm("reg7", "", openflow.Reg7)},
	{at: func(m *Match) any { return &m.Tunnel.Key }, notation: oxm.Hexadecimal, bits: 24,
		forms: oneForm("tun_id", "", openflow.TunID)},
	{at: func(m *Match) any { return &m.Tunnel.Peer }, notation: oxm.IPText{}, forms: []form{
		{"tun_src", "", openflow.TunSrc, anyPacket}, {"tun_ipv6_src", "", openflow.TunIPv6Src, anyPacket},
		{"tun_dst", "", openflow.TunDst, neverMatched}, {"tun_ipv6_dst", "", openflow.TunIPv6Dst, neverMatched}}},
	{at: func(m *Match) any { return &m.Tunnel.Ports }, notation: oxm.Hexadecimal,
		forms: oneForm("tun_metadata0", "", openflow.TunMetadata0)},
	{at: func(m *Match) any { return &m.InPort }, forms: oneForm("in_port", "", openflow.InPort)},
	{at: func(m *Match) any { return &m.Tagged }, notation: oxm.Words{tagged},
		forms: oneForm("vlan_tci", "", openflow.VLAN)},
	{at: func(m *Match) any { return &m.EthSrc }, notation: oxm.MACText{},
		forms: oneForm("dl_src", "eth_src", openflow.EthSrc)},
	{at: func(m *Match) any { return &m.EthDst }, notation: oxm.MACText{},
		forms: oneForm("dl_dst", "eth_dst", openflow.EthDst)},
	{at: func(m *Match) any { return &m.Src }, notation: oxm.IPText{}, forms: []form{
		{"nw_src", "ip_src", openflow.IPSrc, ipv4}, {"ipv6_src", "", openflow.IPv6Src, ipv6},
		{"arp_spa", "", openflow.ARPSPA, arp}}},
	{at: func(m *Match) any { return &m.Dst }, notation: oxm.IPText{}, forms: []form{
		{"nw_dst", "ip_dst", openflow.IPDst, ipv4}, {"ipv6_dst", "", openflow.IPv6Dst, ipv6},
		{"arp_tpa", "", openflow.ARPTPA, arp}}},
	{at: func(m *Match) any { return &m.TTL }, notation: oxm.Decimal,
		forms: []form{{"nw_ttl", "", openflow.IPTTL, anyIP}}},
	{at: func(m *Match) any { return (*oneWord)(&m.Fragment) }, notation: fragments,
		forms: []form{{"nw_frag", "ip_frag", openflow.IPFrag, anyIP}}},
	{at: func(m *Match) any { return &m.SrcPort }, notation: oxm.Decimal, forms: []form{
		{"tp_src", "tcp_src", openflow.TCPSrc, tcp}, {"tp_src", "udp_src", openflow.UDPSrc, udp},
		{"tp_src", "sctp_src", openflow.SCTPSrc, sctp}}},
	{at: func(m *Match) any { return (*dstPort)(m) }, notation: oxm.Maskable(oxm.Decimal), forms: []form{
		{"tp_dst", "tcp_dst", openflow.TCPDst, tcp}, {"tp_dst", "udp_dst", openflow.UDPDst, udp},
		{"tp_dst", "sctp_dst", openflow.SCTPDst, sctp}}},
	{at: func(m *Match) any { return (*oneWord)(&m.TCPFlags) }, notation: tcpFlags,
		forms: []form{{"tcp_flags", "", openflow.TCPFlags, tcp}}},
	{at: func(m *Match) any { return &m.ICMPType }, notation: oxm.Decimal, add: -1, forms: []form{
		{"icmp_type", "", openflow.ICMPType, icmp4}, {"icmp_type", "icmpv6_type", openflow.ICMPv6Type, icmp6}}},
	{at: func(m *Match) any { return &m.ICMPCode }, notation: oxm.Decimal, add: -1, forms: []form{
		{"icmp_code", "", openflow.ICMPCode, icmp4}, {"icmp_code", "", openflow.ICMPv6Code, icmp6}}},
	{at: func(m *Match) any { return &m.Target }, notation: oxm.IPText{}, forms: []form{
		{"nd_target", "", openflow.NDTarget, solicit}, {"nd_target", "", openflow.NDTarget, advertise}}},
	{at: func(m *Match) any { return (*linkAddr)(m) }, notation: oxm.MACText{}, forms: []form{
		{"arp_sha", "", openflow.ARPSHA, arp}, {"nd_sll", "", openflow.NDSLL, solicit},
		{"nd_tll", "", openflow.NDTLL, advertise}}},
}

// oneForm returns the form of a field that has only one form and no prerequisite.
func oneForm(name, alias string, header openflow.Field) []form {
	return []form{{name, alias, header, anyPacket}}
}

// fieldForm is a form with its field.
type fieldForm struct {
	index int // in fields
	*field
	*form
}

// settingName returns the name in set_field.
func (x *form) settingName() string { return cmp.Or(x.alias, x.name) }

// byName maps names and aliases to forms: of several, to the first. byOXM maps headers. They are
// read-only.
var byName, byOXM = func() (map[string]fieldForm, map[openflow.Field][]fieldForm) {
	names, headers := map[string]fieldForm{}, map[openflow.Field][]fieldForm{}
	for i := range fields {
		for k := range fields[i].forms {
			x := fieldForm{i, &fields[i], &fields[i].forms[k]}
			headers[x.oxm] = append(headers[x.oxm], x)
			for _, name := range []string{x.name, x.alias} {
				if _, known := names[name]; !known {
					names[name] = x
				}
			}
		}
	}
	return names, headers
}()

// usedFields yields the fields that m matches, as indexes in fields, with their values.
func (m *Match) usedFields(yield func(int, oxm.Value) bool) {
	for set := m.Fields(); set != 0; set &= set - 1 {
		if i := set.first(); !yield(i, fields[i].get(m)) {
			return
		}
	}
}

// form returns the field's form in a match. It returns nil if the match meets no form's
// prerequisite, or the value has another size.
func (f *field) form(m *Match, d oxm.Value) *form {
	for i := range f.forms {
		if x := &f.forms[i]; x.needs.met(m) && d.Fits(x.oxm.Width()) {
			return x
		}
	}
	return nil
}

// formError returns the error for a value without a form.
func (f *field) formError(d oxm.Value) error {
	var texts []string
	for _, x := range f.forms {
		texts = append(texts, x.needs.text)
	}
	word := string(f.notation.Append(append([]byte(f.forms[0].name), '='), d))
	return wordError(word, "needs "+strings.Join(slices.Compact(texts), " or ")+", and a value of the field's size")
}

// append appends the fields as ovs-ofctl prints them, the first after sep, the others after a
// comma.
func (m *Match) append(b []byte, sep string) []byte {
	for i, d := range m.usedFields {
		f := &fields[i]
		x := f.form(m, d)
		if x == nil {
			x = &f.forms[0] // Check rejects such a match
		}
		switch {
		case x.oxm == openflow.IPProto:
			continue
		case x.oxm == openflow.EthType:
			b = append(append(b, sep...), m.Protocol.String()...)
		case f.notation == nil:
			b = appendPort(append(append(append(b, sep...), x.name...), '='), m.InPort)
		default:
			b = f.notation.Append(append(append(append(b, sep...), x.name...), '='), d)
		}
		sep = ","
	}
	return b
}

// encode appends the fields as OXMs, those of the protocol first. Ports must be numbers.
func (m *Match) encode(b []byte) []byte {
	rest := make([]byte, 0, 128)
	for i, d := range m.usedFields {
		switch x := fields[i].form(m, d); {
		case x == nil:
		case x.oxm == openflow.EthType, x.oxm == openflow.IPProto:
			b = d.Encode(b, x.oxm)
		default:
			rest = d.Encode(rest, x.oxm)
		}
	}
	return append(b, rest...)
}

// Fields is a set of fields of a Match, as bits 1<<index in fields.
type Fields uint64

// Fields returns the fields that m matches.
func (m *Match) Fields() (set Fields) {
	for i := range fields {
		if fields[i].isSet(m) {
			set |= 1 << i
		}
	}
	return set
}

func (set Fields) has(i int) bool { return set>>i&1 != 0 }

func (set Fields) first() int { return bits.TrailingZeros64(uint64(set)) }

// Matches reports whether m, whose fields are in set, matches a packet. packet holds the packet's
// known fields.
func (m *Match) Matches(packet *Match, set Fields) bool {
	if m.InPort != "" && m.InPort != packet.InPort {
		return false
	}
	for set &^= 1 << byName["in_port"].index; set != 0; set &= set - 1 {
		f := &fields[set.first()]
		if want, have := f.get(m), f.get(packet); have.Size != want.Size || have.Bits.And(want.Mask) != want.Bits {
			return false
		}
	}
	return true
}

// check returns an error for a match that Open vSwitch refuses, or would return in another form.
func (m *Match) check() error {
	stored := Match{InPort: m.InPort, Protocol: m.Protocol}
	for i, d := range m.usedFields {
		f := &fields[i]
		if f.form(m, d) == nil {
			return f.formError(d)
		}
		if f.notation != nil {
			f.set(&stored, d)
		}
	}
	if stored != *m {
		return wordError(m.String(), "is kept as "+stored.String())
	}
	return cmp.Or(m.checkTogether(), checkPort(m.InPort))
}

// checkTogether returns an error for a field without one that it requires, or with one that it
// excludes.
func (m *Match) checkTogether() error {
	switch {
	case (m.CTProtocol != 0) != (m.CTDstPort != 0):
		return wordError("ct_nw_proto, ct_tp_dst", "belong together")
	case m.NoLinkAddr && m.Protocol == ARP:
		return wordError("arp_sha", "is part of every ARP packet")
	case m.Tunnel != (Tunnel{}) && !m.Tunnel.isComplete():
		return wordError("tun_id, tun_src, tun_metadata0", "belong together")
	}
	return nil
}
