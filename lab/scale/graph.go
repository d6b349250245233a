package scale

import (
	"fmt"
	"html"
	"math"
	"strings"

	"hairpin/lab"
)

// graph is a picture of some rows of a table.
type graph struct {
	title string
	lines []line
}

// line is a row of the table, and its name in the graph.
type line struct{ row, name string }

func graphs() []graph {
	return []graph{
		{"memory of all daemons of a node at rest, MB",
			[]line{{"node-a: all daemons: memory at rest", "a node"},
				{"node-b: all daemons: memory at rest", "a node for egress addresses"}}},
		{"CPU of all daemons of a node, % of a core",
			[]line{{"node-a: all daemons: CPU in churn", "in churn"}, {"node-a: all daemons: CPU at rest", "at rest"}}},
		{"an endpoint changed, write to answer, ms",
			[]line{{"one endpoint changed: the same, worst", "worst"},
				{"one endpoint changed: API write to the answer on node-a, median", "median"}}},
		{"CPU on each node when another joins, ms",
			[]line{{moreCPU("a node joins", "all"), "all daemons"},
				{moreCPU("a node joins", lab.Controller), "ovn-controller"},
				{moreCPU("a node joins", lab.VSwitchd), "ovs-vswitchd"},
				{moreCPU("a node joins", agentDaemon), "agent"}}},
	}
}

// Sizes of a picture.
const (
	graphWidth, graphHeight = 420, 260
	plotLeft, plotRight     = 56, 150 // beside the plot: numbers, names
	plotTop, plotBottom     = 36, 40
)

const graphStyle = `
svg{--paper:#ffffff;--ink:#1f2328;--faint:#59636e;--line:#d1d9e0;--l0:#0969da;--l1:#bc4c00;--l2:#1a7f37;--l3:#8250df}
@media (prefers-color-scheme:dark){svg{--paper:#0d1117;--ink:#e6edf3;--faint:#9198a1;--line:#3d444d;--l0:#4493f8;--l1:#f0883e;--l2:#3fb950;--l3:#ab7df8}}
text{font:12px ui-sans-serif,system-ui,"DejaVu Sans",sans-serif;fill:var(--faint)}.title{font-size:13px;font-weight:600;fill:var(--ink)}
.paper{fill:var(--paper)}.axis{stroke:var(--line)}polyline{fill:none;stroke-width:2}.end{text-anchor:end}.middle{text-anchor:middle}
.l0{stroke:var(--l0)}.l1{stroke:var(--l1);stroke-dasharray:6 4}.l2{stroke:var(--l2);stroke-dasharray:2 3}.l3{stroke:var(--l3);stroke-dasharray:9 3 2 3}
`

// Graphs draws the most important rows as SVG. The x axis has the sizes, logarithmic; the y axis
// has the values from zero.
func (t *Table) Graphs() string {
	var b strings.Builder
	all := graphs()
	rows := (len(all) + 1) / 2
	fmt.Fprintf(&b,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\">\n<style>%s</style>\n<rect class=\"paper\" "+
			"width=\"100%%\" height=\"100%%\"/>\n",
		2*graphWidth, rows*graphHeight, graphStyle)
	for i, g := range all {
		fmt.Fprintf(&b, "<g transform=\"translate(%d %d)\">\n", i%2*graphWidth, i/2*graphHeight)
		t.draw(&b, g)
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
	return b.String()
}

func (t *Table) draw(b *strings.Builder, g graph) {
	text := func(class string, x, y float64, words string) {
		fmt.Fprintf(b, "<text class=\"%s\" x=\"%.0f\" y=\"%.0f\">%s</text>\n", class, x, y, html.EscapeString(words))
	}
	text("title", plotLeft-40, 20, g.title)
	top := 0.0
	for _, l := range g.lines {
		if r := t.Row(l.row); r != nil {
			for _, v := range r.Values {
				top = max(top, v)
			}
		}
	}
	top = niceTop(top)
	const width, height = graphWidth - plotLeft - plotRight, graphHeight - plotTop - plotBottom
	y := func(v float64) float64 { return plotTop + height*(1-v/top) }
	x := func(i int) float64 {
		if len(t.Sizes) < 2 {
			return plotLeft
		}
		first, last := math.Log(float64(t.Sizes[0])), math.Log(float64(t.Sizes[len(t.Sizes)-1]))
		return plotLeft + width*(math.Log(float64(t.Sizes[i]))-first)/(last-first)
	}
	for _, part := range []float64{0, 0.5, 1} {
		fmt.Fprintf(b, "<line class=\"axis\" x1=\"%d\" x2=\"%d\" y1=\"%.0f\" y2=\"%.0f\"/>\n", plotLeft, plotLeft+width,
			y(part*top), y(part*top))
		text("end", plotLeft-6, y(part*top)+4, number(part*top))
	}
	for i, n := range t.Sizes {
		text("middle", x(i), graphHeight-plotBottom+18, fmt.Sprint(n))
	}
	text("", plotLeft+width+8, graphHeight-plotBottom+18, "nodes")
	last := math.Inf(-1) // position of the name above
	for i, l := range g.lines {
		r := t.Row(l.row)
		if r == nil {
			continue
		}
		points := ""
		for k, v := range r.Values {
			points += fmt.Sprintf("%.0f,%.0f ", x(k), y(v))
		}
		fmt.Fprintf(b, "<polyline class=\"l%d\" points=\"%s\"/>\n", i, strings.TrimSpace(points))
		at := max(last+14, y(r.Values[len(r.Values)-1])+4)
		text("", plotLeft+width+8, at, l.name)
		last = at
	}
}

// niceTop returns the smallest of 1, 2, 5, 10, 20, … that is not less than v.
func niceTop(v float64) float64 {
	for unit := 1.0; ; unit *= 10 {
		for _, m := range []float64{1, 2, 5} {
			if v <= m*unit {
				return m * unit
			}
		}
	}
}
