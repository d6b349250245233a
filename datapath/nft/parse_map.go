package nft

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"hairpin/cluster"
)

// mapBody parses a map after the word "map".
func (p *parser) mapBody() error {
	m := &Map{}
	var err error
	if m.Name, err = p.newName(); err != nil {
		return err
	}
	err = p.elements(func() error {
		if m.Key, err = p.key(); err != nil {
			return err
		}
		m.resolveSlot()
		if err = p.expect(":"); err != nil {
			return err
		}
		line := p.peek().line
		value, err := p.key()
		if err != nil {
			return err
		}
		if m.AddressOnly() {
			value = append(value, KeyPort)
		}
		if len(value) != 2 || value[0] != KeyIPDst && value[0] != KeyIP6Dst || value[1] != KeyPort {
			return fmt.Errorf("line %d: map %s has values of an unknown type %q", line, m.Name, keyText(value))
		}
		m.Family = cluster.IPv4
		if value[0] == KeyIP6Dst {
			m.Family = cluster.IPv6
		}
		return nil
	}, func() bool { return false }, func() (func(cluster.Owner), error) {
		e, owner, err := p.element(m.Key)
		if err != nil {
			return nil, err
		}
		if err := p.expect(":"); err != nil {
			return nil, err
		}
		value := []KeyField{m.valueField(), KeyPort}
		if m.AddressOnly() {
			value = value[:1]
		}
		v, err := p.fields(value)
		if err != nil {
			return nil, err
		}
		if _, twice := m.Elements.Get(e); twice {
			return nil, fmt.Errorf("line %d: a second element %s", p.peek().line, ElementText(m.Key, e))
		}
		t := Target{Addr: netip.AddrPortFrom(v.Addr, v.Port), Owner: owner}
		m.Elements.Put(e, t)
		return func(o cluster.Owner) { t.Owner = o; m.Elements.Put(e, t) }, nil
	})
	if err != nil {
		return err
	}
	p.table.Maps[m.Name] = m
	return nil
}

// newName consumes the name of a map or set that the table does not have yet.
func (p *parser) newName() (string, error) {
	name, err := p.name()
	if err == nil && (p.table.Maps[name] != nil || p.table.Sets[name] != nil) {
		err = fmt.Errorf("line %d: a second map or set %s", p.peek().line, name)
	}
	return name, err
}

// valueField returns the field with the type of the map's addresses.
func (m *Map) valueField() KeyField {
	if m.Family == cluster.IPv4 {
		return KeyIPDst
	}
	return KeyIP6Dst
}

// setBody parses a set after the word "set".
func (p *parser) setBody() error {
	s := &Set{}
	var err error
	if s.Name, err = p.newName(); err != nil {
		return err
	}
	err = p.elements(func() error {
		if s.Key, err = p.key(); err == nil && hasSecondPort(s.Key) {
			return fmt.Errorf("line %d: only the key of a map has a slot", p.peek().line)
		}
		if err == nil && p.intervalFollows() {
			s.resolveSource()
		}
		return err
	}, s.HasRanges, func() (func(cluster.Owner), error) {
		e, owner, err := p.element(s.Key)
		if err != nil {
			return nil, err
		}
		if _, twice := s.Elements.Get(e); twice {
			return nil, fmt.Errorf("line %d: a second element %s", p.peek().line, ElementText(s.Key, e))
		}
		s.Elements.Put(e, owner)
		return func(o cluster.Owner) { s.Elements.Put(e, o) }, nil
	})
	if err != nil {
		return err
	}
	p.table.Sets[s.Name] = s
	return nil
}

// hasSecondPort reports whether a key ends with a second port, which would be a slot.
func hasSecondPort(key []KeyField) bool {
	last := len(key) - 1
	return last > 0 && slices.Contains(key[:last], KeyPort) && key[last] == KeyPort
}

// intervalFollows reports whether flags are next, after a set's type.
func (p *parser) intervalFollows() bool {
	for _, t := range p.tokens[p.at:] {
		switch {
		case t.kind == newline || t.kind == comment || t.s == ";":
		default:
			return t.s == "flags"
		}
	}
	return false
}

// resolveSource makes the only address of a key a source. nft has one type for sources and
// destinations, but only sources have ranges here.
func (s *Set) resolveSource() {
	if len(s.Key) == 1 {
		if k, ok := sourceOf(s.Key[0]); ok {
			s.Key[0] = k
		}
	}
}

// sourceOf returns the source field with the same type as a destination.
func sourceOf(k KeyField) (KeyField, bool) {
	switch k {
	case KeyIPDst:
		return KeyIPSrc, true
	case KeyIP6Dst:
		return KeyIP6Src, true
	}
	return "", false
}

