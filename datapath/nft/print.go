package nft

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/delta"
)

// MaxComment is the maximum length of an nft comment in bytes (NFTNL_UDATA_COMMENT_MAXLEN). A
// longer label is printed after a #, so the kernel does not store it.
const MaxComment = 128

// longLabelPrefix and unknownPrefix begin the #-comments that Parse reads.
const (
	longLabelPrefix = "# for "
	unknownPrefix   = "# unknown: "
)

// Print returns a State in nft's syntax, in a canonical order, as input for `nft -f`. Owners are
// comments of chains, rules and elements. A rule with a map or set that its table does not have is
// printed without the key, and nft rejects it.
func Print(s State) string {
	var b strings.Builder
	for _, f := range delta.Keys(s) {
		if s[f] != nil {
			printTable(&b, f, s[f])
		}
	}
	return b.String()
}

func printTable(b *strings.Builder, f Family, t *Table) {
	fmt.Fprintf(b, "table %s %s {\n", f, claims.NFTTable)
	for _, u := range t.Unknown {
		fmt.Fprintf(b, "\t%s%s\n", unknownPrefix, strconv.Quote(u))
	}
	for _, name := range delta.Keys(t.Maps) {
		m := t.Maps[name]
		fmt.Fprintf(b, "\tmap %s {\n\t\t%s\n", name, mapType(m))
		printElements(b, m.Key, m.Elements,
			func(t Target) (string, cluster.Owner) { return " : " + targetText(m, t), t.Owner })
		b.WriteString("\t}\n")
	}
	for _, name := range delta.Keys(t.Sets) {
		s := t.Sets[name]
		fmt.Fprintf(b, "\tset %s {\n\t\t%s\n", name, setType(s))
		printElements(b, s.Key, s.Elements, func(o cluster.Owner) (string, cluster.Owner) { return "", o })
		b.WriteString("\t}\n")
	}
	for _, name := range delta.Keys(t.Chains) {
		printChain(b, t, t.Chains[name])
	}
	b.WriteString("}\n")
}

func printElements[V any](b *strings.Builder, key []KeyField, elements delta.Map[Element, V],
	text func(V) (string, cluster.Owner)) {
	if elements.Len() == 0 {
		return
	}
	b.WriteString("\t\telements = {\n")
	for _, e := range elements.Sorted(Element.Compare) {
		value, owner := text(elements.At(e))
		comment, trailer := labelText(owner.String())
		fmt.Fprintf(b, "\t\t\t%s%s%s,%s\n", ElementText(key, e), comment, value, trailer)
	}
	b.WriteString("\t\t}\n")
}

func printChain(b *strings.Builder, t *Table, c *Chain) {
	fmt.Fprintf(b, "\tchain %s {", c.Name)
	comment, trailer := labelText(c.Owner.String())
	fmt.Fprintf(b, "%s\n", trailer)
	if comment != "" {
		fmt.Fprintf(b, "\t\t%s\n", comment[1:])
	}
	if h := hookText(c); h != "" {
		fmt.Fprintf(b, "\t\t%s\n", h)
	}
	for i := range c.Rules {
		fmt.Fprintf(b, "\t\t%s\n", ruleLine(t, &c.Rules[i]))
	}
	b.WriteString("\t}\n")
}

// hookText returns the line that makes a chain a base chain, or "". Priorities are numbers, because
// nft before 1.0.7 rejects the word dstnat in the output hook.
func hookText(c *Chain) string {
	if c.Hook == "" {
		return ""
	}
	device := ""
	if c.Device != "" {
		device = " device " + quote(c.Device)
	}
	return fmt.Sprintf("type %s hook %s%s priority %d; policy accept;", c.Type, c.Hook, device, c.Priority)
}

// ruleLine returns a rule with its label.
func ruleLine(t *Table, r *Rule) string {
	comment, trailer := labelText(ruleLabel(r))
	return strings.TrimPrefix(t.RuleText(r)+comment+trailer, " ")
}

// RuleText returns a rule of the table in nft's syntax, without its label.
func (t *Table) RuleText(r *Rule) string {
	var words []string
	for _, m := range r.Matches {
		words = append(words, matchText(t, m))
	}
	if r.Do != nil {
		words = append(words, statementText(t, r.Do))
	}
	return strings.Join(words, " ")
}

// ruleLabel joins owner and comment: "Node/node-a: pods to the host". splitLabel reverses it: if
// there is no owner, and splitLabel would find one in the comment, the label begins with ": ".
func ruleLabel(r *Rule) string {
	switch owner := r.Owner.String(); {
	case owner != "" && r.Comment != "":
		return owner + ": " + r.Comment
	case owner != "":
		return owner
	}
	if o, c := splitLabel(r.Comment); o != (cluster.Owner{}) || c != r.Comment {
		return ": " + r.Comment
	}
	return r.Comment
}

