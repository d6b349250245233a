package nft

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"hairpin/claims"
	"hairpin/delta"
)

// String returns the commands for one `nft -f`, one per line: those of Grow first, then those of
// Shrink.
func (d Delta) String() string {
	var b strings.Builder
	for _, f := range delta.Keys(d.Tables) {
		t := d.Tables[f]
		s := script{b: &b, table: fmt.Sprintf("%s %s", f, claims.NFTTable), d: &t}
		s.grow()
		s.shrink()
	}
	return b.String()
}

// script writes the commands of one table.
type script struct {
	b     *strings.Builder
	table string // "inet hairpin"
	d     *TableDelta
}

// command writes one line such as "add map inet hairpin nodeports4 { … }".
func (s *script) command(verb, object, rest string) {
	fmt.Fprintf(s.b, "%s %s %s%s\n", verb, object, s.table, rest)
}

func (s *script) grow() {
	if s.d.Add || s.d.Replace {
		s.command("add", "table", "")
	}
	if s.d.Replace {
		s.command("delete", "table", "")
		s.command("add", "table", "")
	}
	for _, name := range delta.Keys(s.d.Maps.Add) {
		m := s.d.Maps.Add[name]
		s.command("add", "map", fmt.Sprintf(" %s { %s ; }", name, mapType(m)))
		s.elements("add", name, m.Key, m.Elements.Sorted(Element.Compare), m.elementText)
	}
	for _, name := range delta.Keys(s.d.Sets.Add) {
		set := s.d.Sets.Add[name]
		s.command("add", "set", fmt.Sprintf(" %s { %s ; }", name, setType(set)))
		s.elements("add", name, set.Key, set.Elements.Sorted(Element.Compare), set.elementText)
	}
	for _, name := range delta.Keys(s.d.MapElements) {
		m, e := s.d.Want.Maps[name], s.d.MapElements[name]
		replaceElements(s, name, m.Key, e, m.elementText)
	}
	for _, name := range delta.Keys(s.d.SetElements) {
		set, e := s.d.Want.Sets[name], s.d.SetElements[name]
		replaceElements(s, name, set.Key, e, set.elementText)
	}
	for _, name := range delta.Keys(s.d.Chains.Change) {
		s.command("flush", "chain", " "+name)
		s.rules(s.d.Chains.Change[name])
	}
	for _, name := range delta.Keys(s.d.Recreate) {
		s.command("flush", "chain", " "+name)
		s.command("delete", "chain", " "+name)
		s.chain(s.d.Recreate[name])
	}
	for _, name := range delta.Keys(s.d.Chains.Add) {
		s.chain(s.d.Chains.Add[name])
	}
}

// shrink deletes chains before the maps and sets that their rules reference.
func (s *script) shrink() {
	if s.d.Delete {
		s.command("delete", "table", "")
		return
	}
	for _, name := range delta.Keys(s.d.Chains.Delete) {
		s.command("flush", "chain", " "+name)
		s.command("delete", "chain", " "+name)
	}
	for _, name := range delta.Keys(s.d.MapElements) {
		gone := s.d.MapElements[name].Delete
		s.elements("delete", name, s.d.Have.Maps[name].Key, delta.Sorted(gone, Element.Compare), nil)
	}
	for _, name := range delta.Keys(s.d.SetElements) {
		gone := s.d.SetElements[name].Delete
		s.elements("delete", name, s.d.Have.Sets[name].Key, delta.Sorted(gone, Element.Compare), nil)
	}
	for _, name := range delta.Keys(s.d.Maps.Delete) {
		s.command("delete", "map", " "+name)
	}
	for _, name := range delta.Keys(s.d.Sets.Delete) {
		s.command("delete", "set", " "+name)
	}
}

// replaceElements adds new elements and replaces changed ones. nft has no command to change a
// value, so the old element is deleted and the new one added. They are in one transaction, so that
// a lookup always finds one of them.
func replaceElements[V any](s *script, name string, key []KeyField, d delta.Delta[Element, V],
	text func(Element) string) {
	changed := delta.Sorted(d.Change, Element.Compare)
	s.elements("delete", name, key, changed, nil)
	added := append(delta.Sorted(d.Add, Element.Compare), changed...)
	slices.SortFunc(added, Element.Compare)
	s.elements("add", name, key, added, text)
}

// elements writes one command for all elements. text returns an element with its comment and value;
// nil: the command needs only the keys.
func (s *script) elements(verb, name string, key []KeyField, elements []Element, text func(Element) string) {
	if len(elements) == 0 {
		return
	}
	if text == nil {
		text = func(e Element) string { return ElementText(key, e) }
	}
	fmt.Fprintf(s.b, "%s element %s %s { ", verb, s.table, name)
	for i, e := range elements {
		if i > 0 {
			s.b.WriteString(", ")
		}
		s.b.WriteString(text(e))
	}
	s.b.WriteString(" }\n")
}

func (m *Map) elementText(e Element) string {
	t := m.Elements.At(e)
	return ElementText(m.Key, e) + storedOwner(t.Owner) + " : " + targetText(m, t)
}

func (s *Set) elementText(e Element) string {
	return ElementText(s.Key, e) + storedOwner(s.Elements.At(e))
}

func (s *script) chain(c *Chain) {
	header := strings.TrimPrefix(storedOwner(c.Owner), " ")
	if header != "" {
		header += "; "
	}
	header += hookText(c)
	s.command("add", "chain", fmt.Sprintf(" %s { %s }", c.Name, header))
	s.rules(c)
}

func (s *script) rules(c *Chain) {
	for i := range c.Rules {
		comment, _ := labelText(ruleLabel(&c.Rules[i]))
		s.command("add", "rule", fmt.Sprintf(" %s %s", c.Name,
			strings.TrimPrefix(s.d.Want.RuleText(&c.Rules[i])+comment, " ")))
	}
}

// ApplyTo returns a copy of have with the changes: what is read back after they were applied. The
// copy shares with have the tables, chains, maps and sets that did not change.
func (d Delta) ApplyTo(have State) State {
	out := State{}
	maps.Copy(out, have)
	for f, t := range d.Tables {
		switch {
		case t.Delete:
			delete(out, f)
			continue
		case t.Add || t.Replace || out[f] == nil:
			out[f] = &Table{}
		}
		out[f] = t.applyTo(out[f])
	}
	return out
}

func (d TableDelta) applyTo(have *Table) *Table {
	out := &Table{Unknown: have.Unknown}
	out.Chains = d.Chains.ApplyTo(have.Chains)
	maps.Copy(out.Chains, d.Recreate)
	out.Maps = d.Maps.ApplyTo(have.Maps)
	for name, e := range d.MapElements {
		m := *out.Maps[name]
		m.Elements = e.ApplyToMap(m.Elements)
		out.Maps[name] = &m
	}
	out.Sets = d.Sets.ApplyTo(have.Sets)
	for name, e := range d.SetElements {
		s := *out.Sets[name]
		s.Elements = e.ApplyToMap(s.Elements)
		out.Sets[name] = &s
	}
	return out
}