// elements parses what is between the braces of a map or set. parseType parses its type; ranges
// reports whether that needs flags interval. parseElement parses an element, and returns a function
// that sets the owner of it: a label that is too long for nft follows the comma of its element.
func (p *parser) elements(parseType func() error, ranges func() bool,
	parseElement func() (func(cluster.Owner), error)) error {
	if err := p.expect("{"); err != nil {
		return err
	}
	typed, flagged := false, false
	for {
		switch t := p.next(); {
		case t.kind == newline || t.kind == comment || t.s == ";":
			continue
		case t.s == "}" && t.kind == punctuation:
			if !typed {
				return fmt.Errorf("line %d: a map or set without a type", t.line)
			}
			if flagged != ranges() {
				return fmt.Errorf("line %d: a set has flags interval if, and only if, its key has a source", t.line)
			}
			return nil
		case t.s == "flags" && typed && !flagged && ranges() && p.accept("interval"):
			flagged = true
		case (t.s == "typeof" || t.s == "type") && !typed:
			if err := parseType(); err != nil {
				return err
			}
			typed = true
		case t.s == "elements" && typed:
			if err := p.expect("=", "{"); err != nil {
				return err
			}
			if err := p.elementList(parseElement); err != nil {
				return err
			}
		default:
			p.at--
			return p.unexpected("type, flags or elements")
		}
	}
}

func (p *parser) elementList(parseElement func() (func(cluster.Owner), error)) error {
	for {
		p.skipBlank()
		if p.accept("}") {
			return nil
		}
		setOwner, err := parseElement()
		if err != nil {
			return err
		}
		comma := p.accept(",")
		if label := p.longLabel(); label != "" {
			setOwner(cluster.ParseOwner(label))
		}
		p.skipBlank()
		if !comma && p.peek().s != "}" {
			return p.unexpected(`"," or "}"`)
		}
	}
}

// element parses a key and its comment, the owner.
func (p *parser) element(key []KeyField) (Element, cluster.Owner, error) {
	e, err := p.fields(key)
	if err != nil || !p.accept("comment") {
		return e, cluster.Owner{}, err
	}
	label, err := p.value("comment")
	return e, cluster.ParseOwner(label), err
}

// fields parses one value for each field of a key, separated by dots.
func (p *parser) fields(key []KeyField) (Element, error) {
	var e Element
	for i, k := range key {
		if i > 0 && !p.accept(".") {
			return e, p.unexpected(`"." of a key`)
		}
		t := p.peek()
		if t.kind != word && (t.kind != text || k != KeyOut) {
			return e, p.unexpected("value of " + string(k))
		}
		switch k {
		case KeyProto:
			proto, ok := protocolOf(t.s)
			if !ok {
				return e, p.unexpected("protocol")
			}
			e.Protocol = proto
		case KeyPort:
			n, err := strconv.ParseUint(t.s, 10, 16)
			if err != nil {
				return e, p.unexpected("port")
			}
			e.Port = uint16(n)
		case KeyIPSrc, KeyIP6Src:
			prefix, ok := parsePrefix(t.s)
			if !ok || prefix.Addr().Is4() != (k == KeyIPSrc) {
				return e, p.unexpected("value of " + string(k))
			}
			e.Src = prefix
		case KeyOut:
			e.Out = t.s
		case KeyPortSlot, KeyIPSlot, KeyIP6Slot:
			slot, ok := parseSlot(k, t.s)
			if !ok {
				return e, p.unexpected("slot")
			}
			e.Slot = slot
		default:
			a, err := netip.ParseAddr(t.s)
			if err != nil || a.Zone() != "" || a.Is4() != (k == KeyIPDst) {
				return e, p.unexpected("value of " + string(k))
			}
			e.Addr = a
		}
		p.at++
	}
	return e, nil
}

func parseSlot(k KeyField, s string) (uint8, bool) {
	n, err := strconv.ParseUint(s, 10, 8)
	if k != KeyPortSlot {
		a, wrong := netip.ParseAddr(s)
		if wrong != nil || a.Is4() != (k == KeyIPSlot) {
			return 0, false
		}
		b := a.AsSlice()
		n, err = uint64(b[len(b)-1])<<1, nil
		if a != onlyLastByte(a, b[len(b)-1]) {
			return 0, false
		}
	}
	return uint8(n >> 1), err == nil && n&1 == 0 && n>>1 < Slots
}

