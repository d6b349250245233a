package picture

import (
	"maps"
	"slices"
)

// Measures of the drawing, in pixels.
const (
	margin      = 16
	nodeGap     = 24
	inset       = 14 // from the side of a node to its boxes
	head        = 30 // the name of a node
	boxHeight   = 30 // of a box in which no path turns
	podHeight   = 42
	rowGap      = 22
	apart       = 20 // between tracks, lanes and numbers
	barApart    = 7  // between lanes in a bar
	firstLane   = 28 // from the top of a box, below its label
	lastLane    = 14 // from the last lane to the bottom
	firstTrack  = 14 // from a label, or the side of a box
	endSpace    = 16 // between the side of a box and an end of a path
	lineHeight  = 18
	titleHeight = 20
	numberSpace = 22 // of the legend, for the number
	minWidth    = 760
	minRight    = 190
	radius      = 9 // of a number's circle
)

// place sets the positions of all boxes, zones and rows.
func (d *drawing) place() {
	d.width = minWidth
	for range 2 { // twice: the lines of the title depend on the width of the first round
		d.title = wrap(d.name(), d.width-2*margin, titleSize)
		d.down()
		d.across()
	}
	d.legendTop = d.bottom + 34
	if len(d.network.row.lanes) > 0 {
		d.legendTop = d.network.y + d.network.h + 46
	}
	lines := len(d.verdict()) + len(d.decisions())
	for i := range d.legend {
		lines += len(d.lines(i))
	}
	d.height = d.legendTop + lines*lineHeight + 20
}

// down sets the vertical positions.
func (d *drawing) down() {
	y := 20 + len(d.title)*titleHeight
	if len(d.tunnel.row.lanes) > 0 {
		y = d.tunnel.row.at(y+14, 0) + 12
	}
	for _, c := range d.nodes {
		c.y = y
	}
	top := y
	y += head
	ranks := map[int][]*row{}
	for _, c := range d.nodes {
		for rank, r := range c.rows {
			ranks[rank] = append(ranks[rank], r)
		}
	}
	for _, rank := range slices.Sorted(maps.Keys(ranks)) {
		height := boxHeight
		if rank == rankPods {
			height = podHeight
		}
		for _, r := range ranks[rank] { // once for the height of each, once for that of all
			height = max(height, r.at(y, 0)-y)
		}
		for _, r := range ranks[rank] {
			r.at(y, height)
		}
		y += height + rowGap
	}
	d.bottom = y - rowGap + inset
	if o := d.outside; o != nil {
		d.bottom = max(d.bottom, top+o.row.at(0, 2*boxHeight))
		o.row.at(d.bottom-o.row.height, 2*boxHeight)
	}
	d.network.row.at(d.bottom+24, 0)
	for _, b := range d.boxes() {
		b.y, b.h = b.row.top, b.row.height
	}
}

// boxes returns all boxes and bars.
func (d *drawing) boxes() []*box {
	all := []*box{d.network, d.tunnel}
	if d.outside != nil {
		all = append(all, d.outside)
	}
	for _, c := range d.nodes {
		all = append(all, c.order...)
	}
	return all
}

// at sets the top and the height of a row, and returns its bottom.
func (r *row) at(top, least int) int {
	n := len(r.lanes)
	switch r.top = top; {
	case r.bar:
		r.height = 2*barApart + max(n-1, 0)*barApart
	case n == 0:
		r.height = boxHeight
	default:
		r.height = firstLane + (n-1)*apart + lastLane
	}
	r.height = max(r.height+r.extra, least)
	return r.top + r.height
}

func (l *lane) y() int {
	if l.row.bar {
		return l.row.top + barApart + l.index*barApart
	}
	return l.row.top + l.row.height - lastLane - l.row.extra/2 - (len(l.row.lanes)-1-l.index)*apart
}

func (t *track) x() int { return t.zone.x + t.index*apart }

