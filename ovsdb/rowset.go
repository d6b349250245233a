package ovsdb

import (
	"cmp"
	"iter"
	"slices"
)

// chunkSize is the greatest number of rows in a chunk.
const chunkSize = 128

// entry is a row of a table. In a list of edits row is nil where the row is deleted.
type entry struct {
	id  UUID
	row any // *T for the row type T
}

func byID(e entry, id UUID) int { return cmp.Compare(e.id, id) }

// rowset is an immutable set of rows in the order of their UUIDs. A modified set shares all
// unchanged chunks, so a change is cheap at 10 000 rows, and a comparison of two sets skips shared
// chunks.
type rowset struct {
	chunks [][]entry // none empty
	size   int
}

// find returns the row with that UUID, or nil.
func (r rowset) find(id UUID) any {
	i, found := slices.BinarySearchFunc(r.chunks, id, func(c []entry, id UUID) int { return byID(c[0], id) })
	if !found {
		i--
	}
	if i < 0 {
		return nil
	}
	j, found := slices.BinarySearchFunc(r.chunks[i], id, byID)
	if !found {
		return nil
	}
	return r.chunks[i][j].row
}

// all yields the rows in order.
func (r rowset) all() iter.Seq[entry] {
	return func(yield func(entry) bool) {
		for _, c := range r.chunks {
			for _, e := range c {
				if !yield(e) {
					return
				}
			}
		}
	}
}

// with returns the set after edits, which must be in order, each UUID once.
func (r rowset) with(edits []entry) rowset {
	if len(edits) == 0 {
		return r
	}
	var out rowset
	for i, c := range r.chunks {
		mine := edits
		if i+1 < len(r.chunks) {
			n, _ := slices.BinarySearchFunc(edits, r.chunks[i+1][0].id, byID)
			mine = edits[:n]
		}
		edits = edits[len(mine):]
		if len(mine) == 0 {
			out.share(c)
		} else {
			out.add(merge(c, mine))
		}
	}
	out.add(merge(nil, edits)) // only if there was no chunk
	return out
}

// share appends a chunk as it is.
func (r *rowset) share(c []entry) {
	r.chunks = append(r.chunks, c)
	r.size += len(c)
}

// add appends rows as new chunks, or to the last chunk if both are small, so that chunks do not
// become ever smaller.
func (r *rowset) add(rows []entry) {
	if len(rows) == 0 {
		return
	}
	if last := len(r.chunks) - 1; last >= 0 && len(rows)+len(r.chunks[last]) <= chunkSize/2 {
		r.size += len(rows)
		r.chunks[last] = slices.Concat(r.chunks[last], rows)
		return
	}
	for c := range slices.Chunk(rows, chunkSize) {
		r.share(slices.Clip(c))
	}
}

// merge applies edits to rows.
func merge(rows, edits []entry) []entry {
	out := make([]entry, 0, len(rows)+len(edits))
	for _, e := range edits {
		i, found := slices.BinarySearchFunc(rows, e.id, byID)
		out = append(out, rows[:i]...)
		if found {
			i++
		}
		if e.row != nil {
			out = append(out, e)
		}
		rows = rows[i:]
	}
	return append(out, rows...)
}

// since compares two sets: the UUIDs of the rows that are new or changed in r, and those of the
// rows that only old has.
func (r rowset) since(old rowset) (changed, deleted []UUID) {
	before, after := cursor{chunks: old.chunks}, cursor{chunks: r.chunks}
	for !before.end() || !after.end() {
		switch {
		case before.skip(&after):
		case after.end() || !before.end() && before.entry().id < after.entry().id:
			deleted = append(deleted, before.entry().id)
			before.next()
		case before.end() || after.entry().id < before.entry().id:
			changed = append(changed, after.entry().id)
			after.next()
		default:
			if before.entry().row != after.entry().row {
				changed = append(changed, after.entry().id)
			}
			before.next()
			after.next()
		}
	}
	return changed, deleted
}

// cursor is a position in a rowset.
type cursor struct {
	chunks [][]entry
	i      int // in the first chunk
}

func (c *cursor) end() bool { return len(c.chunks) == 0 }

func (c *cursor) entry() entry { return c.chunks[0][c.i] }

func (c *cursor) next() {
	if c.i++; c.i == len(c.chunks[0]) {
		c.chunks, c.i = c.chunks[1:], 0
	}
}

// skip moves both cursors past a shared chunk, if both are at its start.
func (c *cursor) skip(d *cursor) bool {
	if c.end() || d.end() || c.i != 0 || d.i != 0 || &c.chunks[0][0] != &d.chunks[0][0] {
		return false
	}
	c.chunks, d.chunks = c.chunks[1:], d.chunks[1:]
	return true
}
