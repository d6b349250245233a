package datapath

import (
	"fmt"
	"slices"
	"strings"

	"hairpin/cluster"
)

// Filter selects lines of the text of a State.
type Filter struct {
	Systems []string      // empty = all
	Owner   cluster.Owner // only what is planned for this object; zero = for all
}

// ParseFilter returns the Filter of some of Systems and of an object, KIND/NAMESPACE/NAME or
// KIND/NAME. Both may be empty.
func ParseFilter(systems []string, object string) (Filter, error) {
	f := Filter{Systems: systems, Owner: cluster.ParseOwner(object)}
	for _, name := range systems {
		if !slices.Contains(Systems(), name) {
			return f, fmt.Errorf("system: %q is none of %s", name, strings.Join(Systems(), ", "))
		}
	}
	if object != "" && f.Owner == (cluster.Owner{}) {
		return f, fmt.Errorf("object: %q is not KIND/NAMESPACE/NAME or KIND/NAME", object)
	}
	return f, nil
}

// Systems returns the names of a State's systems, in the order of its text.
func Systems() (names []string) {
	for _, p := range parts {
		names = append(names, p.system())
	}
	return names
}

// Print writes a State as text. Equal States give equal text.
func Print(s State) string { return Filter{}.Print(s) }

// Print writes the selected lines of a State as text. With an Owner, a line is below its system's
// heading and, for Open vSwitch, its bridge's.
func (f Filter) Print(s State) string {
	var b strings.Builder
	for _, p := range parts {
		if f.selects(p) {
			b.WriteString(f.owned(p.section(s)))
		}
	}
	return b.String()
}

func (f Filter) selects(p part) bool {
	return len(f.Systems) == 0 || slices.Contains(f.Systems, p.system())
}

// owned returns the lines of the Owner, each below its headings.
func (f Filter) owned(section string) string {
	if f.Owner == (cluster.Owner{}) {
		return section
	}
	var b strings.Builder
	heading, bridge := "", ""
	for line := range strings.Lines(section) {
		switch {
		case strings.HasPrefix(line, "### "):
			heading = line
		case strings.HasPrefix(line, "bridge "):
			bridge = line
		case f.owns(line):
			b.WriteString(heading + bridge + line)
			heading, bridge = "", ""
		}
	}
	return b.String()
}

// owns reports whether a line is planned for the Owner.
func (f Filter) owns(line string) bool {
	if f.Owner == (cluster.Owner{}) {
		return true
	}
	owner := f.Owner.String()
	return strings.HasSuffix(strings.TrimSuffix(line, "\n"), " # "+owner) ||
		strings.Contains(line, `comment "`+owner+`"`) || strings.Contains(line, `comment "`+owner+`: `)
}

// section returns the text of a part with its heading.
func (p Part[S, D]) section(s State) string {
	text := p.print(*p.In(&s))
	switch {
	case text == "" && p.brief:
		return ""
	case text != "" && !strings.HasSuffix(text, "\n"):
		text += "\n"
	}
	return p.heading + "\n" + text
}

func (p Part[S, D]) system() string { return p.System }
