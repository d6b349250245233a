package nft

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"hairpin/claims"
	"hairpin/cluster"
)

// Parse parses the text of Print, and what `nft list table` of nft 1.0.6 to 1.1 prints for such
// tables. It accepts only the forms of this package. For any other, it returns an error with the
// unexpected word and its line. Maps and sets must precede the chains that use them, as nft prints
// them.
func Parse(in string) (State, error) { return parse(in, false) }

// ParseFound is Parse for a table that another program may have edited. It stores parts that Parse
// does not accept as text in Table.Unknown, instead of returning an error. It fails only on text
// that is not a table of Hairpin.
func ParseFound(in string) (State, error) { return parse(in, true) }

// parser parses a list of tokens. If lenient, it puts parts that it cannot parse into Unknown.
type parser struct {
	tokens  []token
	at      int // index of the next token
	lenient bool
	table   *Table
	implied cluster.Protocol // by "tcp dport" in the key that was parsed last; 0 = none
}

func parse(in string, lenient bool) (State, error) {
	tokens, err := lex(in)
	if err != nil {
		return nil, err
	}
	p := &parser{tokens: tokens, lenient: lenient}
	out := State{}
	for {
		p.skipBlank()
		if p.peek().kind == end {
			return out, nil
		}
		if err := p.expect("table"); err != nil {
			return nil, err
		}
		family := Family(p.peek().s)
		if !slices.Contains(Families(), family) {
			return nil, p.unexpected("table family")
		}
		p.at++
		if err := p.expect(claims.NFTTable, "{"); err != nil {
			return nil, err
		}
		if out[family] != nil {
			return nil, fmt.Errorf("line %d: a second table of family %s", p.peek().line, family)
		}
		p.table = &Table{Chains: map[string]*Chain{}, Maps: map[string]*Map{}, Sets: map[string]*Set{}}
		out[family] = p.table
		if err := p.tableBody(); err != nil {
			return nil, err
		}
	}
}

func (p *parser) tableBody() error {
	for {
		start := p.at
		var err error
		switch t := p.next(); {
		case t.kind == newline:
		case t.kind == comment:
			if quoted, found := strings.CutPrefix(t.s, unknownPrefix); found {
				var u string
				if u, err = strconv.Unquote(quoted); err == nil {
					p.table.Unknown = append(p.table.Unknown, u)
				}
			}
		case t.s == "}" && t.kind == punctuation:
			return nil
		case t.kind == end:
			return fmt.Errorf("line %d: the table has no end", t.line)
		case t.s == "chain":
			err = p.chain()
		case t.s == "map":
			err = p.mapBody()
		case t.s == "set":
			err = p.setBody()
		default:
			p.at--
			err = p.unexpected("chain, map or set")
		}
		if err == nil {
			continue
		}
		if !p.lenient {
			return err
		}
		p.keepUnknown(start, "")
	}
}

// keepUnknown adds the text from the token at start to the end of its line to Unknown, with where
// in front. Braces may continue it on further lines. The next token is the first one after the
// text.
func (p *parser) keepUnknown(start int, where string) {
	var words []string
	depth := 0
	for p.at = start; ; p.at++ {
		t := p.peek()
		if t.kind == end || (depth == 0 && (t.kind == newline || t.s == "}" && t.kind == punctuation)) {
			break
		}
		switch {
		case t.kind == newline || t.kind == comment:
			continue
		case t.kind == text:
			words = append(words, `"`+t.s+`"`)
			continue
		case t.s == "{":
			depth++
		case t.s == "}":
			depth--
		}
		words = append(words, t.s)
	}
	p.table.Unknown = append(p.table.Unknown, where+strings.Join(words, " "))
}

