package nbdb

import (
	"maps"
	"slices"

	"hairpin/claims"
	"hairpin/datapath/nb"
	"hairpin/ovsdb"
)

// model holds the mirrored databases as nb's rows. It applies only the mirror's changes, so its
// cost depends on these, and unchanged rows keep their pointers.
type model struct {
	schema  *schema
	nb, sb  ovsdb.View
	items   map[ovsdb.UUID]*item
	byKey   map[nb.Key]*item            // the first item of a key; next links the others
	parents map[ovsdb.UUID]ovsdb.UUID   // of ports, routes, policies, NAT, gateway chassis and encaps
	groups  map[ovsdb.UUID][]ovsdb.UUID // the groups of load balancers
	dirty   map[ovsdb.UUID]string       // rows to read again, with their table
	hints   map[nb.Key]nb.Row           // rows just written, whose pointers are used for equal rows read back
	named   struct {                    // the last result of labels, during one update
		ids   []ovsdb.UUID
		names []string
	}

	state     nb.State // Hairpin's rows
	shared    bool     // a caller has state: copy it before a write
	unadopted int      // Hairpin's items with a row that was not adopted
}

// item is one row of a database.
type item struct {
	id      ovsdb.UUID
	row     nb.Row
	key     nb.Key
	own     bool
	adopted bool  // row is a wanted State's
	next    *item // of the same key, by UUID
}

func newModel() *model {
	return &model{
		schema: newSchema(), items: map[ovsdb.UUID]*item{}, byKey: map[nb.Key]*item{}, state: nb.State{},
		parents: map[ovsdb.UUID]ovsdb.UUID{}, groups: map[ovsdb.UUID][]ovsdb.UUID{}, dirty: map[ovsdb.UUID]string{},
	}
}

// share returns the state, which the caller may keep.
func (m *model) share() nb.State {
	m.shared = true
	return m.state
}

// adopt replaces rows by equal ones of want.
func (m *model) adopt(want nb.State) {
	if m.unadopted == 0 {
		return
	}
	for key, row := range want {
		for it := m.byKey[key]; it != nil; it = it.next {
			if it.own && !it.adopted && nb.Equal(it.row, row) {
				it.row, it.adopted = row, true
				m.unadopted--
				m.resolve(key)
			}
		}
	}
}

// update applies the mirror's changes. It returns the keys whose rows may have changed; none the
// first time.
func (m *model) update(northbound, southbound ovsdb.View) []nb.Key {
	oldNB, oldSB := m.nb, m.sb
	m.nb, m.sb = northbound, southbound
	changes := append(northbound.Since(oldNB), southbound.Since(oldSB)...)
	m.named.ids, m.named.names = nil, nil // groups may have new names
	if first := oldNB == (ovsdb.View{}) && oldSB == oldNB; first {
		m.fill(changes)
		return nil
	}
	for _, c := range changes {
		for _, id := range slices.Concat(c.Changed, c.Deleted) {
			m.dirty[id] = c.Table
			m.updateRelations(c.Table, id, oldNB, oldSB)
		}
	}
	var touched []nb.Key
	for id, table := range m.dirty {
		row, own := m.convert(table, id)
		touched = m.replace(id, row, own, touched)
	}
	clear(m.dirty)
	for _, key := range touched {
		m.resolve(key)
	}
	return touched
}

// fill is the first update: every row is new, so no row must be marked.
func (m *model) fill(changes []ovsdb.Change) {
	size := 0
	for _, c := range changes {
		size += len(c.Changed)
	}
	m.items, m.byKey, m.state = make(map[ovsdb.UUID]*item, size), make(map[nb.Key]*item, size), make(nb.State, size)
	m.dirty = nil
	for _, c := range changes {
		for _, id := range c.Changed {
			m.updateRelations(c.Table, id, ovsdb.View{}, ovsdb.View{})
		}
	}
	m.dirty = map[ovsdb.UUID]string{}
	for _, c := range changes {
		for _, id := range c.Changed {
			if row, own := m.convert(c.Table, id); row != nil {
				it := m.newItem(id, row, own)
				switch alone := m.insert(it); {
				case !alone:
					m.resolve(it.key)
				case own:
					m.state[it.key] = it.row
				}
			}
		}
	}
}

// mark records a row to read again.
func (m *model) mark(id ovsdb.UUID, table string) {
	if m.dirty != nil {
		m.dirty[id] = table
	}
}

// updateRelations updates parents and groups after a row changed, and marks the rows that depend on
// it.
func (m *model) updateRelations(name string, id ovsdb.UUID, oldNB, oldSB ovsdb.View) {
	if owner := m.schema.partOf[name]; owner != "" { // a row of a part
		if row, known := m.parents[id]; known {
			m.mark(row, owner)
		}
		return
	}
	t := m.schema.byName[name]
	switch {
	case t.id == nb.TableGlobal: // holds the owners of rows without external_ids
		for _, t := range m.schema.indexed {
			m.markAll(t)
		}
		return
	case t.children == nil && t.part == nil && t.namedBy == nil:
		return
	}
	was, is := t.get(oldNB, oldSB, id), m.get(t, id)
	renamed := t.label(was) != t.label(is)
	for _, c := range t.children {
		m.children(id, renamed, c.name(), t.refs(was, c.parent.column), t.refs(is, c.parent.column))
	}
	if p := t.part; p != nil {
		m.children(id, false, p.table, t.refs(was, p.column), t.refs(is, p.column))
	}
	for _, member := range t.namedBy {
		switch {
		case member.others.back:
			m.members(member, id, renamed, t.refs(was, member.others.column), t.refs(is, member.others.column))
		case renamed:
			m.markAll(member)
		}
	}
}

