package explain

import (
	"fmt"
	"html"
	"slices"
	"strings"

	"hairpin/walk"
)

// SVG draws the paths of the packet (a line) and of the reply (a dashed line) through nodes,
// bridges, switches and routers. Translations have numbers, which the legend explains. The colours
// follow the reader's light or dark mode.
func (e *Explanation) SVG() string { return e.draw("<style>" + style + "</style>\n") }

// Drawing returns the SVG without styles, for a page that has Style and may forbid inline styles.
func (e *Explanation) Drawing() string { return e.draw("") }

// Style returns the style sheet of Drawing.
func Style() string { return style }

func (e *Explanation) draw(style string) string {
	d := newDrawing(e)
	d.place()
	d.route() // the positions decide which paths turn where,
	d.place() // and the turns decide the heights
	d.route()
	return d.text(style)
}

// Measures of the drawing, in pixels.
const (
	nodeWidth  = 470
	nodeGap    = 24
	boxHeight  = 30
	rowGap     = 26
	leftLane   = 130 // width of the left lane of a node: host, transit switch
	margin     = 16
	lineHeight = 18
	firstRow   = 104 // top of the first row of boxes
	letter     = 8   // maximum width of a letter of the verdict
	small      = 7   // maximum width of a letter of the legend
	labelWidth = 132 // of a box in the right lane; paths pass beside the label
	firstLane  = 28  // from the top of a box to the first path that turns in it
	laneGap    = 20
	lastLane   = 14 // from the last of them to its bottom
)

// box is something that packets pass, or a bar that spans several nodes.
type box struct {
	label      string
	x, y, w, h int
	label0     int // width of the label: vertical paths are beside it
	turns      int // number of paths that turn in the box
	bar, used  bool
}

// visit is one passage of a box.
type visit struct {
	box    *box
	badges []int // numbers of the translations there
	lane   int   // lane of the turn in the box, counted from below
}

// way is the path of the packet or of the reply.
type way struct {
	class  string
	visits []visit
	runs   []*run // between visits
	lost   bool   // it ends before its destination
}

// column is the column of one node.
type column struct {
	name  string
	boxes map[string]*box
	order []*box
	pods  []*box
}

// note is a line of the legend.
type note struct{ class, text string }

type drawing struct {
	e       *Explanation
	nodes   []*column
	wire    *box
	tunnel  *box
	outside *box
	ways    []*way
	legend  []note
	width   int
	height  int
}

func newDrawing(e *Explanation) *drawing {
	d := &drawing{e: e, wire: &box{label: "external network", bar: true}, tunnel: &box{label: "Geneve", bar: true}}
	v := e.Trace.Verdict
	there := d.follow("there", e.Trace.From, e.Trace.Sent, e.Trace.Forward)
	if d.ways = append(d.ways, there); !v.Delivered {
		there.lost = !v.Rejected
	} else {
		d.arrive(there, v.At)
	}
	if len(e.Trace.Reply) > 0 {
		from := v.At
		if v.Rejected { // the refusal starts where the packet was rejected
			from = walk.Point{Node: e.Trace.Forward[len(e.Trace.Forward)-1].Node}
		}
		back := d.follow("back", from, e.replied(), e.Trace.Reply)
		if v.Rejected {
			back.visits[0] = there.visits[len(there.visits)-1]
			back.visits[0].badges = nil
		}
		if back.lost = !v.Answered; v.Answered {
			d.arrive(back, e.Trace.From)
		}
		d.ways = append(d.ways, back)
	}
	return d
}

func (d *drawing) column(name string) *column {
	for _, c := range d.nodes {
		if c.name == name {
			return c
		}
	}
	c := &column{name: name, boxes: map[string]*box{}}
	d.nodes = append(d.nodes, c)
	return c
}

func (c *column) box(label string) *box {
	b := c.boxes[label]
	if b == nil {
		b = &box{label: label}
		c.boxes[label] = b
		c.order = append(c.order, b)
	}
	return b
}

