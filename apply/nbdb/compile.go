package nbdb

import (
	"crypto/sha256"
	"fmt"
	"slices"

	"hairpin/datapath/nb"
	"hairpin/ovsdb"
)

// compiler computes the operations of a transaction.
type compiler struct {
	m       *model
	changes []change
	made    map[nb.Key]ovsdb.UUID // rows that the transaction makes
	gone    map[ovsdb.UUID]bool   // rows that it deletes
	ops     []ovsdb.Op
	links   links

	global     ovsdb.UUID        // of NB_Global
	setOwners  map[string]string // in the owner index
	dropOwners []string          // their keys there
}

func newCompiler(m *model, changes []change) *compiler {
	return &compiler{m: m, changes: changes, made: map[nb.Key]ovsdb.UUID{}, gone: map[ovsdb.UUID]bool{}, links: links{},
		setOwners: map[string]string{}}
}

// compile returns the operations, and the errors of the rows that it leaves out.
func (c *compiler) compile() ([]ovsdb.Op, []error) {
	for _, ch := range c.changes {
		items := c.m.candidates(ch.key)
		switch {
		case ch.row != nil && len(items) == 0:
			c.made[ch.key] = c.newID(ch.key)
		case ch.row == nil:
			for _, it := range items {
				c.gone[it.id] = it.own
			}
		}
	}
	if row := c.m.global(); row.Exists() {
		c.global = row.UUID()
	}
	var bad []error
	for _, ch := range c.changes {
		var err error
		if ch.row == nil {
			c.deleteAll(ch.key)
		} else {
			err = c.write(ch)
		}
		if err != nil {
			bad = append(bad, fmt.Errorf("%s of %s: %w", ch.key, ch.owner(), err))
		}
	}
	c.ownerIndex()
	return append(c.ops, c.links.ops()...), bad
}

// newID returns the UUID of a new row. The UUID of a router or switch is derived from its name, so
// a recreated one gets the same UUID and ovn-northd keeps its datapath. With another UUID,
// ovn-northd tries to remove the old datapath. OVN 25.03 does not move a router's rows of
// Static_MAC_Binding to the new one. The Southbound database then rejects the removal ("remaining
// reference"), and with it everything that ovn-northd writes from then on.
func (c *compiler) newID(key nb.Key) ovsdb.UUID {
	if key.Table != nb.TableRouter && key.Table != nb.TableSwitch {
		return ovsdb.NewUUID()
	}
	b := sha256.Sum256([]byte("hairpin\x00" + key.Table.String() + "\x00" + key.Name))
	b[6] = b[6]&0x0f | 0x80 // version 8: custom (RFC 9562)
	b[8] = b[8]&0x3f | 0x80
	id := ovsdb.UUID(fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:16]))
	if c.m.items[id] != nil {
		return ovsdb.NewUUID() // another program renamed that row
	}
	return id
}

// write inserts a row, or changes the existing one, and deletes other rows of the same key.
func (c *compiler) write(ch change) error {
	t := c.m.schema.tables[ch.key.Table]
	for _, col := range t.columns {
		if col.check != nil {
			if err := col.check(ch.row); err != nil {
				return err
			}
		}
	}
	items := c.m.candidates(ch.key)
	id, fresh := c.made[ch.key]
	var have ovsdb.Record
	if !fresh {
		id = items[0].id
		have = c.m.get(t, id)
		if t.foreign != nil && !items[0].own {
			if err := t.foreign(t, have); err != nil {
				return err
			}
		}
		for _, it := range items[1:] {
			c.delete(ch.key, it.id)
		}
	}
	if err := c.addReferences(t, ch.row, id, have); err != nil {
		return err
	}
	c.save(t, ch.row, t.layout.New(id), have)
	return nil
}

// addReferences adds the row to the columns of other rows that must refer to it.
func (c *compiler) addReferences(t *table, row nb.Row, id ovsdb.UUID, have ovsdb.Record) error {
	if p := t.parent; p.name != nil {
		if err := c.setParent(id, p.table, *p.name(row), p.column); err != nil {
			return err
		}
	}
	if t.others.names != nil {
		return c.setReferences(t, id, t.others.names(row), c.m.othersOf(t, have))
	}
	return nil
}

// save inserts the row, or edits the existing one.
func (c *compiler) save(t *table, row nb.Row, want, have ovsdb.Record) {
	for i := range t.columns {
		t.columns[i].store(row, want.Column(i))
	}
	var parts []ovsdb.UUID
	if t.part != nil {
		parts = t.part.store(c, row, t.refs(have, t.part.column))
		*t.at(want, t.part.column).(*[]ovsdb.UUID) = parts
	}
	if t.indexed {
		c.indexOwner(row)
	} else {
		*t.at(want, idsColumn).(*map[string]string) = owned(nb.OwnerOf(row))
	}
	if !have.Exists() {
		c.ops = append(c.ops, ovsdb.Insert(want))
		return
	}
	var e edit
	for i := range t.columns {
		t.columns[i].edit(&e, want.Column(i), have.Column(i))
	}
	if t.part != nil {
		e.column(t.part.column, slices.Equal(parts, t.refs(have, t.part.column)))
	}
	if !t.indexed {
		e.owner(nb.OwnerOf(row), t.ids(have))
	}
	c.ops = append(c.ops, e.ops(want, want.UUID())...)
}

