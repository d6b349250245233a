package picture

import (
	"math"
	"slices"
)

// Limits for the search for the places of numbers.
const (
	stride    = 2   // along a path, in pixels
	maxExtra  = 160 // more height for a row until numbers may be on the other path
	maxSearch = 40  // rounds
)

// number sets the places of the numbers: on the path in the box of the translation, clear of
// labels, other numbers and the other path. A row without enough space gets more.
func (d *drawing) number() {
	strict := true
	for range maxSearch {
		b := d.placeNumbers(strict)
		if b == nil {
			return
		}
		b.row.extra += apart
		strict = b.row.extra < maxExtra
		d.place()
	}
}

// placeNumbers places the numbers. It stops at a box that lacks space for its own, and returns it.
// If strict is set, numbers avoid the other path.
func (d *drawing) placeNumbers(strict bool) *box {
	var taken []point
	var others [][]line
	for _, w := range d.paths {
		list := w.points()
		others = append(others, linesBetween(list))
		taken = append(taken, list[0], list[len(list)-1]) // the dot, and the arrow or the cross
	}
	for i, w := range d.paths {
		var avoid []line
		if len(d.paths) > 1 && strict {
			avoid = others[1-i]
		}
		along := w.along()
		for k := range w.visits {
			v := &w.visits[k]
			var part []point
			part, along = within(along, v.box)
			if len(v.numbers) == 0 {
				continue
			}
			free := slices.DeleteFunc(part, func(p point) bool {
				return !v.box.holds(p) || !isClear(p, taken) || slices.ContainsFunc(avoid,
					func(l line) bool { return l.near(p, radius+3) })
			})
			if v.at = pick(free, len(v.numbers)); v.at == nil {
				return v.box
			}
			taken = append(taken, v.at...)
		}
	}
	return nil
}

// along returns points all along a path.
func (w *path) along() []point {
	list := w.points()
	out := list[:1:1]
	for _, p := range list[1:] {
		for at := out[len(out)-1]; at != p; out = append(out, at) {
			at.x += min(max(p.x-at.x, -stride), stride)
			at.y += min(max(p.y-at.y, -stride), stride)
		}
	}
	return out
}

// within splits the points of a path: the next ones in the box, and those that follow.
func within(along []point, b *box) (part, rest []point) {
	in := func(p point) bool { return p.x >= b.x && p.x <= b.x+b.w && p.y >= b.y && p.y <= b.y+b.h }
	start := slices.IndexFunc(along, in)
	if start < 0 {
		return nil, along
	}
	end := slices.IndexFunc(along[start:], func(p point) bool { return !in(p) })
	if end < 0 {
		end = len(along) - start
	}
	return slices.Clone(along[start : start+end]), along[start+end:]
}

// holds reports whether a number at p is within the box and beside its label.
func (b *box) holds(p point) bool {
	const r = radius + 1
	if b.side == bar {
		return true
	}
	label := p.x-r < b.x+labelInset+textWidth(short(b.label), labelSize) && p.y-r < b.labelY()+4
	return p.x-r >= b.x && p.x+r <= b.x+b.w && p.y-r >= b.y && p.y+r <= b.y+b.h && !label
}

// isClear reports whether p is far enough from all taken points.
func isClear(p point, taken []point) bool {
	return !slices.ContainsFunc(taken, func(t point) bool {
		return math.Hypot(float64(p.x-t.x), float64(p.y-t.y)) < apart
	})
}

// near reports whether p is less than distance away from the line.
func (l line) near(p point, distance int) bool {
	return p.x > l.a.x-distance && p.x < l.b.x+distance && p.y > l.a.y-distance && p.y < l.b.y+distance
}

// pick selects n points, in order, that are apart, as near to the middle as possible; nil if there
// are no such points.
func pick(free []point, n int) []point {
	var best []point
	nearest := math.MaxInt
	for i := range free {
		list, sum := []point{free[i]}, i
		for k := i + 1; k < len(free) && len(list) < n; k++ {
			if isClear(free[k], list) {
				list, sum = append(list, free[k]), sum+k
			}
		}
		if len(list) < n {
			continue
		}
		if off := max(sum/n-len(free)/2, len(free)/2-sum/n); off < nearest {
			best, nearest = list, off
		}
	}
	return best
}
