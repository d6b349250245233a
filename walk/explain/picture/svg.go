// Package picture draws Explanations.
//
// Input: an Explanation. Output: an SVG with the paths of the packet (a line) and of its reply (a
// dashed line) through nodes, bridges, switches and routers. Translations have numbers, which the
// legend explains. The colours follow the reader's light or dark mode.
//
// A picture is made in six steps: newDrawing collects the places that the packet passes (svg.go),
// route gives each line of a path a track or a lane (route.go), place computes the positions of all
// parts (layout.go), untangle reorders tracks and lanes so that paths cross less often
// (untangle.go), number finds the places of numbers (number.go), and svg returns the text
// (write.go).
//
// Invariants: no line, number or label is drawn over another one. Equal Explanations give equal
// pictures.
package picture

import (
	"fmt"
	"html"
	"strings"

	"hairpin/claims"
	"hairpin/walk"
	"hairpin/walk/explain"
)

// SVG returns the picture of an Explanation, for a file.
func SVG(e *explain.Explanation) string { return draw(e, "<style>"+style+"</style>\n") }

// Drawing returns the SVG without styles, for a page that has Style and may forbid inline styles.
func Drawing(e *explain.Explanation) string { return draw(e, "") }

// Style returns the style sheet of Drawing.
func Style() string { return style }

func draw(e *explain.Explanation, style string) string {
	d := newDrawing(e)
	d.route()
	d.place()
	d.untangle()
	d.number()
	return d.svg(style)
}

// side is the part of the picture that a box is in.
type side uint8

const (
	right   side = iota // of a node: pods and most bridges, switches and routers, one below the other
	left                // of a node: tunnels, transit switch, host
	full                // of a node: over all of its width
	outside             // of all nodes
	bar                 // across all nodes
)

// box is something that packets pass.
type box struct {
	label      string
	column     *column // nil outside the nodes
	side       side
	pod        bool
	rank       int // from the top of its node
	row        *row
	x, y, w, h int
	endsWidth  int // that ends of horizontal lines need in the box
}

// visit is one passage of a box.
type visit struct {
	box     *box
	numbers []int // of the translations there
	at      []point
}

// path is the path of the packet or of the reply.
type path struct {
	class   string // in the style sheet: there (the request) or back (the reply)
	visits  []visit
	corners []corner
	lost    bool // it ends before its destination
}

// column is one node.
type column struct {
	name    string
	boxes   map[string]*box
	rows    map[int]*row // by rank
	order   []*box
	pods    []*box
	x, y, w int
	nameX   int

	// The zones for tracks: left is in the left boxes, right in the right ones that no pod is
	// above, gutter between the two, outer beside the right ones, and aside left of the bridges.
	left, gutter, outer, aside, right *zone
	podZones                          []*zone // one below each pod
}

// note is a line of the legend.
type note struct{ class, text string }

type drawing struct {
	e       *explain.Explanation
	nodes   []*column
	network *box // the external network
	tunnel  *box
	outside *box
	outer   *zone // of box outside
	paths   []*path
	legend  []note
	title   []string
	width   int
	height  int

	bottom    int // of the nodes
	legendTop int
}

func newDrawing(e *explain.Explanation) *drawing {
	d := &drawing{e: e, outer: &zone{}}
	d.network = &box{label: "external network", side: bar, rank: rankNetwork, row: &row{bar: true}}
	d.tunnel = &box{label: "Geneve", side: bar, rank: rankTunnel, row: &row{bar: true}}
	v := e.Trace.Verdict
	there := d.follow("there", d.end(e.Trace.From), e.ForwardHops())
	if d.paths = append(d.paths, there); !v.Delivered {
		there.lost = !v.Rejected
	} else {
		there.visit(d, d.end(v.At))
	}
	if reply, _ := e.ReplyHops(); len(reply) > 0 {
		// a refusal starts where the packet was rejected
		back := d.follow("back", there.visits[len(there.visits)-1].box, reply)
		if back.lost = !v.Answered; v.Answered {
			back.visit(d, d.end(e.Trace.From))
		}
		d.paths = append(d.paths, back)
	}
	return d
}

func (d *drawing) column(name string) *column {
	for _, c := range d.nodes {
		if c.name == name {
			return c
		}
	}
	c := &column{name: name, boxes: map[string]*box{}, rows: map[int]*row{}, left: &zone{}, gutter: &zone{},
		outer: &zone{}, aside: &zone{}, right: &zone{}}
	d.nodes = append(d.nodes, c)
	return c
}

// box returns the box of a place of the node.
func (c *column) box(label string, kind explain.Kind) *box {
	b := c.boxes[label]
	if b != nil {
		return b
	}
	b = &box{label: label, column: c}
	b.side, b.rank = position(c, label, kind)
	return c.add(b)
}

