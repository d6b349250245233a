package nft

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"hairpin/cluster"
)

// rule parses one rule up to the end of its line.
func (p *parser) rule() (Rule, error) {
	var r Rule
	for {
		t := p.peek()
		switch {
		case t.kind == newline || t.kind == end || t.kind == mark && (t.s == ";" || t.s == "}"):
			return r, nil
		case t.kind == comment:
			label := p.longLabel()
			if label == "" {
				p.skipComment()
				continue
			}
			r.Owner, r.Comment = splitLabel(label)
		case p.accept("comment"):
			if p.peek().kind != text {
				return r, p.unknown("comment")
			}
			r.Owner, r.Comment = splitLabel(p.next().s)
		case r.Do != nil:
			return r, p.unknown("end of a rule")
		default:
			m, s, err := p.matchOrStatement()
			if err != nil {
				return r, err
			}
			p.implyProtocol(&r)
			r.Do = s
			if m != nil {
				r.Matches = append(r.Matches, m)
			}
		}
	}
}

// implyProtocol adds the match on the protocol that nft omits when it prints a key with "tcp
// dport".
func (p *parser) implyProtocol(r *Rule) {
	if p.implied == 0 {
		return
	}
	known := slices.ContainsFunc(r.Matches, func(m Match) bool {
		switch m := m.(type) {
		case L4Proto:
			return m.Protocol == p.implied
		case DstPort:
			return m.Protocol == p.implied
		}
		return false
	})
	if !known {
		r.Matches = append(r.Matches, L4Proto{Protocol: p.implied})
	}
}

// splitLabel reverses ruleLabel.
func splitLabel(label string) (cluster.Owner, string) {
	head, rest, found := strings.Cut(label, ": ")
	if found && head == "" {
		return cluster.Owner{}, rest
	}
	o := cluster.ParseOwner(head)
	if o == (cluster.Owner{}) || o.String() != head || strings.ContainsAny(head, " \t") {
		return cluster.Owner{}, label
	}
	return o, rest
}

// matchOrStatement parses one of the two; the other is nil.
func (p *parser) matchOrStatement() (Match, Statement, error) {
	start := p.at
	p.implied = 0
	if key, err := p.key(); err == nil && strings.HasPrefix(p.peek().s, "@") {
		m, err := p.inSet(key)
		return m, nil, err
	}
	p.at, p.implied = start, 0
	switch w := p.next().s; w {
	case "accept":
		return nil, Accept{}, nil
	case "drop":
		return nil, Drop{}, nil
	case "return":
		return nil, Return{}, nil
	case "reject":
		s, err := p.reject()
		return nil, s, err
	case "ct":
		return p.connection()
	case "masquerade":
		return nil, Masquerade{}, nil
	case "fwd":
		s, err := p.forward()
		return nil, s, err
	case "dup":
		s, err := p.duplicate()
		return nil, s, err
	case "ether":
		m, err := p.etherSrc()
		return m, nil, err
	case "snat":
		s, err := p.snat(start)
		return nil, s, err
	case "dnat":
		s, err := p.dnatMap()
		return nil, s, err
	case "meta":
		return p.meta()
	case "ip", "ip6":
		m, err := p.addrIn(w)
		return m, nil, err
	case "fib":
		if err := p.words("daddr", "type"); err != nil {
			return nil, nil, err
		}
		if !p.accept("local") && !p.accept("2") {
			return nil, nil, p.unknown("address type")
		}
		return DstIsLocal{}, nil, nil
	case "tcp", "udp", "sctp":
		if w == "tcp" && p.accept("flags") {
			m, err := p.noSYN()
			return m, nil, err
		}
		proto, _ := protocolOf(w)
		if err := p.words("dport"); err != nil {
			return nil, nil, err
		}
		port, err := p.number(16, "port")
		return DstPort{Protocol: proto, Port: uint16(port)}, nil, err
	case "oifname":
		not := p.accept("!=")
		name, err := p.value("interface")
		return OutInterface{Name: name, Not: not}, nil, err
	case "iifname":
		not := p.accept("!=")
		name, err := p.value("interface")
		return InInterface{Name: name, Not: not}, nil, err
	}
	p.at = start
	return nil, nil, p.unknown("match or statement")
}

func (p *parser) inSet(key []KeyField) (Match, error) {
	name := p.peek().s[1:]
	s := p.table.Sets[name]
	if s == nil || !slices.Equal(s.Key, key) {
		return nil, fmt.Errorf("line %d: no set %s with the key %q above", p.peek().line, name, keyText(key))
	}
	p.at++
	return InSet{Set: name}, nil
}

func (p *parser) meta() (Match, Statement, error) {
	switch w := p.next().s; w {
	case "l4proto":
		proto, ok := protocolOf(p.peek().s)
		if !ok {
			return nil, nil, p.unknown("protocol")
		}
		p.at++
		return L4Proto{Protocol: proto}, nil, nil
	case "mark":
		if p.accept("set") {
			if p.accept("ct") {
				return nil, RestoreMark{}, p.words("mark")
			}
			if p.accept("meta") {
				if err := p.words("mark", "|"); err != nil {
					return nil, nil, err
				}
				v, err := p.number(32, "mark")
				return nil, AddMark{Bits: uint32(v)}, err
			}
			v, err := p.number(32, "mark")
			return nil, SetMark{Value: uint32(v)}, err
		}
		m := MarkIs{Mask: ^uint32(0)}
		if p.accept("&") {
			mask, err := p.number(32, "mask")
			if err != nil {
				return nil, nil, err
			}
			if err := p.words("=="); err != nil {
				return nil, nil, err
			}
			m.Mask = uint32(mask)
		}
		v, err := p.number(32, "mark")
		m.Value = uint32(v)
		return m, nil, err
	}
	p.at--
	return nil, nil, p.unknown("meta key")
}

