// Package match parses and evaluates the match of a row in OVN's language (ovn-sb(5), Logical_Flow,
// "match").
//
// Input: the text of a router policy, NAT row, QoS row or ACL, and the address sets. Output: an
// Expression, which holds for the facts about a packet or does not.
//
// Invariants: a field or an operator that the package does not know is an error, so an Expression
// always has an answer. The opposite of an Expression has the opposite answer.
package match

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"hairpin/cluster"
	"hairpin/datapath/nb"
	"hairpin/walk/packet"
)

// The bits of ct_mark in which OVN stores facts about a load-balanced connection (ovn
// logical-fields).
const (
	Natted    = 2
	SkipSNAT  = 4
	ForceSNAT = 8
)

// Expression is a parsed match. It has what our router policies, NAT rows, QoS rows and ACLs use:
// comparisons of inport, outport, addresses and ports, joined by && or || and parentheses.
type Expression interface {
	Holds(m *Facts) bool
}

// Facts holds the facts that an Expression examines.
type Facts struct {
	Packet  *packet.Packet
	In, Out string // ports
	CTMark  uint32 // of the connection in the zone that the packet passed last
	Reply   bool   // ct.rpl
	Skip    bool   // flags.skip_snat_for_lb
}

type (
	all      []Expression // &&
	anyOf    []Expression // ||
	not      struct{ of Expression }
	isFamily cluster.Family // ip4, ip6; 0: ip
	portIs   struct {
		out  bool
		name string
	}
	ctBit struct { // ct_mark.force_snat and the like: a bit of ct_mark
		bit uint32
		set bool
	}
	isReply  struct{} // ct.rpl
	isICMP   struct{} // icmp4.type and icmp6.type: never true for a packet of a walk
	skipFlag bool     // flags.skip_snat_for_lb
	pktMark  uint32
	l4Port   struct { // tcp.src, udp.dst and the like
		protocol cluster.Protocol
		dst      bool
		port     uint16
	}
	addressIn struct {
		dst      bool
		family   cluster.Family
		prefixes []netip.Prefix
	}
	addressInSet struct {
		dst    bool
		family cluster.Family
		set    map[netip.Addr]bool
		nets   []netip.Prefix
	}
)

func (e all) Holds(m *Facts) bool {
	return !slices.ContainsFunc(e, func(x Expression) bool { return !x.Holds(m) })
}

func (e anyOf) Holds(m *Facts) bool {
	return slices.ContainsFunc(e, func(x Expression) bool { return x.Holds(m) })
}

func (e not) Holds(m *Facts) bool { return !e.of.Holds(m) }

func (e isFamily) Holds(m *Facts) bool {
	return e == 0 || cluster.Family(e) == cluster.FamilyOf(m.Packet.Dst)
}

func (e portIs) Holds(m *Facts) bool {
	if e.out {
		return m.Out == e.name
	}
	return m.In == e.name
}

func (e ctBit) Holds(m *Facts) bool { return m.CTMark&e.bit != 0 == e.set }

func (isReply) Holds(m *Facts) bool { return m.Reply }

func (isICMP) Holds(*Facts) bool { return false }

func (e skipFlag) Holds(m *Facts) bool { return m.Skip == bool(e) }

func (e pktMark) Holds(m *Facts) bool { return m.Packet.Mark == uint32(e) }

func (e l4Port) Holds(m *Facts) bool {
	port := m.Packet.SrcPort
	if e.dst {
		port = m.Packet.DstPort
	}
	return m.Packet.Protocol == e.protocol && port == e.port
}

// l4Fields maps a field of a match to its protocol and direction.
var l4Fields = map[string]l4Port{
	"tcp.src": {protocol: cluster.TCP}, "tcp.dst": {protocol: cluster.TCP, dst: true},
	"udp.src": {protocol: cluster.UDP}, "udp.dst": {protocol: cluster.UDP, dst: true},
	"sctp.src": {protocol: cluster.SCTP}, "sctp.dst": {protocol: cluster.SCTP, dst: true},
}

