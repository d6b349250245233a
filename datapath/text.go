package datapath

import (
	"fmt"
	"slices"
	"strings"
)

// Print writes a State as text, the same for equal States.
func Print(s State) string {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(p.section(s))
	}
	return b.String()
}

// section is the text of a part below its heading.
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

// Parse reads what Print wrote. The error names the part and what it did not know.
func Parse(text string) (s State, err error) {
	sections := map[string]*strings.Builder{}
	var at *strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "### ") {
			at = &strings.Builder{}
			sections[strings.TrimRight(line, "\n")] = at
			continue
		}
		if at == nil {
			return s, fmt.Errorf("line %q stands before the first heading", strings.TrimSpace(line))
		}
		at.WriteString(line)
	}
	for heading, b := range sections {
		i := slices.IndexFunc(parts, func(p part) bool { return p.has(heading) })
		if i < 0 {
			return s, fmt.Errorf("%s: this heading is not known", heading)
		}
		if err := parts[i].parseInto(&s, b.String()); err != nil {
			return s, fmt.Errorf("%s: %w", heading, err)
		}
	}
	return s, nil
}

func (p Part[S, D]) has(heading string) bool { return p.heading == heading }

func (p Part[S, D]) parseInto(s *State, text string) (err error) {
	*p.In(s), err = p.parse(text)
	return err
}