func (c *column) add(b *box) *box {
	if c.rows[b.rank] == nil {
		c.rows[b.rank] = &row{}
	}
	b.row = c.rows[b.rank]
	c.boxes[b.label] = b
	c.order = append(c.order, b)
	return b
}

// The ranks of boxes: pods at the top, the gateway bridge at the bottom.
const (
	rankTunnel = iota - 1
	rankPods
	rankService
	rankSwitch
	rankCluster
	rankJoin
	rankGateway
	rankExternal
	rankOther            // and the following: places without a position of their own
	rankBridge  = 1000   // and the following: bridges
	rankNetwork = 100000 // below all
)

// position returns where a place of a node is drawn.
func position(c *column, label string, kind explain.Kind) (side, int) {
	switch {
	case label == claims.TunnelBridge:
		return left, rankPods
	case label == claims.TransitSwitch:
		return left, rankCluster
	case label == claims.LocalSwitch:
		return left, rankJoin
	case label == claims.LocalBridge:
		return left, rankGateway
	case label == "host":
		return left, rankExternal
	case label == claims.ServiceBridge:
		return right, rankService
	case label == c.name:
		return right, rankSwitch
	case label == claims.ClusterRouter:
		return right, rankCluster
	case label == claims.JoinSwitch:
		return right, rankJoin
	case kind == explain.Router && strings.HasPrefix(label, "GR_"):
		return right, rankGateway
	case kind == explain.Switch && strings.HasPrefix(label, "ext_"):
		return right, rankExternal
	case kind == explain.Bridge:
		return full, rankBridge + len(c.order)
	}
	return right, rankOther + len(c.order)
}

// end returns the box of a sender or receiver.
func (d *drawing) end(p walk.Point) *box {
	switch {
	case p.Node == "":
		if d.outside == nil {
			d.outside = &box{label: "outside", side: outside, row: &row{}}
		}
		return d.outside
	case p.Pod.Name == "":
		return d.column(p.Node).box("host", explain.Host)
	}
	c := d.column(p.Node)
	label := p.Pod.Namespace + "/" + p.Pod.Name
	b := c.boxes[label]
	if b == nil {
		b = c.add(&box{label: label, column: c, pod: true, rank: rankPods})
		c.pods, c.podZones = append(c.pods, b), append(c.podZones, &zone{})
	}
	return b
}

// visit adds a visit of a box, and one of the external network if there is no other connection.
func (w *path) visit(d *drawing, b *box) *visit {
	last := w.visits[len(w.visits)-1].box
	if last == b {
		return &w.visits[len(w.visits)-1]
	}
	if last.column != b.column && last.side != bar && b.side != bar {
		w.visits = append(w.visits, visit{box: d.network})
	}
	w.visits = append(w.visits, visit{box: b})
	return &w.visits[len(w.visits)-1]
}

// follow converts hops to visits.
func (d *drawing) follow(class string, from *box, hops []explain.Hop) *path {
	w := &path{class: class, visits: []visit{{box: from}}}
	for i := range hops {
		h := &hops[i]
		v := w.visit(d, d.boxOf(h))
		if h.Change != "" {
			d.legend = append(d.legend, note{class, h.At() + ": " + translation(h.Did, h.Change)})
			v.numbers = append(v.numbers, len(d.legend))
		}
	}
	return w
}

// translation returns the part of a step's effect that describes the change of addresses.
func translation(did, change string) string {
	did, _, _ = strings.Cut(did, "; on to ")
	if !strings.Contains(did, "becomes") {
		return change
	}
	return did
}

func (d *drawing) boxOf(h *explain.Hop) *box {
	p := h.Place
	switch p.Kind {
	case explain.Host:
		return d.column(h.Node).box("host", p.Kind)
	case explain.Tunnel:
		return d.tunnel
	case explain.Unknown:
		return d.column(h.Node).box(h.Stage, p.Kind)
	}
	return d.column(h.Node).box(p.Name, p.Kind)
}

func (d *drawing) svg(style string) string {
	var b strings.Builder
	fmt.Fprintf(&b,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\">\n",
		d.width, d.height, d.width, d.height)
	fmt.Fprintf(&b, "<title>%s</title>\n%s", html.EscapeString(d.name()), style)
	b.WriteString(markers)
	fmt.Fprintf(&b, "<rect class=\"paper\" width=\"%d\" height=\"%d\"/>\n", d.width, d.height)
	for i, line := range d.title {
		text(&b, "title", margin, 26+i*titleHeight, line)
	}
	d.writeNodes(&b)
	for _, w := range d.paths {
		w.writeLine(&b)
	}
	for _, w := range d.paths {
		w.writeNumbers(&b)
	}
	d.writeLabels(&b)
	d.writeLegend(&b)
	b.WriteString("</svg>\n")
	return b.String()
}

// name is the title of the picture.
func (d *drawing) name() string { return d.e.Trace.From.String() + " → " + d.e.Title() }
