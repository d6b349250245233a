package nbdb

import (
	"crypto/sha256"
	"fmt"
	"slices"

	"hairpin/datapath/nb"
	"hairpin/ovsdb"
)

// compiler makes the operations of a transaction.
type compiler struct {
	m       *model
	changes []change
	made    map[nb.Key]ovsdb.UUID // rows that the transaction makes
	gone    map[ovsdb.UUID]bool   // rows that it deletes
	ops     []ovsdb.Op
	links   links

	global ovsdb.UUID        // of NB_Global
	enter  map[string]string // owners to note in NB_Global
	leave  []string          // and to strike out
}

func newCompiler(m *model, changes []change) *compiler {
	return &compiler{m: m, changes: changes, made: map[nb.Key]ovsdb.UUID{}, gone: map[ovsdb.UUID]bool{}, links: links{}, enter: map[string]string{}}
}

// compile gives the operations, and what is wrong with the rows that are left out.
func (c *compiler) compile() ([]ovsdb.Op, []error) {
	for _, ch := range c.changes {
		items := c.m.own(ch.key)
		switch {
		case ch.row != nil && len(items) == 0:
			c.made[ch.key] = c.newID(ch.key)
		case ch.row == nil:
			for _, it := range items {
				c.gone[it.id] = it.own
			}
		}
	}
	if row := ovsdb.First[ovsdb.NBGlobal](c.m.nb); row != nil {
		c.global = row.UUID
	}
	var bad []error
	for _, ch := range c.changes {
		var err error
		if ch.row == nil {
			c.deleteAll(ch.key)
		} else if err = nb.CheckKeys(ch.row); err == nil {
			err = c.write(ch)
		}
		if err != nil {
			bad = append(bad, fmt.Errorf("%s of %s: %w", ch.key, ch.owner(), err))
		}
	}
	c.ledger()
	return append(c.ops, c.links.ops()...), bad
}

// newID gives the UUID of a new row. That of a router or switch follows from its name, so one that was deleted, or was
// lost with the whole database, comes back as the same: ovn-northd keeps its datapath then. With another UUID it wants
// to remove the old datapath; in 25.03 it does not move a router's rows of Static_MAC_Binding to the new one, the
// Southbound database refuses the removal ("remaining reference"), and from then on everything that northd writes.
func (c *compiler) newID(key nb.Key) ovsdb.UUID {
	if key.Table != nb.TableRouter && key.Table != nb.TableSwitch {
		return ovsdb.NewUUID()
	}
	b := sha256.Sum256([]byte("hairpin\x00" + key.Table.String() + "\x00" + key.Name))
	b[6] = b[6]&0x0f | 0x80 // version 8: of a meaning of our own (RFC 9562)
	b[8] = b[8]&0x3f | 0x80
	id := ovsdb.UUID(fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:16]))
	if c.m.items[id] != nil {
		return ovsdb.NewUUID() // somebody gave that row another name
	}
	return id
}

// write makes a row, or changes the one that is there, and deletes further ones of the same key.
func (c *compiler) write(ch change) error {
	items := c.m.own(ch.key)
	id, fresh := c.made[ch.key]
	if !fresh {
		id = items[0].id
		for _, it := range items[1:] {
			c.delete(ch.key, it.id)
		}
	}
	switch r := ch.row.(type) {
	case *nb.Global:
		return c.writeGlobal(r, id, fresh)
	case *nb.Chassis:
		return c.chassis(r, id, fresh)
	case *nb.AddressSet:
		return c.addressSet(r, id, fresh)
	case *nb.Group:
		return c.group(r, id, fresh)
	case *nb.Router:
		return c.router(r, id, fresh)
	case *nb.RouterPort:
		return c.routerPort(r, id, fresh)
	case *nb.Switch:
		return c.lswitch(r, id, fresh)
	case *nb.SwitchPort:
		return c.switchPort(r, id, fresh)
	case *nb.QoS:
		return c.qos(r, id, fresh)
	case *nb.MACBinding:
		return c.macBinding(r, id, fresh)
	case *nb.Route:
		return c.route(r, id, fresh)
	case *nb.Policy:
		return c.policy(r, id, fresh)
	case *nb.NAT:
		return c.nat(r, id, fresh)
	case *nb.LoadBalancer:
		return c.loadBalancer(r, id, fresh)
	}
	return fmt.Errorf("nbdb does not know a %T", ch.row)
}

// save inserts the row, or makes the edit that leads to it.
func (c *compiler) save(row ovsdb.Row, id ovsdb.UUID, fresh bool, e *edit) {
	if fresh {
		c.ops = append(c.ops, ovsdb.Insert(row))
	} else {
		c.ops = append(c.ops, e.ops(row, id)...)
	}
}

// find gives the UUID of a row that another one names.
func (c *compiler) find(t nb.Table, name string) (ovsdb.UUID, error) {
	key := nb.Key{Table: t, Name: name}
	if id, made := c.made[key]; made {
		return id, nil
	}
	for _, it := range c.m.own(key) {
		if !c.gone[it.id] {
			return it.id, nil
		}
	}
	return "", fmt.Errorf("there is no %s", key)
}