// span returns the width of the tracks from the first to the last.
func (z *zone) span() int { return max(len(z.tracks)-1, 0) * apart }

// across sets the horizontal positions.
func (d *drawing) across() {
	x := margin
	if o := d.outside; o != nil {
		o.x, d.outer.x = x, x+2*firstTrack
		o.w = max(4*firstTrack+d.outer.span(), o.labelWidth(), o.endsWidth)
		x += o.w + nodeGap
	}
	for _, c := range d.nodes {
		c.across(x, len(d.tunnel.row.lanes) > 0)
		x += c.w + nodeGap
	}
	d.width = max(x-nodeGap+margin, minWidth)
	for _, b := range []*box{d.network, d.tunnel} {
		b.x, b.w = margin, x-nodeGap-margin
	}
}

// labelWidth returns the width that a box needs for its label.
func (b *box) labelWidth() int { return 2*labelInset + textWidth(short(b.label), labelSize) }

// across sets the horizontal positions in a node. Tracks are beside the labels of all boxes that
// they cross.
func (c *column) across(x int, tunnels bool) {
	var leftLabel, rightLabel, leftWidth, ends int
	hasLeft := len(c.gutter.tracks) > 0
	asideWidth := 0
	if len(c.aside.tracks) > 0 {
		asideWidth = firstTrack + c.aside.span() + firstTrack
	}
	for _, b := range c.order {
		switch {
		case b.side == left:
			hasLeft = true
			leftLabel, leftWidth = max(leftLabel, b.labelWidth()), max(leftWidth, b.endsWidth)
		case b.side == right && !b.pod:
			rightLabel, ends = max(rightLabel, b.labelWidth()), max(ends, b.endsWidth)
		}
	}
	for _, b := range c.order {
		if b.side == full && hasLeft {
			leftLabel = max(leftLabel, asideWidth+b.labelWidth())
		} else if b.side == full {
			rightLabel = max(rightLabel, b.labelWidth())
		}
	}
	start, edge := x+inset, x+inset // of the left boxes, of the right ones
	c.aside.x = start + firstTrack
	if hasLeft {
		c.left.x = start + leftLabel + firstTrack
		leftWidth = max(leftWidth, leftLabel, c.left.x-start+c.left.span()+firstTrack)
		c.gutter.x = start + leftWidth + firstTrack
		edge = c.gutter.x + c.gutter.span() + firstTrack
	}
	at := edge + max(rightLabel, ends) + firstTrack // of the first track
	pod := edge
	for i, p := range c.pods {
		z := c.podZones[i]
		z.x = max(at, pod+firstTrack)
		p.x, p.w = pod, max(z.x+z.span()+firstTrack-pod, p.labelWidth(), p.endsWidth)
		pod += p.w + 8
		at = pod + firstTrack
	}
	c.right.x = at
	end := max(at+c.right.span()+firstTrack, edge+minRight)
	if len(c.pods) > 0 && len(c.right.tracks) == 0 {
		end = max(pod-8, edge+minRight)
	}
	if n := len(c.pods); n > 0 { // the last pod is as wide as the space that is left
		c.pods[n-1].w = end - c.pods[n-1].x
	}
	for _, b := range c.order {
		switch {
		case b.side == left:
			b.x, b.w = start, leftWidth
		case b.side == full:
			b.x, b.w = start+asideWidth, end-start-asideWidth
		case !b.pod:
			b.x, b.w = edge, end-edge
		}
	}
	c.outer.x = end + firstTrack
	if len(c.outer.tracks) > 0 {
		end = c.outer.x + c.outer.span()
	}
	c.x, c.nameX = x, start
	name := textWidth(short(c.name), labelSize)
	if hasLeft && tunnels && name > leftLabel { // tracks from the left boxes lead upwards
		c.nameX = edge
	}
	c.w = max(end+inset, c.nameX+name+inset) - x
}