// end returns the box of a sender or receiver.
func (d *drawing) end(p walk.Point) *box {
	switch {
	case p.Node == "":
		if d.outside == nil {
			d.outside = &box{label: "outside"}
		}
		return d.outside
	case p.Pod.Name == "":
		return d.column(p.Node).box("host")
	}
	c := d.column(p.Node)
	label := p.Pod.Namespace + "/" + p.Pod.Name
	known := c.boxes[label] != nil
	b := c.box(label)
	if !known {
		c.pods = append(c.pods, b)
	}
	return b
}

func (d *drawing) arrive(w *way, at walk.Point) {
	goal := d.end(at)
	if last := w.visits[len(w.visits)-1].box; last == goal {
		return
	}
	if goal == d.outside {
		w.visits = append(w.visits, visit{box: d.wire})
	}
	w.visits = append(w.visits, visit{box: goal})
}

// follow converts steps to visits.
func (d *drawing) follow(class string, from walk.Point, before walk.Packet, list []walk.Step) *way {
	w := &way{class: class, visits: []visit{{box: d.end(from)}}}
	node := from.Node
	for i := range list {
		s := &list[i]
		b := d.boxOf(s)
		last := &w.visits[len(w.visits)-1]
		if s.Node != node && last.box != d.tunnel {
			w.visits = append(w.visits, visit{box: d.wire})
			last = &w.visits[len(w.visits)-1]
		}
		node = s.Node
		if last.box != b {
			w.visits = append(w.visits, visit{box: b})
			last = &w.visits[len(w.visits)-1]
		}
		if change := changes(before, s.After); change != "" {
			d.legend = append(d.legend, note{class, at(s) + ": " + translation(s.Did, change)})
			last.badges = append(last.badges, len(d.legend))
		}
		before = s.After
	}
	return w
}

// translation returns the part of a step's effect that describes the change of addresses.
func translation(did, change string) string {
	did, _, _ = strings.Cut(did, "; on to table")
	if !strings.Contains(did, "becomes") {
		return change
	}
	return did
}

func (d *drawing) boxOf(s *walk.Step) *box {
	p := PlaceOf(s.Stage)
	switch p.Kind {
	case Host:
		return d.column(s.Node).box("host")
	case Tunnel:
		return d.tunnel
	case Unknown:
		return d.column(s.Node).box(s.Stage)
	}
	return d.column(s.Node).box(p.Name)
}

// The rows of a node: pods at the top, the bridge at the bottom.
const (
	rowPods = iota
	rowSwitch
	rowCluster
	rowJoin
	rowGateway
	rowExternal
	rowBridge
	rowLeft // in the left lane
)

func row(label, node string) int {
	switch {
	case label == node:
		return rowSwitch
	case label == "ovn_cluster_router":
		return rowCluster
	case label == "join":
		return rowJoin
	case strings.HasPrefix(label, "GR_"):
		return rowGateway
	case strings.HasPrefix(label, "ext_"):
		return rowExternal
	case label == "transit_switch" || label == "host":
		return rowLeft
	}
	return rowBridge
}

// top returns the top of the first row of boxes: below the tunnels, if there are any.
func (d *drawing) top() int {
	if d.tunnel.used {
		return firstRow
	}
	return firstRow - 28
}

// tops returns the top of each row. An empty row takes no space; other rows are as high as their
// turns require.
func (d *drawing) tops() (top [rowLeft]int) {
	var height [rowLeft + 1]int
	for _, c := range d.nodes {
		for _, b := range c.order {
			r := row(b.label, c.name)
			height[r] = max(height[r], b.needs())
		}
		if len(c.pods) > 0 {
			height[rowPods] = boxHeight
		}
		// The left lane needs space beside the rows: the transit switch beside the cluster router,
		// the host below.
		if b := c.boxes["transit_switch"]; b != nil {
			height[rowCluster] = max(height[rowCluster], b.needs())
		}
		if c.boxes["host"] != nil {
			height[rowGateway], height[rowExternal] = max(height[rowGateway], boxHeight),
				max(height[rowExternal], boxHeight)
		}
	}
	y := d.top()
	for i := range top {
		top[i] = y
		if height[i] > 0 {
			y += height[i] + rowGap
		}
	}
	return top
}

