package picture

import "slices"

// Paths consist of vertical lines, each on a track of its own, and horizontal lines, each on a lane
// of its own. So no line is drawn over another one, and labels have no tracks and lanes.

// zone is a strip of the picture in which tracks are side by side.
type zone struct {
	x      int // of the first track
	tracks []*track
}

// track is a vertical line of a path.
type track struct {
	zone   *zone // nil: in its column, wherever there is space
	column *column
	index  int // in the zone, from the left
}

// row has the boxes of a node that are side by side; or it is a bar.
type row struct {
	bar         bool
	top, height int
	extra       int // more height, for numbers
	lanes       []*lane
	ends        *lane // where paths begin or end on a track
}

// lane is a horizontal line of a path.
type lane struct {
	row   *row
	index int // in the row, from the top
}

// corner is where a track and a lane of a path meet, or an end of a path. An end of a horizontal
// line has no track.
type corner struct {
	track *track
	lane  *lane
	box   *box // without a track: where the path ends
	in    int  // without a track: the distance from the side of the box that the line crosses
}

func (z *zone) addTrack(c *column) *track {
	t := &track{zone: z, column: c}
	if z != nil {
		z.add(t)
	}
	return t
}

func (z *zone) add(t *track) {
	t.zone, t.index = z, len(z.tracks)
	z.tracks = append(z.tracks, t)
}

func (r *row) addLane() *lane {
	l := &lane{row: r, index: len(r.lanes)}
	r.lanes = append(r.lanes, l)
	return l
}

// end returns the lane for ends of vertical lines.
func (r *row) end() *lane {
	if r.bar {
		return r.addLane()
	}
	if r.ends == nil {
		r.ends = r.addLane()
	}
	return r.ends
}

// passage is how a path gets from one box to the next.
type passage struct {
	track bool  // false: the boxes are side by side, and a lane of both is enough
	zone  *zone // of the track; nil: wherever the column has space
	// out reports that the track crosses the first box, into that it crosses the second. Otherwise
	// the track is beside the box, and the path turns to it on a lane of the box.
	out, into bool
}

// through returns the passage on a track that crosses both boxes.
func through(z *zone) passage { return passage{track: true, zone: z, out: true, into: true} }

// route decides on the tracks and lanes of all paths.
func (d *drawing) route() {
	for _, w := range d.paths {
		d.routePath(w)
	}
	for _, w := range d.paths {
		for i := range w.corners {
			if t := w.corners[i].track; t != nil && t.zone == nil {
				t.column.right.add(t)
			}
		}
	}
}

// routePath decides on the tracks and lanes of one path.
func (d *drawing) routePath(w *path) {
	var on *track // the vertical line that the path is on,
	var at *lane  // or the horizontal one,
	var by *zone  // and, if it is not at the beginning, the zone by which it reached the box
	down := false
	for i := range len(w.visits) - 1 {
		a, b := w.visits[i].box, w.visits[i+1].box
		p := d.passage(a, b)
		c := a.column
		if c == nil {
			c = b.column
		}
		// turn adds the corners in box a from the line that the path is on to track t, or, if t is
		// nil, to a lane of the box.
		turn := func(t *track) {
			switch {
			case at == nil && on == nil && t != nil && p.out: // the path begins
				at = a.row.end()
			case at == nil && on == nil:
				at = a.row.addLane()
				w.corners = append(w.corners, a.inside(len(w.visits[i].numbers), at))
			case at == nil:
				at = a.row.addLane()
				w.corners = append(w.corners, corner{track: on, lane: at})
			case i > 0 && !p.out && (by == c.outer) == (p.zone == c.outer): // it leaves on the side where it came
				on := c.zoneOf(a, a).addTrack(c)
				w.corners = append(w.corners, corner{track: on, lane: at})
				at = a.row.addLane()
				w.corners = append(w.corners, corner{track: on, lane: at})
			}
			if on = t; t != nil {
				w.corners, at = append(w.corners, corner{track: t, lane: at}), nil
			}
		}
		switch goesDown := b.rank > a.rank; {
		case !p.track:
			turn(nil)
			by = nil
			continue
		case on != nil && p.out && goesDown == down && on.joins(p.zone):
		default:
			down = goesDown
			turn(p.zone.addTrack(c))
		}
		if !p.into {
			at = b.row.addLane()
			w.corners, on = append(w.corners, corner{track: on, lane: at}), nil
			by = p.zone
		}
	}
	last := &w.visits[len(w.visits)-1]
	switch n := len(last.numbers); {
	case on != nil:
		w.corners = append(w.corners, corner{track: on, lane: last.box.row.end()})
	case at != nil:
		w.corners = append(w.corners, last.box.inside(n, at))
	default: // the path ends where it begins
		at = last.box.row.addLane()
		w.corners = append(w.corners, last.box.inside(n+1, at), last.box.inside(0, at))
	}
}

