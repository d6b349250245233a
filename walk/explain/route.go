package explain

import "math"

// run is the vertical part of a path at one x, through one or more boxes. The parts between two
// runs are horizontal.
type run struct {
	lo, hi int // range of x
	up     bool
	flat   bool // between boxes side by side: it only steps from lane to lane
	x      int
}

type point struct{ x, y int }

// route lays out the paths. Each has its own vertical line beside the others, and its own lane for
// each turn.
func (d *drawing) route() {
	var all []*run
	for _, w := range d.ways {
		w.runs = w.runs[:0]
		for i := range len(w.visits) - 1 {
			r := passage(w.visits[i].box, w.visits[i+1].box)
			if n := len(w.runs); n == 0 || w.visits[i].box.bar || !w.runs[n-1].joins(r) {
				all = append(all, r)
			} else {
				r = w.runs[n-1]
			}
			w.runs = append(w.runs, r)
		}
	}
	for _, c := range d.nodes {
		for _, b := range c.order {
			b.turns = 0
		}
	}
	for _, w := range d.ways {
		for i := range w.visits {
			v := &w.visits[i]
			if v.box.used = true; w.turns(i) && !v.box.bar {
				v.lane = v.box.turns
				v.box.turns++
			}
		}
	}
	spread(all)
}

// passage returns the run from a box to the next one.
func passage(a, b *box) *run {
	r := &run{up: b.y < a.y}
	switch {
	case a.bar:
		r.lo, r.hi = b.inside()
		return r
	case b.bar:
		r.lo, r.hi = a.inside()
		return r
	}
	alo, ahi := a.inside()
	blo, bhi := b.inside()
	if r.lo, r.hi = max(alo, blo), min(ahi, bhi); r.hi > r.lo {
		return r
	}
	left, right := a, b
	if a.x > b.x {
		left, right = b, a
	}
	if left.y < right.y+right.h && right.y < left.y+left.h {
		r.lo, r.hi, r.flat = left.x+left.w, right.x, true
		return r
	}
	r.lo, r.hi = left.inside() // vertical beside the box, then horizontal
	return r
}

// inside returns the range of x where paths can cross a box vertically, beside its label.
func (b *box) inside() (lo, hi int) { return b.x + b.label0 + 4, b.x + b.w - 8 }

// joins reports whether next continues r in a straight line. If so, it narrows the range of r.
func (r *run) joins(next *run) bool {
	lo, hi := max(r.lo, next.lo), min(r.hi, next.hi)
	if r.flat || next.flat || r.up != next.up || hi <= lo {
		return false
	}
	r.lo, r.hi = lo, hi
	return true
}

// turns reports whether the path has a horizontal part in the box of a visit, or is lost there.
func (w *way) turns(i int) bool {
	return i > 0 && (i < len(w.runs) && w.runs[i-1] != w.runs[i] || i == len(w.runs) && w.lost)
}

// spread sets the x of each run. Runs with the same range share it, in turn from the right. So a
// path up and a path down nest within each other and do not cross.
func spread(all []*run) {
	type room struct{ lo, hi int }
	sharing := map[room][]*run{}
	for _, r := range all {
		sharing[room{r.lo, r.hi}] = append(sharing[room{r.lo, r.hi}], r)
	}
	left := math.MaxInt
	for _, r := range all {
		left = min(left, r.lo)
	}
	var taken []int
	for _, r := range all {
		list := sharing[room{r.lo, r.hi}]
		for i, x := range list {
			if x == r {
				r.x = r.hi - (r.hi-r.lo)*(i+1)/(len(list)+1)
				if r.lo == left { // runs at the host
					r.x = r.lo + (r.hi-r.lo)*(i+1)/(len(list)+1)
				}
			}
		}
		r.x = free(taken, r)
		taken = append(taken, r.x)
	}
}

// free moves a run aside if another one is at its x.
func free(taken []int, r *run) int {
	const apart = 9
	for _, x := range [...]int{r.x, r.x + apart, r.x - apart, r.x + 2*apart, r.x - 2*apart} {
		ok := x >= r.lo && x <= r.hi
		for _, t := range taken {
			ok = ok && (x-t >= apart || t-x >= apart)
		}
		if ok {
			return x
		}
	}
	return r.x
}

// level returns the y of a path in the box of a visit.
func (w *way) level(i int) int {
	v := &w.visits[i]
	switch {
	case v.box.bar && w.class == "there":
		return v.box.y - 4
	case v.box.bar:
		return v.box.y + 4
	case w.turns(i):
		return v.box.y + v.box.h - lastLane - v.lane*laneGap
	case i == 0 || i == len(w.visits)-1:
		return v.box.y + v.box.h - 12
	}
	return v.box.y + v.box.h/2
}

// corners returns the points of a path.
func (w *way) corners() []point {
	if len(w.runs) == 0 { // the path ends where it starts
		b := w.visits[0].box
		return []point{{b.x + b.w/2, b.y + b.h/2}, {b.x + b.w/2 + 1, b.y + b.h/2}}
	}
	list := []point{{w.runs[0].x, w.level(0)}}
	for i, r := range w.runs {
		for _, p := range []point{{r.x, w.level(i)}, {r.x, w.level(i + 1)}} {
			if p != list[len(list)-1] {
				list = append(list, p)
			}
		}
	}
	return list
}

// middle returns the position of a visit's numbers.
func (w *way) middle(i int) (x, y int) {
	switch n := len(w.runs); {
	case n == 0:
		return w.visits[0].box.x + w.visits[0].box.w/2, w.level(0)
	case i == n && w.lost: // beside the cross
		return w.runs[n-1].x - 20, w.level(i)
	case i == n:
		return w.runs[n-1].x, w.level(i)
	case w.turns(i):
		return (w.runs[i-1].x + w.runs[i].x) / 2, w.level(i)
	}
	return w.runs[i].x, w.level(i)
}