// needs returns the height that a box needs for its turns.
func (b *box) needs() int {
	if b.turns == 0 {
		return boxHeight
	}
	return firstLane + (b.turns-1)*laneGap + lastLane
}

// place sets the positions of all boxes.
func (d *drawing) place() {
	x, top := margin, d.tops()
	if d.outside != nil {
		d.outside.w, d.outside.h = 90, 2*boxHeight
		d.outside.x = x
		x += d.outside.w + nodeGap
	}
	for _, c := range d.nodes {
		c.place(x, top)
		x += nodeWidth + nodeGap
	}
	d.width = max(x-nodeGap+margin, 760)
	below := -rowGap // if there is no bridge
	for _, c := range d.nodes {
		for _, b := range c.order {
			if row(b.label, c.name) == rowBridge {
				below = max(below, b.h)
			}
		}
	}
	d.wire.x, d.wire.y, d.wire.w = margin, top[rowBridge]+below+44, d.width-2*margin
	if !d.wire.used {
		d.wire.y -= 8
	}
	d.tunnel.x, d.tunnel.y, d.tunnel.w = margin, 50, d.width-2*margin
	if d.outside != nil {
		d.outside.y = d.wire.y - d.outside.h - 24
	}
	lines := len(wrap(d.e.Sentence(), d.width/letter)) + len(d.decisions())
	for _, n := range d.legend {
		lines += len(wrap(n.text, d.width/small))
	}
	d.height = d.wire.y + 44 + (lines+1)*lineHeight
}

// place sets the positions of a node's boxes.
func (c *column) place(x int, top [rowLeft]int) {
	right := x + leftLane + 34
	width := nodeWidth - leftLane - 48
	for i, b := range c.pods {
		b.w, b.h = (width-8*(len(c.pods)-1))/len(c.pods), boxHeight+12
		b.x, b.y = right+i*(b.w+8), top[rowPods]-12
	}
	for _, b := range c.order {
		if slices.Contains(c.pods, b) {
			continue
		}
		b.h = b.needs()
		switch r := row(b.label, c.name); {
		case b.label == "host":
			b.x, b.y, b.w, b.label0 = x+14, top[rowGateway], leftLane, 36
			b.h = top[rowBridge] - rowGap - b.y
		case r == rowLeft:
			b.x, b.y, b.w, b.label0 = x+14, top[rowCluster], leftLane, 92
		case r == rowBridge:
			b.x, b.y, b.w, b.label0 = x+14, top[r], nodeWidth-28, 44
		default:
			b.x, b.y, b.w, b.label0 = right, top[r], width, labelWidth
		}
	}
}

// wrap splits a text into lines.
func wrap(text string, length int) []string {
	var out []string
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > length {
			out = append(out, line)
			line = ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	return append(out, line)
}

func (d *drawing) text(style string) string {
	var b strings.Builder
	fmt.Fprintf(&b,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\">\n",
		d.width, d.height, d.width, d.height)
	title := d.e.Trace.From.String() + " → " + d.e.title()
	fmt.Fprintf(&b, "<title>%s</title>\n%s", html.EscapeString(title), style)
	b.WriteString(markers)
	fmt.Fprintf(&b, "<rect class=\"paper\" width=\"%d\" height=\"%d\"/>\n", d.width, d.height)
	text(&b, "title", margin, 26, title)
	d.nodesTo(&b)
	for _, w := range d.ways {
		d.wayTo(&b, w)
	}
	d.labelsTo(&b) // over the paths
	d.legendTo(&b)
	b.WriteString("</svg>\n")
	return b.String()
}