// inside returns an end of a horizontal line in the box, with space for numbers.
func (b *box) inside(numbers int, l *lane) corner {
	in := endSpace + numbers*apart
	b.endsWidth = max(b.endsWidth, in+endSpace)
	return corner{box: b, in: in, lane: l}
}

// joins reports whether a track can continue in a zone. If so, it moves there.
func (t *track) joins(z *zone) bool {
	c := t.column
	switch {
	case t.zone == z || z == nil || z == c.right && slices.Contains(c.podZones, t.zone):
		return true
	case t.zone == nil:
		z.add(t)
		return true
	case t.zone == c.right && slices.Contains(c.podZones, z):
		c.right.remove(t)
		z.add(t)
		return true
	}
	return false
}

func (z *zone) remove(t *track) {
	z.tracks = slices.DeleteFunc(z.tracks, func(x *track) bool { return x == t })
	for i, x := range z.tracks {
		x.index = i
	}
}

// passage returns how a path gets from a to b.
func (d *drawing) passage(a, b *box) passage {
	if b.side > a.side { // bars and bridges first
		p := d.passage(b, a)
		p.out, p.into = p.into, p.out
		return p
	}
	c := b.column
	switch {
	case c == nil: // to the outside
		return through(d.outer)
	case a.side == bar:
		return c.toBar(b, a)
	case a.side == full && b.side == full:
		return through(nil)
	case (a.side == full || a.side == b.side) && !c.between(a, b, b.side, full):
		return through(c.zoneOf(a, b))
	case a.side == full:
		return passage{track: true, zone: c.gutter, out: true}
	case a.row == b.row:
		return passage{}
	}
	return passage{track: true, zone: c.gutter}
}

// toBar returns how a path gets from bar a, above or below the node, to box b.
func (c *column) toBar(b, a *box) passage {
	free, bridge := !c.between(a, b, b.side), c.between(a, b, full)
	switch {
	case b.side == full && free:
		return through(nil)
	case free && !bridge:
		return through(c.zoneOf(b, b))
	case free && b.side == left: // beside the bridge
		return through(c.aside)
	case bridge:
		return passage{track: true, zone: c.outer, out: true}
	}
	return passage{track: true, zone: c.gutter, out: true}
}

// zoneOf returns the zone of tracks that cross two boxes of a side, or one of them and a bridge.
func (c *column) zoneOf(a, b *box) *zone {
	for i, p := range c.pods {
		if p == a || p == b {
			return c.podZones[i]
		}
	}
	if b.side == left {
		return c.left
	}
	return c.right
}

// between reports whether a box on one of the sides is between two others.
func (c *column) between(a, b *box, sides ...side) bool {
	lo, hi := min(a.rank, b.rank), max(a.rank, b.rank)
	return slices.ContainsFunc(c.order, func(x *box) bool {
		return x.rank > lo && x.rank < hi && slices.Contains(sides, x.side)
	})
}