// find returns the UUID of a row that another one refers to.
func (c *compiler) find(t nb.Table, name string) (ovsdb.UUID, error) {
	key := nb.Key{Table: t, Name: name}
	if id, made := c.made[key]; made {
		return id, nil
	}
	for _, it := range c.m.candidates(key) {
		if !c.gone[it.id] {
			return it.id, nil
		}
	}
	return "", fmt.Errorf("there is no %s", key)
}

// setParent adds a row to a column of its parent, and removes it from that of another.
func (c *compiler) setParent(id ovsdb.UUID, parent nb.Table, name, column string) error {
	want, err := c.find(parent, name)
	if err != nil {
		return err
	}
	have := c.m.parents[id]
	if want == have {
		return nil
	}
	if have != "" && !c.gone[have] {
		r := c.links.of(parent.String(), have, column)
		r.remove = append(r.remove, id)
	}
	r := c.links.of(parent.String(), want, column)
	r.add = append(r.add, id)
	return nil
}

// setReferences makes a row refer to exactly those other rows.
func (c *compiler) setReferences(t *table, id ovsdb.UUID, names []string, have []ovsdb.UUID) error {
	var want []ovsdb.UUID
	for _, name := range names {
		other, err := c.find(t.others.table, name)
		if err != nil {
			return err
		}
		want = append(want, other)
	}
	for _, other := range want {
		if !slices.Contains(have, other) {
			r, ref := c.reference(t, id, other)
			r.add = append(r.add, ref)
		}
	}
	for _, other := range have {
		if !slices.Contains(want, other) && !(t.others.back && c.gone[other]) {
			r, ref := c.reference(t, id, other)
			r.remove = append(r.remove, ref)
		}
	}
	return nil
}

// reference returns where the reference from row id to row other is stored, and its value: in a
// column of id, or with back in a column of other.
func (c *compiler) reference(t *table, id, other ovsdb.UUID) (*references, ovsdb.UUID) {
	if t.others.back {
		return c.links.of(t.others.table.String(), other, t.others.column), id
	}
	return c.links.of(t.name(), id, t.others.column), other
}

// deleteAll deletes Hairpin's rows of a key.
func (c *compiler) deleteAll(key nb.Key) {
	for _, it := range c.m.candidates(key) {
		if it.own {
			c.delete(key, it.id)
		}
	}
}

// delete deletes one row. A non-root row is garbage-collected when its parent no longer refers to
// it.
func (c *compiler) delete(key nb.Key, id ovsdb.UUID) {
	c.gone[id] = true
	t := c.m.schema.tables[key.Table]
	switch {
	case t.stays:
		c.empty(t, id)
	case t.parent.name != nil:
		if parent := c.m.parents[id]; parent != "" && !c.gone[parent] {
			r := c.links.of(t.parent.table.String(), parent, t.parent.column)
			r.remove = append(r.remove, id)
		}
	default:
		if t.indexed {
			c.dropOwners = append(c.dropOwners, ownerKey(key))
		}
		c.ops = append(c.ops, ovsdb.Delete(t.name()).Row(id))
	}
}

// empty removes Hairpin's values from a row that always stays.
func (c *compiler) empty(t *table, id ovsdb.UUID) {
	want, have := t.layout.New(id), c.m.get(t, id)
	var e edit
	for i := range t.columns {
		t.columns[i].edit(&e, want.Column(i), have.Column(i))
	}
	e.disown(t.ids(have))
	c.ops = append(c.ops, e.ops(want, id)...)
}

// ownerIndex writes owners into NB_Global.
func (c *compiler) ownerIndex() {
	if len(c.setOwners) == 0 && len(c.dropOwners) == 0 {
		return
	}
	if c.global == "" {
		if c.global = c.made[(*nb.Global)(nil).Key()]; c.global == "" {
			c.global = ovsdb.NewUUID()
			c.ops = append(c.ops, ovsdb.Insert(c.m.schema.tables[nb.TableGlobal].layout.New(c.global)))
		}
	}
	var m []ovsdb.Mutation
	for key := range c.setOwners {
		c.dropOwners = append(c.dropOwners, key) // an insert does not overwrite an existing key
	}
	slices.Sort(c.dropOwners)
	m = append(m, ovsdb.DeleteFrom("external_ids", slices.Compact(c.dropOwners)))
	if len(c.setOwners) > 0 {
		m = append(m, ovsdb.InsertInto("external_ids", c.setOwners))
	}
	c.ops = append(c.ops, ovsdb.Mutate("NB_Global", m...).Row(c.global))
}

// indexOwner sets the owner of a row without external_ids.
func (c *compiler) indexOwner(r nb.Row) {
	key, owner := ownerKey(r.Key()), nb.OwnerOf(r).String()
	if have, there := c.m.owners()[key]; there && have == owner {
		return
	}
	c.setOwners[key] = owner
}
