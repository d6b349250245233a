package picture

// The number of rounds of untangle, and the cost of a crossing in pixels of the paths' length.
const (
	maxRounds = 6
	crossing  = 300
)

type point struct{ x, y int }

// line is a horizontal or vertical line, from left to right or from top to bottom.
type line struct{ a, b point }

// points returns the corners of a path.
func (w *path) points() []point {
	list := make([]point, len(w.corners))
	for i := range w.corners {
		c := &w.corners[i]
		list[i].y = c.lane.y()
		if c.track != nil {
			list[i].x = c.track.x()
			continue
		}
		next := &w.corners[max(i-1, 0)]
		if i == 0 {
			next = &w.corners[1]
		}
		middle := c.box.x + c.box.w/2
		if list[i].x = c.box.x + c.in; next.track != nil && next.track.x() > middle ||
			next.track == nil && next.box.x > c.box.x {
			list[i].x = c.box.x + c.box.w - c.in
		}
	}
	return list
}

// linesBetween returns the lines between points.
func linesBetween(list []point) []line {
	var out []line
	for i := 1; i < len(list); i++ {
		a, b := list[i-1], list[i]
		if a.x > b.x || a.y > b.y {
			a, b = b, a
		}
		out = append(out, line{a, b})
	}
	return out
}

// cost rates the order of tracks and lanes: paths should cross each other seldom, and be short.
func (d *drawing) cost() int {
	var all []line
	sum := 0
	for _, w := range d.paths {
		all = append(all, linesBetween(w.points())...)
	}
	for i, l := range all {
		sum += l.b.x - l.a.x + l.b.y - l.a.y
		for _, m := range all[:i] {
			if l.crosses(m) || m.crosses(l) {
				sum += crossing
			}
		}
	}
	return sum
}

// crosses reports whether l is horizontal, m is vertical, and they cross.
func (l line) crosses(m line) bool {
	return l.a.y == l.b.y && m.a.x == m.b.x && l.a.x < m.a.x && m.a.x < l.b.x && m.a.y < l.a.y && l.a.y < m.b.y
}

// untangle exchanges tracks of a zone and lanes of a row as long as that makes the picture better.
func (d *drawing) untangle() {
	best := d.cost()
	try := func(a, b *int) {
		if *a, *b = *b, *a; d.cost() < best {
			best = d.cost()
			return
		}
		*a, *b = *b, *a
	}
	for range maxRounds {
		before := best
		for _, z := range d.zones() {
			for i, a := range z.tracks {
				for _, b := range z.tracks[:i] {
					try(&a.index, &b.index)
				}
			}
		}
		for _, b := range d.boxes() {
			for i, x := range b.row.lanes {
				for _, y := range b.row.lanes[:i] {
					try(&x.index, &y.index)
				}
			}
		}
		if best == before {
			return
		}
	}
}

func (d *drawing) zones() []*zone {
	all := []*zone{d.outer}
	for _, c := range d.nodes {
		all = append(append(all, c.left, c.gutter, c.outer, c.aside, c.right), c.podZones...)
	}
	return all
}
