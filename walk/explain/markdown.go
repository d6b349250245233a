package explain

import (
	"fmt"
	"strings"

	"hairpin/cluster"
	"hairpin/walk/packet"
)

// Markdown returns the walk as a section of a page. heading is the number of # before its title,
// picture the address of a picture to show, or empty.
func (e *Explanation) Markdown(heading int, picture string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s → %s\n\n", strings.Repeat("#", heading), e.Trace.From, e.Title())
	fmt.Fprintf(&b, "**%s**\n\n", e.Sentence())
	fmt.Fprintf(&b, "Why: %s.\n\n", e.Why().Text)
	if picture != "" {
		fmt.Fprintf(&b, "![the packet's path](%s)\n\n", picture)
	}
	if len(e.Endpoints) > 1 {
		fmt.Fprintf(&b, "| endpoint of %s | target | node | state | this packet |\n|---|---|---|---|---|\n", e.Service)
		for _, x := range e.Endpoints {
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", x.Addr, x.Owner, x.Node, x.State, x.Decision())
		}
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "Sent: `%s`\n\n", e.Trace.Sent)
	markdownSteps(&b, e.Trace.Sent, e.Trace.Forward)
	if len(e.Trace.Reply) > 0 {
		fmt.Fprintf(&b, "The reply, `%s`:\n\n", e.replied())
		markdownSteps(&b, e.replied(), e.Trace.Reply)
	}
	for i := range e.Policies {
		d := &e.Policies[i]
		fmt.Fprintf(&b, "- %s\n", d)
		for _, line := range d.Details() {
			fmt.Fprintf(&b, "  - %s\n", line)
		}
	}
	if len(e.Policies) > 0 {
		b.WriteByte('\n')
	}
	if costs := e.costs(); len(costs) > 0 {
		fmt.Fprintf(&b, "%s.\n\n", strings.Join(costs, ". "))
	}
	if len(e.HostConnections) > 0 {
		b.WriteString("```\n")
		e.hostConnections(&b)
		b.WriteString("```\n\n")
	}
	return b.String()
}

// Title returns the destination, for a title: the Service with the address used, or the address.
func (e *Explanation) Title() string {
	if e.Service == "" {
		return e.Destination
	}
	return e.Service + " (" + e.Destination + "/" + e.Trace.Sent.Protocol.String() + ")"
}

func markdownSteps(b *strings.Builder, before packet.Packet, list []packet.Step) {
	for i := range list {
		s := &list[i]
		fmt.Fprintf(b, "%d. `%s`: %s", i+1, s.At(), s.Did)
		if s.Why != (cluster.Owner{}) {
			fmt.Fprintf(b, " _(%s)_", s.Why)
		}
		b.WriteString("\n")
		var code []string
		if s.Rule != "" {
			code = append(code, s.Rule)
		}
		if change := changes(before, s.After); change != "" {
			code = append(code, change)
		}
		if s.Entry != "" {
			code = append(code, "CT "+s.Entry)
		}
		if len(code) > 0 {
			fmt.Fprintf(b, "   ```\n   %s\n   ```\n", strings.Join(code, "\n   "))
		}
		before = s.After
	}
	b.WriteByte('\n')
}