func (e addressIn) Holds(m *Facts) bool {
	a := m.address(e.dst)
	return cluster.FamilyOf(a) == e.family &&
		slices.ContainsFunc(e.prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}

func (e addressInSet) Holds(m *Facts) bool {
	a := m.address(e.dst)
	if cluster.FamilyOf(a) != e.family {
		return false
	}
	return e.set[a] || slices.ContainsFunc(e.nets, func(p netip.Prefix) bool { return p.Contains(a) })
}

func (m *Facts) address(dst bool) netip.Addr {
	if dst {
		return m.Packet.Dst
	}
	return m.Packet.Src
}

// Parse parses a match. $NAME refers to an address set in sets.
func Parse(text string, sets map[string]*nb.AddressSet) (Expression, error) {
	words, err := lex(text)
	if err != nil {
		return nil, fmt.Errorf("match %q: %w", text, err)
	}
	p := &parser{words: words, sets: sets}
	e, err := p.expression()
	if err == nil && len(p.words) > 0 {
		err = fmt.Errorf("%q is not expected", p.words[0])
	}
	if err != nil {
		return nil, fmt.Errorf("match %q: %w", text, err)
	}
	return e, nil
}

// lex splits a match into words, without comments. A quoted string keeps its first
// quotation mark.
func lex(s string) ([]string, error) {
	var words []string
	for s != "" {
		switch {
		case strings.HasPrefix(s, "/*"):
			end := strings.Index(s, "*/")
			if end < 0 {
				return nil, errors.New("a comment does not end")
			}
			s = s[end+2:]
		case s[0] == ' ' || s[0] == '\t' || s[0] == '\n':
			s = s[1:]
		case s[0] == '"':
			end := strings.IndexByte(s[1:], '"')
			if end < 0 {
				return nil, errors.New("a string does not end")
			}
			words = append(words, s[:end+1])
			s = s[end+2:]
		case slices.ContainsFunc(symbols[:], func(x string) bool { return strings.HasPrefix(s, x) }):
			i := slices.IndexFunc(symbols[:], func(x string) bool { return strings.HasPrefix(s, x) })
			words = append(words, symbols[i])
			s = s[len(symbols[i]):]
		default:
			end := strings.IndexFunc(s, func(c rune) bool { return strings.ContainsRune(" \t\n\"&|!=(){},", c) })
			if end < 0 {
				end = len(s)
			}
			if end == 0 {
				return nil, fmt.Errorf("%q is not known", s[:1])
			}
			words = append(words, s[:end])
			s = s[end:]
		}
	}
	return words, nil
}

// symbols lists the operators and brackets, longer ones first. It is read-only.
var symbols = [...]string{"&&", "||", "==", "!=", "!", "(", ")", "{", "}", ","}

type parser struct {
	words   []string
	sets    map[string]*nb.AddressSet
	negated bool // an odd number of ! precedes. OVN negates comparisons: !(ip4.src == x) implies ip4
}

func (p *parser) take(word string) bool {
	if len(p.words) > 0 && p.words[0] == word {
		p.words = p.words[1:]
		return true
	}
	return false
}

func (p *parser) next() (string, error) {
	if len(p.words) == 0 {
		return "", errors.New("it ends too early")
	}
	w := p.words[0]
	p.words = p.words[1:]
	return w, nil
}

// expression parses operands that are joined by && or by ||. OVN requires parentheses between the
// two.
func (p *parser) expression() (Expression, error) {
	first, err := p.unary()
	if err != nil {
		return nil, err
	}
	list, op := []Expression{first}, ""
	for len(p.words) > 0 && (p.words[0] == "&&" || p.words[0] == "||") {
		if op != "" && op != p.words[0] {
			return nil, errors.New("&& and || need parentheses between them")
		}
		op = p.words[0]
		p.words = p.words[1:]
		e, err := p.unary()
		if err != nil {
			return nil, err
		}
		list = append(list, e)
	}
	switch {
	case op == "":
		return first, nil
	case (op == "&&") != p.negated:
		return all(list), nil
	}
	return anyOf(list), nil
}

func (p *parser) unary() (Expression, error) {
	switch {
	case p.take("!"):
		p.negated = !p.negated
		defer func() { p.negated = !p.negated }()
		return p.unary()
	case p.take("("):
		e, err := p.expression()
		if err == nil && !p.take(")") {
			err = errors.New("a parenthesis is not closed")
		}
		return e, err
	}
	return p.comparison()
}

// flag returns the Expression of a field without a value, or nil.
func flag(field string) Expression {
	switch field {
	case "1":
		return all{}
	case "ct.rpl":
		return isReply{}
	case "ip":
		return isFamily(0)
	case "ip4":
		return isFamily(cluster.IPv4)
	case "ip6":
		return isFamily(cluster.IPv6)
	}
	return nil
}

func (p *parser) comparison() (Expression, error) {
	field, err := p.next()
	if err != nil {
		return nil, err
	}
	switch e := flag(field); {
	case e != nil && p.negated:
		return not{e}, nil
	case e != nil:
		return e, nil
	}
	negate := p.negated
	switch op, err := p.next(); {
	case err != nil:
		return nil, err
	case op == "!=":
		negate = !negate
	case op != "==":
		return nil, fmt.Errorf("%q after %q is not known", op, field)
	}
	e, err := p.value(field)
	if _, never := e.(isICMP); err != nil || !negate || never { // icmp4.type != x implies ICMP
		return e, err
	}
	if a := addressFamily(field); a != 0 {
		return all{isFamily(a), not{e}}, nil // ip4.src != x implies ip4
	}
	if _, ok := l4Fields[field]; ok { // tcp.dst != x implies TCP
		return nil, fmt.Errorf("%s != is not known", field)
	}
	return not{e}, nil
}

func addressFamily(field string) cluster.Family {
	switch field {
	case "ip4.src", "ip4.dst":
		return cluster.IPv4
	case "ip6.src", "ip6.dst":
		return cluster.IPv6
	}
	return 0
}

// value parses the right side of a comparison.
func (p *parser) value(field string) (Expression, error) {
	words, err := p.values()
	if err != nil {
		return nil, err
	}
	var e anyOf
	for _, w := range words {
		x, err := p.constant(field, w)
		if err != nil {
			return nil, err
		}
		e = append(e, x)
	}
	if len(e) == 1 {
		return e[0], nil
	}
	return e, nil
}

// values parses a constant, or several in braces.
func (p *parser) values() ([]string, error) {
	if !p.take("{") {
		w, err := p.next()
		return []string{w}, err
	}
	var words []string
	for !p.take("}") {
		w, err := p.next()
		if err != nil {
			return nil, err
		}
		words = append(words, w)
		p.take(",")
	}
	return words, nil
}

func (p *parser) constant(field, w string) (Expression, error) {
	family := addressFamily(field)
	name, quoted := strings.CutPrefix(w, `"`)
	switch {
	case (field == "inport" || field == "outport") && quoted:
		return portIs{field == "outport", name}, nil
	case ctMarkBit(field) != 0 && (w == "0" || w == "1"):
		return ctBit{ctMarkBit(field), w == "1"}, nil
	case field == "flags.skip_snat_for_lb" && (w == "0" || w == "1"):
		return skipFlag(w == "1"), nil
	case field == "icmp4.type" || field == "icmp6.type":
		return isICMP{}, nil
	case field == "pkt.mark":
		mark, err := strconv.ParseUint(w, 0, 32)
		if err != nil {
			return nil, fmt.Errorf("%s == %s is not known", field, w)
		}
		return pktMark(mark), nil
	case l4Fields[field].protocol != 0:
		port, err := strconv.ParseUint(w, 10, 16)
		if err != nil {
			return nil, fmt.Errorf("%s == %s is not known", field, w)
		}
		e := l4Fields[field]
		e.port = uint16(port)
		return e, nil
	case family == 0:
		return nil, fmt.Errorf("%s == %s is not known", field, w)
	}
	dst := strings.HasSuffix(field, ".dst")
	if set, ok := strings.CutPrefix(w, "$"); ok {
		row := p.sets[set]
		if row == nil {
			return nil, fmt.Errorf("there is no address set %s", set)
		}
		return newAddressInSet(dst, family, row), nil
	}
	prefix, err := netip.ParsePrefix(w)
	if err != nil {
		a, err := netip.ParseAddr(w)
		if err != nil {
			return nil, fmt.Errorf("%s == %s is not known", field, w)
		}
		prefix = netip.PrefixFrom(a, a.BitLen())
	}
	if cluster.FamilyOf(prefix.Addr()) != family {
		return nil, fmt.Errorf("%s == %s: not of one family", field, w)
	}
	return addressIn{dst, family, []netip.Prefix{prefix}}, nil
}

// ctMarkBit returns the bit of ct_mark that a field names, 0 for other fields.
func ctMarkBit(field string) uint32 {
	switch field {
	case "ct_mark.natted":
		return Natted
	case "ct_mark.skip_snat":
		return SkipSNAT
	case "ct_mark.force_snat":
		return ForceSNAT
	}
	return 0
}

func newAddressInSet(dst bool, family cluster.Family, row *nb.AddressSet) Expression {
	e := addressInSet{dst: dst, family: family, set: map[netip.Addr]bool{}}
	for _, p := range row.Addresses {
		if p.IsSingleIP() {
			e.set[p.Addr()] = true
		} else {
			e.nets = append(e.nets, p)
		}
	}
	return e
}
