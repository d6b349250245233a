package datapath

import "strings"

// Print writes a State as text. Equal States give equal text.
func Print(s State) string {
	var b strings.Builder
	for _, p := range parts {
		b.WriteString(p.section(s))
	}
	return b.String()
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
