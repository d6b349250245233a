package ovsdb

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestRowset holds rowsets against a map, through random edits of all sizes, and their differences
// against those of maps.
func TestRowset(t *testing.T) {
	for seed := range uint64(30) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		type version struct {
			rows  rowset
			model map[UUID]any
		}
		have := version{model: map[UUID]any{}}
		versions := []version{have}
		for range 60 {
			edits := map[UUID]any{}
			for range rnd.IntN(1 << rnd.IntN(10)) {
				edits[UUID(fmt.Sprintf("%04d", rnd.IntN(3000)))] = []any{nil, new(int)}[min(rnd.IntN(3), 1)]
			}
			have.model = maps.Clone(have.model)
			var list []entry
			for _, id := range slices.Sorted(maps.Keys(edits)) {
				list = append(list, entry{id, edits[id]})
				if have.model[id] = edits[id]; edits[id] == nil {
					delete(have.model, id)
				}
			}
			have.rows = have.rows.with(list)
			versions = append(versions, have)
		}
		for _, v := range versions { // the old ones too: they must not have changed
			checkRowset(t, v.rows, v.model)
			old := versions[rnd.IntN(len(versions))]
			changed, deleted := v.rows.since(old.rows)
			wantChanged, wantDeleted := differ(old.model, v.model)
			if !slices.Equal(changed, wantChanged) || !slices.Equal(deleted, wantDeleted) {
				t.Fatalf("seed %d: since: %v %v, want %v %v", seed, changed, deleted, wantChanged, wantDeleted)
			}
		}
	}
}

func checkRowset(t *testing.T, r rowset, model map[UUID]any) {
	t.Helper()
	var ids []UUID
	for e := range r.all() {
		ids = append(ids, e.id)
		if e.row != model[e.id] || r.find(e.id) != e.row {
			t.Fatalf("%s: wrong row", e.id)
		}
	}
	if !slices.Equal(ids, slices.Sorted(maps.Keys(model))) || r.size != len(model) {
		t.Fatalf("%d rows, size %d, want %d", len(ids), r.size, len(model))
	}
	if r.find("") != nil || r.find("x") != nil || r.find("0000x") != nil {
		t.Fatal("found what is not there")
	}
	for _, c := range r.chunks {
		if len(c) == 0 || len(c) > chunkSize {
			t.Fatalf("chunk of %d rows", len(c))
		}
	}
	if len(r.chunks) > 2+4*len(model)/chunkSize {
		t.Fatalf("%d rows in %d chunks", len(model), len(r.chunks))
	}
}

func differ(old, now map[UUID]any) (changed, deleted []UUID) {
	for _, id := range slices.Sorted(maps.Keys(now)) {
		if old[id] != now[id] {
			changed = append(changed, id)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(old)) {
		if now[id] == nil {
			deleted = append(deleted, id)
		}
	}
	return changed, deleted
}