func (p *parser) addrIn(family string) (Match, error) {
	var m AddrIn
	switch {
	case p.accept("daddr"):
		m.Dst = true
	case !p.accept("saddr"):
		return nil, p.unknown("header field")
	}
	m.Not = p.accept("!=")
	prefix, ok := parsePrefix(p.peek().s)
	if !ok {
		return nil, p.unknown("address or prefix")
	}
	m.Prefix = prefix
	if addrWord(m.Prefix.Addr()) != family {
		return nil, p.unknown("prefix of this family")
	}
	p.at++
	return m, nil
}

// parsePrefix parses a range, or an address as a range of one.
func parsePrefix(s string) (netip.Prefix, bool) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	p, err := netip.ParsePrefix(s)
	return p, err == nil
}

// reject parses what nft 1.0 and 1.1 print; without arguments it is the ICMP error.
func (p *parser) reject() (Statement, error) {
	switch {
	case !p.accept("with"):
		return Reject{}, nil
	case p.accept("tcp"):
		return Reject{TCPReset: true}, p.words("reset")
	}
	if err := p.words("icmpx"); err != nil {
		return nil, err
	}
	p.accept("type")
	if p.accept("1") {
		return Reject{}, nil
	}
	return Reject{}, p.words("port-unreachable")
}

func (p *parser) forward() (Statement, error) {
	if err := p.words("to"); err != nil {
		return nil, err
	}
	device, err := p.value("device")
	return Forward{Device: device}, err
}

// duplicate parses "to ADDRESS device NAME".
func (p *parser) duplicate() (Statement, error) {
	if err := p.words("to"); err != nil {
		return nil, err
	}
	a, err := netip.ParseAddr(p.peek().s)
	if err != nil || a.Zone() != "" {
		return nil, p.unknown("address")
	}
	p.at++
	if err := p.words("device"); err != nil {
		return nil, err
	}
	device, err := p.value("device")
	return Dup{To: a, Device: device}, err
}

func (p *parser) etherSrc() (Match, error) {
	if err := p.words("saddr"); err != nil {
		return nil, err
	}
	mac, err := cluster.ParseMAC(p.peek().s)
	if err != nil {
		return nil, p.unknown("MAC")
	}
	p.at++
	return EtherSrc{MAC: mac}, nil
}

// noSYN parses the text after "tcp flags".
func (p *parser) noSYN() (Match, error) {
	if err := p.words("!"); err != nil {
		return nil, err
	}
	if !p.accept("syn") && !p.accept("0x2") {
		return nil, p.unknown("TCP flag")
	}
	return NoSYN{}, nil
}

// connection parses a match or a statement that begins with ct; the other is nil.
func (p *parser) connection() (Match, Statement, error) {
	switch {
	case p.accept("mark"):
		if p.accept("set") {
			return nil, SaveMark{}, p.words("meta", "mark")
		}
		v, err := p.number(32, "mark")
		return CTMarkIs{Value: uint32(v)}, nil, err
	case p.accept("direction"):
		if p.accept("reply") {
			return CTReply, nil, nil
		}
		return CTOriginal, nil, p.words("original")
	case !p.accept("state"):
		return nil, nil, p.unknown("key of a connection")
	case p.accept("related") || p.accept("0x4"):
		return CTRelated, nil, nil
	case p.accept("established") || p.accept("0x2"):
		return CTEstablished, nil, nil
	case p.accept("0x9"):
		return CTUnknown, nil, nil
	case p.accept("invalid"):
		return CTUnknown, nil, p.words(",", "new")
	}
	return nil, nil, p.unknown("state of a connection")
}

// snat parses the text after the word, which is at start.
func (p *parser) snat(start int) (Statement, error) {
	family, err := p.value("family")
	if err != nil {
		return nil, err
	}
	if err := p.words("to"); err != nil {
		return nil, err
	}
	if next := p.peek().s; next == "ip" || next == "ip6" {
		p.at = start + 1
		s, err := p.natMap()
		if m := p.table.Maps[s]; err == nil && !m.Plain() {
			return nil, p.unknown("map of sources")
		}
		return SNATMap{Map: s}, err
	}
	a, err := netip.ParseAddr(p.peek().s)
	if err != nil || a.Zone() != "" || addrWord(a) != family {
		return nil, p.unknown("address of this family")
	}
	p.at++
	return SNAT{Addr: a}, nil
}

func (p *parser) dnatMap() (Statement, error) {
	name, err := p.natMap()
	if err == nil && p.table.Maps[name].Plain() {
		return nil, p.unknown("map of destinations")
	}
	return DNATMap{Map: name}, err
}

// natMap parses "ip to KEY map @NAME" and returns the name of a map of the table.
func (p *parser) natMap() (string, error) {
	family, err := p.value("family")
	if err != nil {
		return "", err
	}
	if err := p.words("to"); err != nil {
		return "", err
	}
	key, err := p.key()
	if err != nil {
		return "", err
	}
	if err := p.words("map"); err != nil {
		return "", err
	}
	name := strings.TrimPrefix(p.peek().s, "@")
	m := p.table.Maps[name]
	if m == nil || !slices.Equal(m.Key, key) || familyWord(m.Family) != family {
		return "", fmt.Errorf("line %d: no map %s from %q to family %s above", p.peek().line, name, keyText(key),
			family)
	}
	p.at++
	return name, nil
}

func (p *parser) number(bits int, what string) (uint64, error) {
	n, err := strconv.ParseUint(p.peek().s, 0, bits)
	if err != nil {
		return 0, p.unknown(what)
	}
	p.at++
	return n, nil
}