// place puts a row into a column of its parent, and takes it out of that of another.
func (c *compiler) place(id ovsdb.UUID, parent nb.Table, name, column string) error {
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

// join makes a row a member of the groups of that name and of no other: column of the row has the groups, or, with
// back, column of the groups has the row.
func (c *compiler) join(row nb.Row, id ovsdb.UUID, names []string, have []ovsdb.UUID, column string, back bool) error {
	var want []ovsdb.UUID
	for _, name := range names {
		g, err := c.find(nb.TableGroup, name)
		if err != nil {
			return err
		}
		want = append(want, g)
	}
	for _, g := range want {
		if !slices.Contains(have, g) {
			r, ref := c.membership(row, id, g, column, back)
			r.add = append(r.add, ref)
		}
	}
	for _, g := range have {
		if !slices.Contains(want, g) && !(back && c.gone[g]) {
			r, ref := c.membership(row, id, g, column, back)
			r.remove = append(r.remove, ref)
		}
	}
	return nil
}

func (c *compiler) membership(row nb.Row, id, group ovsdb.UUID, column string, back bool) (*references, ovsdb.UUID) {
	if back {
		return c.links.of(nb.TableGroup.String(), group, column), id
	}
	return c.links.of(row.Key().Table.String(), id, column), group
}

// deleteAll deletes the rows of a key that are ours.
func (c *compiler) deleteAll(key nb.Key) {
	for _, it := range c.m.own(key) {
		if it.own {
			c.delete(key, it.id)
		}
	}
}

// delete deletes one row. A row that only its parent keeps alive goes when the parent lets go of it.
func (c *compiler) delete(key nb.Key, id ovsdb.UUID) {
	c.gone[id] = true
	switch key.Table {
	case nb.TableGlobal:
		c.deleteGlobal(id)
	case nb.TableRouterPort:
		c.letGo(id, "Logical_Router", "ports")
	case nb.TableRoute:
		c.letGo(id, "Logical_Router", "static_routes")
	case nb.TablePolicy:
		c.letGo(id, "Logical_Router", "policies")
	case nb.TableNAT:
		c.letGo(id, "Logical_Router", "nat")
	case nb.TableSwitchPort:
		c.letGo(id, "Logical_Switch", "ports")
	case nb.TableQoS:
		c.letGo(id, "Logical_Switch", "qos_rules")
	case nb.TableGroup, nb.TableMACBinding:
		c.leave = append(c.leave, ledgerKey(key))
		c.ops = append(c.ops, ovsdb.Delete(key.Table.String()).Row(id))
	case nb.TableChassis, nb.TableAddressSet, nb.TableRouter, nb.TableSwitch, nb.TableLoadBalancer:
		c.ops = append(c.ops, ovsdb.Delete(key.Table.String()).Row(id))
	}
}

func (c *compiler) letGo(id ovsdb.UUID, table, column string) {
	if parent := c.m.parents[id]; parent != "" && !c.gone[parent] {
		r := c.links.of(table, parent, column)
		r.remove = append(r.remove, id)
	}
}

// ledger writes owners into NB_Global.
func (c *compiler) ledger() {
	if len(c.enter) == 0 && len(c.leave) == 0 {
		return
	}
	if c.global == "" {
		if c.global = c.made[(*nb.Global)(nil).Key()]; c.global == "" {
			c.global = ovsdb.NewUUID()
			c.ops = append(c.ops, ovsdb.Insert(ovsdb.NBGlobal{UUID: c.global}))
		}
	}
	var m []ovsdb.Mutation
	for key := range c.enter {
		c.leave = append(c.leave, key) // a key that is there keeps its value
	}
	slices.Sort(c.leave)
	m = append(m, ovsdb.DeleteFrom("external_ids", slices.Compact(c.leave)))
	if len(c.enter) > 0 {
		m = append(m, ovsdb.InsertInto("external_ids", c.enter))
	}
	c.ops = append(c.ops, ovsdb.Mutate("NB_Global", m...).Row(c.global))
}

// note enters the owner of a row without external_ids.
func (c *compiler) note(r nb.Row) {
	key, owner := ledgerKey(r.Key()), r.Why().String()
	if row := ovsdb.First[ovsdb.NBGlobal](c.m.nb); row != nil {
		if have, there := row.ExternalIDs[key]; there && have == owner {
			return
		}
	}
	c.enter[key] = owner
}

func (c *compiler) writeGlobal(r *nb.Global, id ovsdb.UUID, fresh bool) error {
	row := ovsdb.NBGlobal{UUID: id, Name: r.Name, Options: r.Options, ExternalIDs: owned(r.Owner)}
	var e edit
	if !fresh {
		have := get[ovsdb.NBGlobal](c.m.nb, id)
		e.column("name", r.Name == have.Name)
		e.options("options", nb.TableGlobal, r.Options, have.Options)
		e.owner(r.Owner, have.ExternalIDs)
	}
	c.save(row, id, fresh, &e)
	return nil
}

// deleteGlobal takes what is ours out of a row that always stays.
func (c *compiler) deleteGlobal(id ovsdb.UUID) {
	have := get[ovsdb.NBGlobal](c.m.nb, id)
	var e edit
	e.column("name", have.Name == "")
	e.options("options", nb.TableGlobal, nil, have.Options)
	e.disown(have.ExternalIDs)
	c.ops = append(c.ops, e.ops(ovsdb.NBGlobal{}, id)...)
}