func (m *model) markAll(t *table) {
	if m.dirty == nil {
		return
	}
	for r := range t.layout.Rows(m.nb) {
		m.mark(r.UUID(), t.name())
	}
}

// getOrEmpty is ovsdb.Get, with an empty row instead of a missing one.
func getOrEmpty[T ovsdb.Row](v ovsdb.View, id ovsdb.UUID) *T {
	if v == (ovsdb.View{}) {
		return new(T)
	}
	if row := ovsdb.Get[T](v, id); row != nil {
		return row
	}
	return new(T)
}

// children updates the parents of a column's rows.
func (m *model) children(id ovsdb.UUID, all bool, table string, was, is []ovsdb.UUID) {
	each(was, is, func(child ovsdb.UUID, before, now bool) {
		switch {
		case now && !before:
			m.parents[child] = id
		case before && !now && m.parents[child] == id:
			delete(m.parents, child)
		case !all:
			return
		}
		m.mark(child, table)
	})
}

// members updates the groups of load balancers. If a group is new, gone or renamed, it marks all
// members.
func (m *model) members(t *table, id ovsdb.UUID, renamed bool, was, is []ovsdb.UUID) {
	alone := []ovsdb.UUID{id} // shared by all load balancers in this group only
	each(was, is, func(lb ovsdb.UUID, before, now bool) {
		switch {
		case now && !before && m.groups[lb] == nil:
			m.groups[lb] = alone
		case now && !before:
			m.groups[lb] = append(m.groups[lb][:len(m.groups[lb]):len(m.groups[lb])], id)
		case before && !now:
			m.groups[lb] = slices.DeleteFunc(slices.Clone(m.groups[lb]), func(g ovsdb.UUID) bool { return g == id })
			if len(m.groups[lb]) == 0 {
				delete(m.groups, lb)
			}
		case !renamed:
			return
		}
		m.mark(lb, t.name())
	})
}

// each iterates over two ascending lists in parallel.
func each(was, is []ovsdb.UUID, visit func(id ovsdb.UUID, before, now bool)) {
	for len(was) > 0 || len(is) > 0 {
		switch {
		case len(is) == 0 || len(was) > 0 && was[0] < is[0]:
			visit(was[0], true, false)
			was = was[1:]
		case len(was) == 0 || is[0] < was[0]:
			visit(is[0], false, true)
			is = is[1:]
		default:
			visit(is[0], true, true)
			was, is = was[1:], is[1:]
		}
	}
}

// replace replaces the previous version of a row; row is nil if it is gone. It appends the keys
// whose rows may have changed.
func (m *model) replace(id ovsdb.UUID, row nb.Row, own bool, touched []nb.Key) []nb.Key {
	if old := m.items[id]; old != nil {
		if row != nil && old.own == own && old.key == row.Key() && nb.Equal(old.row, row) {
			return touched // other columns changed: it keeps its pointer
		}
		m.remove(old)
		touched = append(touched, old.key)
	}
	if row == nil {
		return touched
	}
	it := m.newItem(id, row, own)
	m.insert(it)
	return append(touched, it.key)
}

func (m *model) newItem(id ovsdb.UUID, row nb.Row, own bool) *item {
	it := &item{id: id, row: row, key: row.Key(), own: own}
	if hint := m.hints[it.key]; hint != nil && nb.Equal(hint, row) {
		it.row, it.key, it.adopted = hint, hint.Key(), true // the key, too: strings with equal pointers compare fast
	}
	return it
}

func (m *model) remove(old *item) {
	delete(m.items, old.id)
	first := m.byKey[old.key]
	for at := &first; *at != nil; at = &(*at).next {
		if *at == old {
			*at = old.next
			break
		}
	}
	if first == nil {
		delete(m.byKey, old.key)
	} else {
		m.byKey[old.key] = first
	}
	if old.own && !old.adopted {
		m.unadopted--
	}
}

// insert keeps the items of a key sorted by UUID, so that of two equal ones always the same is
// kept. It returns whether the item is the only one of its key.
func (m *model) insert(it *item) (alone bool) {
	m.items[it.id] = it
	first := m.byKey[it.key]
	alone = first == nil
	at := &first
	for *at != nil && (*at).id < it.id {
		at = &(*at).next
	}
	it.next, *at = *at, it
	m.byKey[it.key] = first
	if it.own && !it.adopted {
		m.unadopted++
	}
	return alone
}

// resolve updates the state's row of a key.
func (m *model) resolve(key nb.Key) {
	var row nb.Row
	for it := m.byKey[key]; it != nil; it = it.next {
		switch {
		case !it.own:
		case row == nil:
			row = it.row
		default:
			row = m.altered(row, "twice")
		}
	}
	if m.state[key] == row {
		return
	}
	if m.shared {
		m.state, m.shared = maps.Clone(m.state), false
	}
	if row == nil {
		delete(m.state, key)
	} else {
		m.state[key] = row
	}
}

// candidates returns Hairpin's items of a key, or else one item without an owner, which may be
// taken over.
func (m *model) candidates(key nb.Key) []*item {
	var own, others []*item
	for it := m.byKey[key]; it != nil; it = it.next {
		if it.own {
			own = append(own, it)
		} else {
			others = append(others, it)
		}
	}
	if len(own) == 0 && len(others) > 0 {
		return others[:1]
	}
	return own
}

// ownerKey returns the key in NB_Global's external_ids for the owner of a row without external_ids.
func ownerKey(key nb.Key) string {
	return claims.KeyOwner + "/" + key.Table.String() + "/" + key.Name
}
