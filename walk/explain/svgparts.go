package explain

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
.paper{fill:var(--paper)}.node{fill:var(--node);stroke:var(--line)}.box{fill:var(--box);stroke:var(--line)}.bar{stroke:var(--line);stroke-width:14;stroke-linecap:round;opacity:.35}
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

func (d *drawing) nodesTo(b *strings.Builder) {
	x := margin
	if d.outside != nil {
		x += d.outside.w + nodeGap
	}
	for _, c := range d.nodes {
		top := d.top() - 34
		fmt.Fprintf(b, "<rect class=\"node\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"8\"/>\n", x, top,
			nodeWidth, d.wire.y-top-24)
		text(b, "faint", x+10, top+18, c.name)
		for _, x := range c.order {
			boxTo(b, x)
		}
		x += nodeWidth + nodeGap
	}
	if d.outside != nil {
		boxTo(b, d.outside)
	}
	for _, bar := range []*box{d.wire, d.tunnel} {
		if bar.used {
			fmt.Fprintf(b, "<line class=\"bar\" x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\"/>\n", bar.x, bar.y, bar.x+bar.w,
				bar.y)
			text(b, "faint", bar.x+bar.w-50, bar.y-10, bar.label)
		}
	}
}

func boxTo(b *strings.Builder, x *box) {
	fmt.Fprintf(b, "<rect class=\"box\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"5\"/>\n", x.x, x.y, x.w, x.h)
}

func (d *drawing) labelsTo(b *strings.Builder) {
	var all []*box
	for _, c := range d.nodes {
		all = append(all, c.order...)
	}
	if d.outside != nil {
		all = append(all, d.outside)
	}
	for _, x := range all {
		y := x.y + 16
		if x.h == boxHeight {
			y = x.y + x.h/2 + 4
		}
		text(b, "faint label", x.x+7, y, x.label)
	}
}

func (d *drawing) wayTo(b *strings.Builder, w *way) {
	list := w.corners()
	var path strings.Builder
	for i, p := range list {
		fmt.Fprintf(&path, "%c%d %d", "ML"[min(i, 1)], p.x, p.y)
	}
	fmt.Fprintf(b, "<circle class=\"b-%s\" cx=\"%d\" cy=\"%d\" r=\"4\"/>", w.class, list[0].x, list[0].y)
	fmt.Fprintf(b, "<path class=\"%s\" d=\"%s\" marker-end=\"url(#%s)\"/>\n", w.class, path.String(), w.class)
	for i := range w.visits {
		v := &w.visits[i]
		x, y := w.middle(i)
		x -= 9 * (len(v.badges) - 1)
		for k, n := range v.badges {
			x := x + 18*k
			fmt.Fprintf(b,
				"<circle class=\"b-%s\" cx=\"%d\" cy=\"%d\" r=\"9\"/><text class=\"number\" x=\"%d\" "+
					"y=\"%d\">%d</text>\n", w.class, x, y, x, y+4, n)
		}
	}
	if end := list[len(list)-1]; w.lost {
		fmt.Fprintf(b, "<path class=\"lost\" d=\"M%d %dl14 14m0 -14l-14 14\"/>\n", end.x-7, end.y-7)
	}
}

func (d *drawing) legendTo(b *strings.Builder) {
	y := d.wire.y + 34
	text(b, "t-there", margin, y, "— there")
	text(b, "t-back", margin+80, y, "- - back")
	for i, l := range d.legend {
		y += lineHeight
		text(b, "t-"+l.class, margin, y, strconv.Itoa(i+1))
		for k, words := range wrap(l.text, d.width/small) {
			y += lineHeight * min(k, 1)
			text(b, "faint", margin+22, y, words)
		}
	}
	for _, l := range d.decisions() {
		y += lineHeight
		text(b, "faint", margin, y, l)
	}
	y += 6
	for _, l := range wrap(d.e.Sentence(), d.width/letter) {
		y += lineHeight
		text(b, "verdict", margin, y, l)
	}
}

// decisions returns the lines of the decisions of policies.
func (d *drawing) decisions() (lines []string) {
	for i := range d.e.Policies {
		lines = append(lines, wrap(d.e.Policies[i].String(), d.width/small)...)
	}
	return lines
}