// onlyLastByte returns the address of a's family in which all bytes but the last are 0.
func onlyLastByte(a netip.Addr, last byte) netip.Addr {
	if a.Is4() {
		return netip.AddrFrom4([4]byte{3: last})
	}
	return netip.AddrFrom16([16]byte{15: last})
}

// key parses field names, separated by dots.
func (p *parser) key() ([]KeyField, error) {
	var key []KeyField
	for {
		first := p.peek().s // word of the field
		k, ok := p.field()
		if !ok {
			return nil, p.unexpected("key field")
		}
		if slices.Contains(key, k) && k != KeyPort {
			k, _ = sourceOf(k) // of two addresses with the same type, the second is the source
		}
		if first == "ifname" && len(key) == 1 { // an address before an interface is a source
			if source, ok := sourceOf(key[0]); ok {
				key[0] = source
			}
		}
		// A second field of type inet_service is a slot: see resolveSlot.
		twice := slices.Contains(key, k) && (k != KeyPort || first != "inet_service")
		if k == "" || twice {
			return nil, fmt.Errorf("line %d: key field %q twice", p.peek().line, k)
		}
		key = append(key, k)
		if !p.accept(".") {
			return key, nil
		}
	}
}

// resolveSlot makes the last field of a map's key a slot if it follows a port. nft has the types of
// addresses and ports for slots.
func (m *Map) resolveSlot() {
	last := len(m.Key) - 1
	if last < 1 || m.Key[last-1] != KeyPort {
		return
	}
	switch m.Key[last] {
	case KeyPort:
		m.Key[last] = KeyPortSlot
	case KeyIPDst, KeyIPSrc:
		m.Key[last] = KeyIPSlot
	case KeyIP6Dst, KeyIP6Src:
		m.Key[last] = KeyIP6Slot
	}
}

// slot consumes a key field that is a slot, if it is next. nft requires parentheses around it as
// input, and prints none.
func (p *parser) slot() (KeyField, bool) {
	const words = 4
	if p.at+words > len(p.tokens) {
		return "", false
	}
	var w []string
	for _, t := range p.tokens[p.at : p.at+words] {
		w = append(w, strings.Trim(t.s, "()"))
	}
	proto, isProtocol := protocolOf(w[0])
	named := isProtocol && w[1] == "sport" // "tcp sport": nft prints it for "th sport" after a match on TCP
	if named {
		w[0] = "th"
	}
	k := KeyField("(" + strings.Join(w, " ") + ")")
	switch k {
	case KeyPortSlot, KeyIPSlot, KeyIP6Slot:
		if named {
			p.implied = proto
		}
		p.at += words
		return k, true
	}
	return "", false
}

// field consumes one key field, of two words or one, if it is next.
func (p *parser) field() (KeyField, bool) {
	if k, ok := p.slot(); ok {
		return k, true
	}
	for n := 2; n >= 1; n-- {
		var words []string
		for i := 0; i < n && p.tokens[min(p.at+i, len(p.tokens)-1)].kind == word; i++ {
			words = append(words, p.tokens[p.at+i].s)
		}
		if k, ok := fieldOf(words); ok && len(words) == n {
			if proto, named := protocolOf(words[0]); named {
				p.implied = proto
			}
			p.at += n
			return k, true
		}
	}
	return "", false
}

// fieldOf returns the key field for an expression such as "th dport", or for a type such as
// "inet_service". nft prints sets with what they were created with. In rules, it prints "tcp dport"
// for "th dport" after a match on TCP.
func fieldOf(words []string) (KeyField, bool) {
	switch s := strings.Join(words, " "); s {
	case "ipv4_addr":
		return KeyIPDst, true
	case "ipv6_addr":
		return KeyIP6Dst, true
	case "inet_proto":
		return KeyProto, true
	case "ifname":
		return KeyOut, true
	case "inet_service", "tcp dport", "udp dport", "sctp dport":
		return KeyPort, true
	default:
		k := KeyField(s)
		return k, slices.Contains([]KeyField{KeyIPDst, KeyIP6Dst, KeyProto, KeyPort, KeyIPSrc, KeyIP6Src, KeyOut}, k)
	}
}

// protocolOf parses the name or number of a protocol. nft prints numbers if /etc/protocols is
// missing.
func protocolOf(s string) (cluster.Protocol, bool) {
	for _, p := range []cluster.Protocol{cluster.TCP, cluster.UDP, cluster.SCTP} {
		if s == p.String() {
			return p, true
		}
	}
	n, err := strconv.ParseUint(s, 10, 8)
	return cluster.Protocol(n), err == nil
}
