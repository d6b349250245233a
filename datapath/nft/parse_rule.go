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
		case t.kind == newline || t.kind == end || t.kind == punctuation && (t.s == ";" || t.s == "}"):
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
				return r, p.unexpected("comment")
			}
			r.Owner, r.Comment = splitLabel(p.next().s)
		case r.Do != nil:
			return r, p.unexpected("end of rule")
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

// implyProtocol adds the match on the protocol if a key has "tcp dport": then nft prints no match.
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

// matchOrStatement parses a match or a statement, and returns nil for the other. It also accepts
// numbers that nft may print in place of names: 2 for "local" or 0x4 for "related".
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
		return p.ct()
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
		if err := p.expect("daddr", "type"); err != nil {
			return nil, nil, err
		}
		if !p.accept("local") && !p.accept("2") {
			return nil, nil, p.unexpected("address type")
		}
		return DstIsLocal{}, nil, nil
	case "tcp", "udp", "sctp":
		if w == "tcp" && p.accept("flags") {
			m, err := p.noSYN()
			return m, nil, err
		}
		proto, _ := protocolOf(w)
		if err := p.expect("dport"); err != nil {
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
	return nil, nil, p.unexpected("match or statement")
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
			return nil, nil, p.unexpected("protocol")
		}
		p.at++
		return L4Proto{Protocol: proto}, nil, nil
	case "mark":
		if p.accept("set") {
			if p.accept("ct") {
				return nil, RestoreMark{}, p.expect("mark")
			}
			if p.accept("meta") {
				if err := p.expect("mark", "|"); err != nil {
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
			if err := p.expect("=="); err != nil {
				return nil, nil, err
			}
			m.Mask = uint32(mask)
		}
		v, err := p.number(32, "mark")
		m.Value = uint32(v)
		return m, nil, err
	}
	p.at--
	return nil, nil, p.unexpected("meta key")
}

func (p *parser) addrIn(family string) (Match, error) {
	var m AddrIn
	switch {
	case p.accept("daddr"):
		m.Dst = true
	case !p.accept("saddr"):
		return nil, p.unexpected("header field")
	}
	m.Not = p.accept("!=")
	prefix, ok := parsePrefix(p.peek().s)
	if !ok {
		return nil, p.unexpected("address or prefix")
	}
	m.Prefix = prefix
	if addrKeyword(m.Prefix.Addr()) != family {
		return nil, p.unexpected("prefix of family " + family)
	}
	p.at++
	return m, nil
}

// parsePrefix parses a prefix, or an address as the prefix of full length.
func parsePrefix(s string) (netip.Prefix, bool) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	p, err := netip.ParsePrefix(s)
	return p, err == nil
}

// reject parses the text after "reject", as nft 1.0 and 1.1 print it. Without arguments, nft sends
// the ICMP error port-unreachable.
func (p *parser) reject() (Statement, error) {
	switch {
	case !p.accept("with"):
		return Reject{}, nil
	case p.accept("tcp"):
		return Reject{TCPReset: true}, p.expect("reset")
	}
	if err := p.expect("icmpx"); err != nil {
		return nil, err
	}
	p.accept("type")
	if p.accept("1") {
		return Reject{}, nil
	}
	return Reject{}, p.expect("port-unreachable")
}

func (p *parser) forward() (Statement, error) {
	if err := p.expect("to"); err != nil {
		return nil, err
	}
	device, err := p.value("device")
	return Forward{Device: device}, err
}

// duplicate parses the text after "dup": "to ADDRESS device NAME".
func (p *parser) duplicate() (Statement, error) {
	if err := p.expect("to"); err != nil {
		return nil, err
	}
	a, err := netip.ParseAddr(p.peek().s)
	if err != nil || a.Zone() != "" {
		return nil, p.unexpected("address")
	}
	p.at++
	if err := p.expect("device"); err != nil {
		return nil, err
	}
	device, err := p.value("device")
	return Dup{To: a, Device: device}, err
}