// labelText returns a label as an nft comment, or as a #-comment at the end of the line if it is
// too long for nft. Both begin with a space.
func labelText(label string) (comment, trailer string) {
	switch {
	case label == "":
		return "", ""
	case len(label) > MaxComment:
		return "", " " + longLabelPrefix + label
	}
	return " comment " + quote(label), ""
}

// Comment returns the nft comment of an owner, without quotation marks; empty if it would be too
// long.
func Comment(o cluster.Owner) string {
	label := o.String()
	if len(label) > MaxComment {
		return ""
	}
	return plainText(label)
}

func quote(s string) string { return `"` + plainText(s) + `"` }

// plainText makes a text a valid nft string. These have no escapes, so a quotation mark becomes an
// apostrophe and a control character a space.
func plainText(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '"':
			return '\''
		case r < ' ' || r == 0x7f:
			return ' '
		}
		return r
	}, s)
}

func matchText(t *Table, m Match) string {
	switch m := m.(type) {
	case AddrIn:
		return fmt.Sprintf("%s %s %s%s", addrKeyword(m.Prefix.Addr()), pick(m.Dst, "daddr", "saddr"),
			pick(m.Not, "!= ", ""), prefixText(m.Prefix))
	case DstIsLocal:
		return "fib daddr type local"
	case L4Proto:
		return "meta l4proto " + protocolText(m.Protocol)
	case DstPort:
		return fmt.Sprintf("%s dport %d", m.Protocol, m.Port)
	case OutInterface:
		return "oifname " + pick(m.Not, "!= ", "") + quote(m.Name)
	case InInterface:
		return "iifname " + pick(m.Not, "!= ", "") + quote(m.Name)
	case MarkIs:
		if m.Mask == ^uint32(0) {
			return fmt.Sprintf("meta mark 0x%08x", m.Value)
		}
		return fmt.Sprintf("meta mark & 0x%08x == 0x%08x", m.Mask, m.Value)
	case CTState:
		return "ct state " + string(m)
	case CTDirection:
		return "ct direction " + string(m)
	case EtherSrc:
		return "ether saddr " + m.MAC.String()
	case NoSYN:
		return "tcp flags ! syn"
	case CTMarkIs:
		return fmt.Sprintf("ct mark 0x%08x", m.Value)
	case InSet:
		if s := t.Sets[m.Set]; s != nil {
			return keyText(s.Key) + " @" + m.Set
		}
		return "@" + m.Set
	}
	panic(fmt.Sprintf("nft: no text for a match of type %T", m))
}

func statementText(t *Table, s Statement) string {
	switch s := s.(type) {
	case Accept:
		return "accept"
	case Drop:
		return "drop"
	case Return:
		return "return"
	case Reject:
		return "reject with " + pick(s.TCPReset, "tcp reset", "icmpx port-unreachable")
	case Masquerade:
		return "masquerade"
	case SNAT:
		return fmt.Sprintf("snat %s to %s", addrKeyword(s.Addr), s.Addr)
	case Forward:
		return "fwd to " + quote(s.Device)
	case Dup:
		return fmt.Sprintf("dup to %s device %s", s.To, quote(s.Device))
	case SetMark:
		return fmt.Sprintf("meta mark set 0x%08x", s.Value)
	case AddMark:
		return fmt.Sprintf("meta mark set meta mark | 0x%08x", s.Bits)
	case SaveMark:
		return "ct mark set meta mark"
	case RestoreMark:
		return "meta mark set ct mark"
	case SNATMap:
		if m := t.Maps[s.Map]; m != nil {
			return fmt.Sprintf("snat %s to %s map @%s", familyKeyword(m.Family), keyText(m.Key), s.Map)
		}
		return "snat to map @" + s.Map
	case DNATMap:
		if m := t.Maps[s.Map]; m != nil {
			return fmt.Sprintf("dnat %s to %s map @%s", familyKeyword(m.Family), keyText(m.Key), s.Map)
		}
		return "dnat to map @" + s.Map
	}
	panic(fmt.Sprintf("nft: no text for a statement of type %T", s))
}

