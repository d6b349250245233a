package path

import (
	"fmt"
	"strings"

	"hairpin/datapath/nb"
)

// Texts caches the text of rules and stages between the walks of one World: rendering a row costs
// more than walking it.
type Texts struct {
	rules  map[any]string
	joined map[[2]string]string
}

// NewTexts returns an empty cache.
func NewTexts() *Texts { return &Texts{rules: map[any]string{}, joined: map[[2]string]string{}} }

// Join returns a + b, without an allocation if it has joined them before.
func (t *Texts) Join(a, b string) string {
	k := [2]string{a, b}
	s, ok := t.joined[k]
	if !ok {
		s = a + b
		t.joined[k] = s
	}
	return s
}

// rule returns a rule in the syntax of its tool: a string, a row of OVN, or a fmt.Stringer.
func (t *Texts) rule(x any) string {
	if s, ok := x.(string); ok {
		return s
	}
	s, ok := t.rules[x]
	if ok {
		return s
	}
	switch x := x.(type) {
	case nb.Row:
		s = strings.TrimSuffix(nb.Line(x), " # "+nb.OwnerOf(x).String())
	case fmt.Stringer:
		s = x.String()
	default:
		s = fmt.Sprintf("%T", x)
	}
	t.rules[x] = s
	return s
}
