package picture

import (
	"fmt"
	"html"
	"strconv"
	"strings"
)

// style holds the light and the dark mode. Paths differ in colour and in dashes, so that colour is
// not needed to distinguish them.
const style = `
svg{--paper:#ffffff;--ink:#1f2328;--faint:#59636e;--line:#8c959f;--node:#f6f8fa;--box:#ffffff;--there:#0969da;--back:#bc4c00;--bad:#cf222e}
@media (prefers-color-scheme:dark){svg{--paper:#0d1117;--ink:#e6edf3;--faint:#9198a1;--line:#656c76;--node:#151b23;--box:#0d1117;--there:#4493f8;--back:#f0883e;--bad:#ff7b72}}
text{font:13px ui-sans-serif,system-ui,"DejaVu Sans",sans-serif;fill:var(--ink)}
.title{font-size:15px;font-weight:600}.faint{fill:var(--faint);font-size:12px}.verdict{font-weight:600}.label{paint-order:stroke;stroke:var(--box);stroke-width:4px;stroke-linejoin:round}
.paper{fill:var(--paper)}.node{fill:var(--node);stroke:var(--line)}.box{fill:var(--box);stroke:var(--line)}.bar{fill:var(--line);opacity:.35}
.there{fill:none;stroke:var(--there);stroke-width:2.5;stroke-linejoin:round}.back{fill:none;stroke:var(--back);stroke-width:2.5;stroke-linejoin:round;stroke-dasharray:7 5}
.t-there,.b-there{fill:var(--there)}.t-back,.b-back{fill:var(--back)}.number{fill:var(--paper);font-size:11px;font-weight:700;text-anchor:middle}
.lost{stroke:var(--bad);stroke-width:4}`

const markers = `<defs>
<marker id="there" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="5" markerHeight="5" orient="auto-start-reverse"><path class="t-there" d="M0 0L8 4L0 8z"/></marker>
<marker id="back" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="5" markerHeight="5" orient="auto-start-reverse"><path class="t-back" d="M0 0L8 4L0 8z"/></marker>
</defs>
`

func text(b *strings.Builder, class string, x, y int, words string) {
	fmt.Fprintf(b, "<text class=\"%s\" x=\"%d\" y=\"%d\">%s</text>\n", class, x, y, html.EscapeString(words))
}

func (d *drawing) writeNodes(b *strings.Builder) {
	for _, c := range d.nodes {
		fmt.Fprintf(b, "<rect class=\"node\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"8\"/>\n", c.x, c.y, c.w,
			d.bottom-c.y)
	}
	for _, x := range d.boxes() {
		class, round := "box", 5
		if x.side == bar {
			class, round = "bar", 7
			if len(x.row.lanes) == 0 {
				continue
			}
		}
		fmt.Fprintf(b, "<rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"%d\"/>\n", class, x.x, x.y,
			x.w, x.h, round)
	}
}

// writeLabels writes the names of nodes and boxes.
func (d *drawing) writeLabels(b *strings.Builder) {
	label := func(class string, x, y int, name string) {
		if s := short(name); s != name {
			fmt.Fprintf(b, "<text class=\"%s\" x=\"%d\" y=\"%d\"><title>%s</title>%s</text>\n", class, x, y,
				html.EscapeString(name), html.EscapeString(s))
			return
		}
		text(b, class, x, y, name)
	}
	for _, c := range d.nodes {
		label("faint", c.nameX, c.y+19, c.name)
	}
	for _, x := range d.boxes() {
		if x.side != bar || len(x.row.lanes) > 0 {
			label("faint", x.x+labelInset, x.labelY(), x.label)
		}
	}
}

// labelY returns the baseline of the label: in a box that paths only cross, in the middle; above or
// below a bar, on the side without nodes.
func (b *box) labelY() int {
	switch {
	case b.rank == rankTunnel:
		return b.y - 6
	case b.side == bar:
		return b.y + b.h + 16
	case b.h == boxHeight:
		return b.y + b.h/2 + 4
	}
	return b.y + 16
}

// writeLine writes the line of a path.
func (w *path) writeLine(b *strings.Builder) {
	list := w.points()
	var lines strings.Builder
	for i, p := range list {
		fmt.Fprintf(&lines, "%c%d %d", "ML"[min(i, 1)], p.x, p.y)
	}
	fmt.Fprintf(b, "<circle class=\"b-%s\" cx=\"%d\" cy=\"%d\" r=\"4\"/>", w.class, list[0].x, list[0].y)
	fmt.Fprintf(b, "<path class=\"%s\" d=\"%s\"", w.class, lines.String())
	if end := list[len(list)-1]; w.lost {
		fmt.Fprintf(b, "/>\n<path class=\"lost\" d=\"M%d %dl14 14m0 -14l-14 14\"/>\n", end.x-7, end.y-7)
		return
	}
	fmt.Fprintf(b, " marker-end=\"url(#%s)\"/>\n", w.class)
}

// writeNumbers writes the numbers of a path's translations.
func (w *path) writeNumbers(b *strings.Builder) {
	for i := range w.visits {
		v := &w.visits[i]
		for k, p := range v.at {
			fmt.Fprintf(b,
				"<circle class=\"b-%s\" cx=\"%d\" cy=\"%d\" r=\"%d\"/><text class=\"number\" x=\"%d\" "+
					"y=\"%d\">%d</text>\n", w.class, p.x, p.y, radius, p.x, p.y+4, v.numbers[k])
		}
	}
}

func (d *drawing) writeLegend(b *strings.Builder) {
	y := d.legendTop
	text(b, "t-there", margin, y, "— request")
	text(b, "t-back", margin+100, y, "- - reply")
	for i, l := range d.legend {
		for k, words := range d.lines(i) {
			if y += lineHeight; k == 0 {
				text(b, "t-"+l.class, margin, y, strconv.Itoa(i+1))
			}
			text(b, "faint", margin+numberSpace, y, words)
		}
	}
	for _, l := range d.decisions() {
		y += lineHeight
		text(b, "faint", margin, y, l)
	}
	y += 6
	for _, l := range d.verdict() {
		y += lineHeight
		text(b, "verdict", margin, y, l)
	}
}

// lines returns the lines of an entry of the legend.
func (d *drawing) lines(i int) []string {
	return wrap(d.legend[i].text, d.width-2*margin-numberSpace, labelSize)
}

// verdict returns the lines of the verdict.
func (d *drawing) verdict() []string { return wrap(d.e.Sentence(), d.width-2*margin, verdictSize) }

// decisions returns the lines of the decisions of policies.
func (d *drawing) decisions() (lines []string) {
	for i := range d.e.Policies {
		lines = append(lines, wrap(d.e.Policies[i].String(), d.width-2*margin, labelSize)...)
	}
	return lines
}
