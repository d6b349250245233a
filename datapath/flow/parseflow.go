package flow

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"hairpin/claims"
	"hairpin/cluster"
)

// Counters are the switch's counters of a flow.
type Counters struct {
	Packets, Bytes uint64
	Duration       time.Duration // since the flow was added
}

// ParseFlow parses one flow: what Print writes, what ovs-ofctl(8) accepts, and what `ovs-ofctl
// dump-flows`, with or without --names and --no-stats, prints. Without a priority in the text, it
// is 32768; without a cookie, the feature is 0.
//
// An error is, or wraps, a *WordError with the first word that is not understood. If that word is
// not part of the match (an action, a timeout, a foreign cookie), ParseFlow also returns the flow
// with its Key and UnknownActions, so that the caller knows which flow to replace. Otherwise the
// flow is nil.
func ParseFlow(line string) (*Flow, Counters, error) {
	p := parser{flow: Flow{Key: Key{Priority: defaultPriority}}}
	rest, owner := cutOwner(strings.TrimSpace(line))
	p.flow.Owner = owner
	for {
		var word string
		rest = strings.TrimLeft(rest, ", \t")
		if actions, ok := cutActions(rest); ok {
			return p.finish(actions)
		}
		if word, rest = nextWord(rest); word == "" {
			p.fault(wordError(line, "has no actions"))
			return nil, p.counters, p.other
		}
		if err := p.word(word); err != nil {
			return nil, p.counters, err
		}
	}
}

// parser collects the parsed words of one flow.
type parser struct {
	flow     Flow
	counters Counters
	matched  []matchWord
	other    error    // first error outside of the match
	unknown  []string // words not understood between the match and the actions
}

// matchWord is a word of the match.
type matchWord struct {
	field      fieldForm
	word, name string
}

// fault records the first error outside of the match.
func (p *parser) fault(err error) {
	if p.other == nil {
		p.other = err
	}
}

func (p *parser) finish(actions string) (*Flow, Counters, error) {
	if err := p.checkForms(); err != nil {
		return nil, p.counters, err
	}
	if err := p.flow.Match.checkTogether(); err != nil {
		return nil, p.counters, err
	}
	f := p.flow
	list, err := parseActions(actions)
	p.fault(err)
	f.Actions = list
	if p.other != nil {
		f.Actions = []Action{UnknownActions{strings.Join(p.unknown, ","), strings.TrimSpace(actions)}}
	}
	return &f, p.counters, p.other
}

// word parses one word before the actions. An error means that the match is wrong.
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
	case "n_packets":
		return number(&p.counters.Packets, word, value, 64)
	case "n_bytes":
		return number(&p.counters.Bytes, word, value, 64)
	case "duration":
		d, err := time.ParseDuration(value)
		p.counters.Duration = d
		return wrapWord(word, err)
	case "idle_age", "hard_age":
		return nil
	case "idle_timeout", "hard_timeout", "importance", "send_flow_rem", "check_overlap", "reset_counts",
		"no_packet_counts", "no_byte_counts":
		p.unknown = append(p.unknown, word)
		p.fault(wordError(word, "is nothing that a flow of ours has"))
		return nil
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
	d, err := f.notation.parse(value, 8*f.oxm.Width())
	if err != nil {
		return wrapWord(word, err)
	}
	if !f.put(m, d) || !m.Fields().has(f.place) && (d.size == 0 || d.prefixLen() > 0) {
		return wordError(word, "is not a value that a flow of ours matches")
	}
	p.matched = append(p.matched, matchWord{f, word, name})
	return nil
}

// checkForms returns an error for a word that does not fit the protocol.
func (p *parser) checkForms() error {
	m := &p.flow.Match
	for _, w := range p.matched {
		d, set := w.field.get(m), m.Fields().has(w.field.place)
		if !slices.ContainsFunc(w.field.forms, func(x form) bool {
			return (x.name == w.name || x.alias == w.name) && x.needs.met(m) && (!set || d.fits(x.oxm.Width()))
		}) {
			return wordError(w.word, "does not go with the protocol or the type")
		}
	}
	return nil
}

func (p *parser) cookie(word, value string) error {
	n, err := strconv.ParseUint(value, 0, 64)
	switch {
	case err != nil:
		return wordError(word, "is not a number")
	case n&claims.CookieMask != claims.Cookie:
		p.unknown = append(p.unknown, word)
		p.fault(wordError(word, "is not a cookie of ours"))
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

// nonzero parses a field whose 0 means "any" in a Match.
func nonzero[T uint8 | uint16 | uint32](to *T, word, value string, bits int) error {
	if err := number(to, word, value, bits); err != nil {
		return err
	}
	if *to == 0 {
		return wordError(word, "is 0, which no flow of ours matches")
	}
	return nil
}

// cutActions reports whether s begins with the actions, and returns them.
func cutActions(s string) (string, bool) {
	if a, ok := strings.CutPrefix(s, "actions="); ok {
		return a, true
	}
	return strings.CutPrefix(s, "action=")
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

// WithoutCounters returns a line of dump-flows without its volatile fields, as in State.Unknown.
func WithoutCounters(line string) string {
	words, actions := without(line, "duration", "n_packets", "n_bytes", "idle_age", "hard_age")
	return words + " actions=" + actions
}

// MatchOf returns the identity of the flow in a line of State.Unknown, as ovs-ofctl needs it to
// delete the flow.
func MatchOf(line string) string {
	words, _ := without(line, "cookie", "duration", "n_packets", "n_bytes", "idle_age", "hard_age", "idle_timeout",
		"hard_timeout",
		"importance", "send_flow_rem", "check_overlap", "reset_counts", "no_packet_counts", "no_byte_counts")
	return words
}

// without returns the words before the actions, except those with the given names, and the actions.
func without(line string, names ...string) (words, actions string) {
	var kept []string
	for rest := line; ; {
		rest = strings.TrimLeft(rest, ", \t")
		if actions, ok := cutActions(rest); ok {
			return strings.Join(kept, ","), actions
		}
		var word string
		if word, rest = nextWord(rest); word == "" {
			return strings.Join(kept, ","), ""
		}
		if name, _, _ := strings.Cut(word, "="); !slices.Contains(names, name) {
			kept = append(kept, word)
		}
	}
}