// mapType returns the type of a map. A single type, of a set's key or a map's values, is written as
// "typeof": for "type ipv4_addr", nft 1.1.2 and later stores data in the kernel that crashes every
// command of an nft before 1.1.2, even one that only lists tables (fixed by be737a1986 of
// nftables). Several types are written as "type": with "typeof", nft 1.1.3 rejects rules that
// reference a map which is already in the kernel ("conflicting protocols specified: ip vs. th").
func mapType(m *Map) string {
	if m.AddressOnly() {
		return fmt.Sprintf("typeof %s : %s", keyText(m.Key), m.valueField())
	}
	return fmt.Sprintf("type %s : %s . %s", typeText(m.Key), typeKeyword(m.valueField()), typeKeyword(KeyPort))
}

// setType returns the type of a set: see mapType.
func setType(s *Set) string {
	text := "type " + typeText(s.Key)
	if len(s.Key) == 1 {
		text = "typeof " + keyText(s.Key)
	}
	if s.HasRanges() {
		text += "; flags interval"
	}
	return text
}

// HasRanges reports whether the sources of the elements are ranges of addresses.
func (s *Set) HasRanges() bool {
	return s.hasAnyField(KeyIPSrc, KeyIP6Src) && !s.hasAnyField(KeyOut)
}

// hasAnyField reports whether the set's key has one of these fields.
func (s *Set) hasAnyField(fields ...KeyField) bool {
	return slices.ContainsFunc(s.Key, func(k KeyField) bool { return slices.Contains(fields, k) })
}

// AddressOnly reports whether the values of the map have no port.
func (m *Map) AddressOnly() bool { return slices.Contains(m.Key, KeyOut) }

func typeText(key []KeyField) string {
	words := make([]string, len(key))
	for i, k := range key {
		words[i] = typeKeyword(k)
	}
	return strings.Join(words, " . ")
}

func typeKeyword(k KeyField) string {
	switch k {
	case KeyIPDst, KeyIPSrc, KeyIPSlot:
		return "ipv4_addr"
	case KeyIP6Dst, KeyIP6Src, KeyIP6Slot:
		return "ipv6_addr"
	case KeyProto:
		return "inet_proto"
	case KeyOut:
		return "ifname"
	}
	return "inet_service"
}

func keyText(key []KeyField) string {
	words := make([]string, len(key))
	for i, k := range key {
		words[i] = string(k)
	}
	return strings.Join(words, " . ")
}

// ElementText returns the key of an element in nft's syntax: "tcp . 80".
func ElementText(key []KeyField, e Element) string {
	words := make([]string, len(key))
	for i, k := range key {
		switch k {
		case KeyProto:
			words[i] = protocolText(e.Protocol)
		case KeyPort:
			words[i] = strconv.Itoa(int(e.Port))
		case KeyIPSrc, KeyIP6Src:
			words[i] = prefixText(e.Src)
		case KeyOut:
			words[i] = quote(e.Out)
		case KeyPortSlot:
			words[i] = strconv.Itoa(int(e.Slot) << 1)
		case KeyIPSlot:
			words[i] = onlyLastByte(netip.IPv4Unspecified(), e.Slot).String()
		case KeyIP6Slot:
			words[i] = onlyLastByte(netip.IPv6Unspecified(), e.Slot).String()
		default:
			words[i] = e.Addr.String()
		}
	}
	return strings.Join(words, " . ")
}

func targetText(m *Map, t Target) string {
	if m.AddressOnly() {
		return t.Addr.Addr().String()
	}
	return t.Addr.Addr().String() + " . " + strconv.Itoa(int(t.Addr.Port()))
}

// Compare orders elements by protocol, port, address, source, interface and slot.
func (e Element) Compare(f Element) int {
	return cmp.Or(cmp.Compare(e.Protocol, f.Protocol), cmp.Compare(e.Port, f.Port), e.Addr.Compare(f.Addr),
		e.Src.Addr().Compare(f.Src.Addr()), cmp.Compare(e.Src.Bits(), f.Src.Bits()), cmp.Compare(e.Out, f.Out),
		cmp.Compare(e.Slot, f.Slot))
}

// protocolText returns the name of a protocol of Services, for which /etc/protocols has the same
// name, and the number of any other.
func protocolText(p cluster.Protocol) string {
	switch p {
	case cluster.TCP, cluster.UDP, cluster.SCTP:
		return p.String()
	}
	return strconv.Itoa(int(p))
}

// prefixText returns a prefix, or an address for the prefix of full length, as nft does.
func prefixText(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}

func addrKeyword(a netip.Addr) string { return familyKeyword(cluster.FamilyOf(a)) }

func familyKeyword(f cluster.Family) string { return pick(f == cluster.IPv4, "ip", "ip6") }

func pick(b bool, yes, no string) string {
	if b {
		return yes
	}
	return no
}