func (p *parser) etherSrc() (Match, error) {
	if err := p.expect("saddr"); err != nil {
		return nil, err
	}
	mac, err := cluster.ParseMAC(p.peek().s)
	if err != nil {
		return nil, p.unexpected("MAC address")
	}
	p.at++
	return EtherSrc{MAC: mac}, nil
}

// noSYN parses the text after "tcp flags".
func (p *parser) noSYN() (Match, error) {
	if err := p.expect("!"); err != nil {
		return nil, err
	}
	if !p.accept("syn") && !p.accept("0x2") {
		return nil, p.unexpected("TCP flag")
	}
	return NoSYN{}, nil
}

// ct parses the text after "ct": a match or a statement. It returns nil for the other.
func (p *parser) ct() (Match, Statement, error) {
	switch {
	case p.accept("mark"):
		if p.accept("set") {
			return nil, SaveMark{}, p.expect("meta", "mark")
		}
		v, err := p.number(32, "mark")
		return CTMarkIs{Value: uint32(v)}, nil, err
	case p.accept("direction"):
		if p.accept("reply") {
			return CTReply, nil, nil
		}
		return CTOriginal, nil, p.expect("original")
	case !p.accept("state"):
		return nil, nil, p.unexpected("key of ct")
	case p.accept("related") || p.accept("0x4"):
		return CTRelated, nil, nil
	case p.accept("established") || p.accept("0x2"):
		return CTEstablished, nil, nil
	case p.accept("0x9"):
		return CTNewOrInvalid, nil, nil
	case p.accept("invalid"):
		return CTNewOrInvalid, nil, p.expect(",", "new")
	}
	return nil, nil, p.unexpected("state of ct")
}

// snat parses the text after "snat", the token at start: "ip to ADDRESS", or a map, which natMap
// parses from the family on.
func (p *parser) snat(start int) (Statement, error) {
	family, err := p.value("family")
	if err != nil {
		return nil, err
	}
	if err := p.expect("to"); err != nil {
		return nil, err
	}
	if next := p.peek().s; next == "ip" || next == "ip6" {
		p.at = start + 1
		s, err := p.natMap()
		if m := p.table.Maps[s]; err == nil && !m.AddressOnly() {
			return nil, p.unexpected("map to addresses")
		}
		return SNATMap{Map: s}, err
	}
	a, err := netip.ParseAddr(p.peek().s)
	if err != nil || a.Zone() != "" || addrKeyword(a) != family {
		return nil, p.unexpected("address of family " + family)
	}
	p.at++
	return SNAT{Addr: a}, nil
}

func (p *parser) dnatMap() (Statement, error) {
	name, err := p.natMap()
	if err == nil && p.table.Maps[name].AddressOnly() {
		return nil, p.unexpected("map to addresses and ports")
	}
	return DNATMap{Map: name}, err
}

// natMap parses the text after "dnat" or "snat": "ip to KEY map @NAME". It returns the name of the
// map, which is in the table.
func (p *parser) natMap() (string, error) {
	family, err := p.value("family")
	if err != nil {
		return "", err
	}
	if err := p.expect("to"); err != nil {
		return "", err
	}
	key, err := p.key()
	if err != nil {
		return "", err
	}
	if err := p.expect("map"); err != nil {
		return "", err
	}
	name := strings.TrimPrefix(p.peek().s, "@")
	m := p.table.Maps[name]
	if m == nil || !slices.Equal(m.Key, key) || familyKeyword(m.Family) != family {
		return "", fmt.Errorf("line %d: no map %s from %q to family %s above", p.peek().line, name, keyText(key),
			family)
	}
	p.at++
	return name, nil
}

func (p *parser) number(bits int, want string) (uint64, error) {
	n, err := strconv.ParseUint(p.peek().s, 0, bits)
	if err != nil {
		return 0, p.unexpected(want)
	}
	p.at++
	return n, nil
}
