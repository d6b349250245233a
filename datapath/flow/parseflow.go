package flow

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"hairpin/claims"
	"hairpin/cluster"
)

// ParseFlow parses one flow in ovs-ofctl's syntax, as String writes it, with or without the owner.
// Without a priority in the text, it is 32768; without a cookie, the feature is 0. An error is a
// *WordError with the first word that is not understood.
func ParseFlow(line string) (*Flow, error) {
	p := parser{flow: Flow{Key: Key{Priority: defaultPriority}}}
	rest, owner := cutOwner(strings.TrimSpace(line))
	p.flow.Owner = owner
	for {
		var word string
		rest = strings.TrimLeft(rest, ", \t")
		if actions, ok := strings.CutPrefix(rest, "actions="); ok {
			return p.finish(actions)
		}
		if word, rest = nextWord(rest); word == "" {
			return nil, wordError(line, "has no actions")
		}
		if err := p.word(word); err != nil {
			return nil, err
		}
	}
}

// parser collects the parsed words of one flow.
type parser struct {
	flow       Flow
	matchWords []matchWord
}

// matchWord is a word of the match.
type matchWord struct {
	field      fieldForm
	word, name string
}

func (p *parser) finish(actions string) (*Flow, error) {
	list, err := parseActions(actions)
	p.flow.Actions = list
	if err := cmp.Or(p.checkForms(), p.flow.Match.checkTogether(), err); err != nil {
		return nil, err
	}
	return &p.flow, nil
}

// word parses one word before the actions.
func (p *parser) word(word string) error {
	if proto, ok := protocolNamed(word); ok {
		if p.flow.Match.Protocol != Any {
			return wordError(word, "is a second protocol")
		}
		p.flow.Match.Protocol = proto
		return nil
	}
	name, value, _ := strings.Cut(word, "=")
	switch name {
	case "table":
		return number(&p.flow.Table, word, value, 8)
	case "priority":
		return number(&p.flow.Priority, word, value, 16)
	case "cookie":
		return p.cookie(word, value)
	}
	return p.field(word, name, value)
}

// field parses a field of the match. checkForms checks later whether it fits the protocol.
func (p *parser) field(word, name, value string) error {
	m := &p.flow.Match
	f, ok := byName[name]
	switch {
	case !ok:
		return wordError(word, "is not a field known here")
	case f.notation == nil:
		port, err := unquote(value)
		if strings.EqualFold(port, Local) {
			port = Local
		}
		if port == "" {
			return wordError(word, "names no port")
		}
		m.InPort = port
		return wrapWord(word, err)
	}
	d, err := f.notation.Parse(value, 8*f.oxm.Width())
	if err != nil {
		return wrapWord(word, err)
	}
	matchesAll := d.Size > 0 && d.PrefixLen() == 0 // 0.0.0.0/0: the field stays unset
	if !f.set(m, d) || !f.isSet(m) && !matchesAll {
		return wordError(word, "is not a value that a flow of ours matches")
	}
	p.matchWords = append(p.matchWords, matchWord{f, word, name})
	return nil
}

// checkForms returns an error for a word that does not fit the protocol.
func (p *parser) checkForms() error {
	m := &p.flow.Match
	for _, w := range p.matchWords {
		d, set := w.field.get(m), w.field.isSet(m)
		if !slices.ContainsFunc(w.field.forms, func(x form) bool {
			return (x.name == w.name || x.alias == w.name) && x.needs.met(m) && (!set || d.Fits(x.oxm.Width()))
		}) {
			return wordError(w.word, "does not go with the protocol or the type")
		}
	}
	return nil
}

func (p *parser) cookie(word, value string) error {
	n, err := strconv.ParseUint(value, 0, 64)
	if err != nil || n&claims.CookieMask != claims.Cookie {
		return wordError(word, "is not a cookie of ours")
	}
	p.flow.Feature = uint32(n >> 32)
	return nil
}

// parseCTState parses "+est-inv", and "est|trk", which ovs-ofctl prints if the mask has every bit.
// "0" then excludes all bits.
func parseCTState(s string) (CTState, error) {
	var c CTState
	if !strings.HasPrefix(s, "+") && !strings.HasPrefix(s, "-") {
		for _, name := range strings.Split(s, "|") {
			bit, ok := ctBit(name)
			if !ok && s != "0" {
				return c, errors.New("a bit is not known here")
			}
			c.Set |= bit
		}
		c.Clear = ^c.Set
		return c, nil
	}
	for s != "" {
		sign := s[0]
		end := strings.IndexAny(s[1:], "+-") + 1
		if end == 0 {
			end = len(s)
		}
		bit, ok := ctBit(s[1:end])
		if !ok || (c.Set|c.Clear)&bit != 0 {
			return c, errors.New("a bit is not known here, or named twice")
		}
		if sign == '+' {
			c.Set |= bit
		} else {
			c.Clear |= bit
		}
		s = s[end:]
	}
	return c, nil
}

func number[T uint8 | uint16 | uint32 | uint64](to *T, word, value string, bits int) error {
	n, err := strconv.ParseUint(value, 0, bits)
	if err != nil {
		return wordError(word, fmt.Sprintf("is not a number of %d bits", bits))
	}
	*to = T(n)
	return nil
}

// AppendOwner appends the comment that names an owner, if there is one.
func AppendOwner(b []byte, o cluster.Owner) []byte {
	if o == (cluster.Owner{}) {
		return b
	}
	return append(append(b, " # "...), o.String()...)
}

// cutOwner removes the trailing comment. A port name may also contain " # ", but then a quote
// follows it.
func cutOwner(line string) (string, cluster.Owner) {
	i := strings.LastIndex(line, " # ")
	if i < 0 || strings.ContainsRune(line[i:], '"') {
		return line, cluster.Owner{}
	}
	return strings.TrimRight(line[:i], " "), cluster.ParseOwner(line[i+3:])
}