func (p *parser) chain() error {
	name, err := p.name()
	if err != nil {
		return err
	}
	c := &Chain{Name: name}
	if err := p.expect("{"); err != nil {
		return err
	}
	c.Owner = cluster.ParseOwner(p.longLabel())
	for {
		start := p.at
		switch t := p.next(); {
		case t.kind == newline || t.kind == comment || t.s == ";":
			continue
		case t.s == "}" && t.kind == punctuation:
			return p.addChain(c)
		case t.kind == end:
			return fmt.Errorf("line %d: chain %s has no end", t.line, c.Name)
		case t.s == "comment" && len(c.Rules) == 0:
			label, err := p.value("comment")
			if err != nil {
				return err
			}
			c.Owner = cluster.ParseOwner(label)
		case t.s == "type" && c.Hook == "":
			if err := p.hook(c); err != nil {
				return err
			}
		default:
			p.at = start
			r, err := p.rule()
			if err != nil && !p.lenient {
				return err
			}
			if err != nil {
				p.keepUnknown(start, "chain "+c.Name+": ")
				continue
			}
			c.Rules = append(c.Rules, r)
		}
	}
}

func (p *parser) addChain(c *Chain) error {
	if p.table.Chains[c.Name] != nil {
		return fmt.Errorf("line %d: a second chain %s", p.peek().line, c.Name)
	}
	p.table.Chains[c.Name] = c
	return nil
}

// hook parses "nat hook prerouting device "eth0" priority -100; policy accept;".
func (p *parser) hook(c *Chain) error {
	var err error
	if c.Type, err = p.value("chain type"); err != nil {
		return err
	}
	if err := p.expect("hook"); err != nil {
		return err
	}
	if c.Hook, err = p.value("hook"); err != nil {
		return err
	}
	if p.accept("device") {
		if c.Device, err = p.value("device"); err != nil {
			return err
		}
	}
	if err := p.expect("priority"); err != nil {
		return err
	}
	if c.Priority, err = p.priority(); err != nil {
		return err
	}
	p.accept(";")
	if p.accept("policy") {
		return p.expect("accept", ";")
	}
	return nil
}

// priority parses a number, or one of nft's names with or without an offset, such as "filter -
// 500".
func (p *parser) priority() (int, error) {
	known := map[string]int{"raw": -300, "mangle": -150, "dstnat": -100, "filter": 0, "security": 50, "srcnat": 100}
	base, named := known[p.peek().s]
	if !named {
		n, err := strconv.Atoi(p.peek().s)
		if err != nil {
			return 0, p.unexpected("priority")
		}
		p.at++
		return n, nil
	}
	p.at++
	sign := 0
	switch {
	case p.accept("+"):
		sign = 1
	case p.accept("-"):
		sign = -1
	default:
		return base, nil
	}
	n, err := strconv.Atoi(p.peek().s)
	if err != nil {
		return 0, p.unexpected("offset of a priority")
	}
	p.at++
	return base + sign*n, nil
}

func (p *parser) name() (string, error) {
	if t := p.peek(); t.kind != word {
		return "", p.unexpected("name")
	}
	return p.next().s, nil
}

func (p *parser) skipComment() {
	if p.peek().kind == comment {
		p.at++
	}
}

// value consumes a word or a string.
func (p *parser) value(want string) (string, error) {
	if t := p.peek(); t.kind != word && t.kind != text {
		return "", p.unexpected(want)
	}
	return p.next().s, nil
}

// longLabel consumes a comment with a label that is too long for nft, if it is the next token.
func (p *parser) longLabel() string {
	label, found := strings.CutPrefix(p.peek().s, longLabelPrefix)
	if !found || label == "" || p.peek().kind != comment {
		return ""
	}
	p.at++
	return label
}

func (p *parser) peek() token { return p.tokens[p.at] }

// next consumes a token, unless it is the end.
func (p *parser) next() token {
	t := p.tokens[p.at]
	if t.kind != end {
		p.at++
	}
	return t
}

// accept consumes the next token if it is s, and reports whether it was.
func (p *parser) accept(s string) bool {
	if t := p.peek(); t.s != s || (t.kind != word && t.kind != punctuation) {
		return false
	}
	p.at++
	return true
}

// expect consumes exactly these words.
func (p *parser) expect(want ...string) error {
	for _, w := range want {
		if !p.accept(w) {
			return p.unexpected(strconv.Quote(w))
		}
	}
	return nil
}

func (p *parser) skipBlank() {
	for k := p.peek().kind; k == newline || k == comment; k = p.peek().kind {
		p.at++
	}
}

// unexpected returns an error about the next token.
func (p *parser) unexpected(want string) error {
	return fmt.Errorf("line %d: unexpected %q, expected %s", p.peek().line, p.peek().s, want)
}
