package nbdb

import (
	"maps"
	"slices"

	"hairpin/claims"
	"hairpin/datapath/nb"
	"hairpin/ovsdb"
)

// model is the mirrored databases as nb's rows. It follows the mirror by what changed in it, so it
// takes time for that only, and rows that did not change stay the same pointers.
type model struct {
	schema  *schema
	nb, sb  ovsdb.View
	items   map[ovsdb.UUID]*item
	byKey   map[nb.Key]*item            // the first of a key; the others follow in next
	parents map[ovsdb.UUID]ovsdb.UUID   // of ports, routes, policies, NAT, gateway chassis and encaps
	groups  map[ovsdb.UUID][]ovsdb.UUID // of load balancers: the groups that have them
	dirty   map[ovsdb.UUID]string       // rows to be read again, with their table
	hints   map[nb.Key]nb.Row           // rows just written: when they are found, these pointers are taken
	named   struct {                    // the names of groups that were asked for last, during one update
		ids   []ovsdb.UUID
		names []string
	}

	state     nb.State // rows that are ours
	shared    bool     // state was given away: copy before a write
	unadopted int      // items of ours whose row is not one of plan's
}

// item is one row of a database.
type item struct {
	id      ovsdb.UUID
	row     nb.Row
	key     nb.Key
	own     bool
	adopted bool  // row is one that plan made
	next    *item // of the same key, by UUID
}

func newModel() *model {
	return &model{
		schema: newSchema(), items: map[ovsdb.UUID]*item{}, byKey: map[nb.Key]*item{}, state: nb.State{},
		parents: map[ovsdb.UUID]ovsdb.UUID{}, groups: map[ovsdb.UUID][]ovsdb.UUID{}, dirty: map[ovsdb.UUID]string{},
	}
}

// share gives the state away.
func (m *model) share() nb.State {
	m.shared = true
	return m.state
}

// adopt takes rows of want in place of equal ones.
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

// update follows the mirror. It gives the keys whose rows may be others now; none the first time.
func (m *model) update(northbound, southbound ovsdb.View) []nb.Key {
	oldNB, oldSB := m.nb, m.sb
	m.nb, m.sb = northbound, southbound
	changes := append(northbound.Since(oldNB), southbound.Since(oldSB)...)
	m.named.ids, m.named.names = nil, nil // groups may have got other names
	if first := oldNB == (ovsdb.View{}) && oldSB == oldNB; first {
		m.fill(changes)
		return nil
	}
	for _, c := range changes {
		for _, id := range slices.Concat(c.Changed, c.Deleted) {
			m.dirty[id] = c.Table
			m.relate(c.Table, id, oldNB, oldSB)
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

// fill is the first update: every row is new, so none needs to be marked.
func (m *model) fill(changes []ovsdb.Change) {
	size := 0
	for _, c := range changes {
		size += len(c.Changed)
	}
	m.items, m.byKey, m.state = make(map[ovsdb.UUID]*item, size), make(map[nb.Key]*item, size), make(nb.State, size)
	m.dirty = nil
	for _, c := range changes {
		for _, id := range c.Changed {
			m.relate(c.Table, id, ovsdb.View{}, ovsdb.View{})
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

// mark notes a row that is to be read again.
func (m *model) mark(id ovsdb.UUID, table string) {
	if m.dirty != nil {
		m.dirty[id] = table
	}
}

// relate keeps parents and groups, after the row changed, and marks the rows that are read with it.
func (m *model) relate(name string, id ovsdb.UUID, oldNB, oldSB ovsdb.View) {
	if owner := m.schema.owners[name]; owner != "" { // of a part
		if row, known := m.parents[id]; known {
			m.mark(row, owner)
		}
		return
	}
	t := m.schema.byName[name]
	switch {
	case t.id == nb.TableGlobal: // has the owners of rows without external_ids
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

// get is ovsdb.Get with an empty row for one that is not there.
func get[T ovsdb.Row](v ovsdb.View, id ovsdb.UUID) *T {
	if v == (ovsdb.View{}) {
		return new(T)
	}
	if row := ovsdb.Get[T](v, id); row != nil {
		return row
	}
	return new(T)
}

// children keeps the parents of a column's rows.
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

// members keeps the groups of load balancers. A group that comes, goes or gets another name is read
// with all that name it.
func (m *model) members(t *table, id ovsdb.UUID, renamed bool, was, is []ovsdb.UUID) {
	alone := []ovsdb.UUID{id} // shared by all that are in this group only
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

// each walks two ascending lists side by side.
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

// replace puts a row in the place of an earlier version of it; row is nil when it is gone. It adds
// the keys whose rows may be others now.
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
		it.row, it.key, it.adopted = hint, hint.Key(), true // the key too: strings of one pointer are compared at once
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

// insert keeps items of one key in the order of UUIDs, so that of two equal ones the same is kept
// every time. It tells whether the item is the only one of its key.
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

// resolve makes the state's row of a key.
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

// own gives the items of a key that are ours, or else one without an owner, which may be taken
// over.
func (m *model) own(key nb.Key) []*item {
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

// ownerKey is the key of NB_Global's external_ids under which the owner of a row without
// external_ids is kept.
func ownerKey(key nb.Key) string {
	return claims.KeyOwner + "/" + key.Table.String() + "/" + key.Name
}
