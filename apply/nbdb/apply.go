package nbdb

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"hairpin/apply/late"
	"hairpin/cluster"
	"hairpin/datapath/nb"
	"hairpin/ovsdb"
)

// change is a row to write, or to delete when row is nil.
type change struct {
	key nb.Key
	row nb.Row
}

// owner returns the row's owner, for messages.
func (c change) owner() cluster.Owner {
	if c.row == nil {
		return cluster.Owner{}
	}
	return nb.OwnerOf(c.row)
}

// applyWait limits an Apply whose database becomes unreachable meanwhile.
const applyWait = 30 * time.Second

// sbWait is how long changes wait until ovn-northd has processed earlier ones.
const sbWait = 10 * time.Second

// splits is how many extra transactions an Apply may try, to find rows that the server rejects.
const splits = 64

// Apply makes the changes of d. It adds remote chassis first, then changes the Northbound database
// in one transaction, or in two if logical switches or routers come and others go, see settle. It
// deletes chassis last, after ovn-northd has processed the removal of all references to them.
//
// If the server rejects that transaction, Apply tries it in parts, so that one bad row does not
// block the others. The error names the rows that are not written.
func (t *Target) Apply(ctx context.Context, d nb.Delta) error {
	if d.Empty() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, applyWait)
	defer cancel()
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.refresh(ctx); err != nil {
		return err
	}
	newChassis, rows, oldChassis := order(d)
	budget := splits
	err := t.commit(ctx, t.sb, newChassis, &budget)
	var rowsErr error
	for _, changes := range t.transactions(rows) {
		t.settle(ctx, changes)
		rowsErr = errors.Join(rowsErr, t.commit(ctx, t.nb, changes, &budget))
	}
	if len(oldChassis) == 0 || rowsErr != nil {
		return errors.Join(err, rowsErr)
	}
	if e := t.waitForNorthd(ctx); e != nil {
		return errors.Join(err, fmt.Errorf("wait for ovn-northd before a chassis is removed: %w", e))
	}
	oldErr := t.commit(ctx, t.sb, oldChassis, &budget)
	if err != nil && oldErr == nil {
		err = t.commit(ctx, t.sb, newChassis, &budget) // a deleted chassis may have had the address of a new one
	}
	return errors.Join(err, oldErr)
}

// order sorts the changes: new chassis, rows of the Northbound database, chassis to delete. Rows
// are written after those that they refer to, and deleted before them.
func order(d nb.Delta) (newChassis, rows, oldChassis []change) {
	write := func(m map[nb.Key]nb.Row) {
		for k, r := range m {
			if k.Table == nb.TableChassis {
				newChassis = append(newChassis, change{k, r})
			} else {
				rows = append(rows, change{k, r})
			}
		}
	}
	write(d.Add)
	write(d.Change)
	for k := range d.Delete {
		if k.Table == nb.TableChassis {
			oldChassis = append(oldChassis, change{key: k})
		} else {
			rows = append(rows, change{key: k})
		}
	}
	slices.SortFunc(newChassis, compare)
	slices.SortFunc(rows, compare)
	slices.SortFunc(oldChassis, compare)
	return newChassis, rows, oldChassis
}

func compare(a, b change) int {
	switch {
	case a.row != nil && b.row != nil:
		return a.key.Compare(b.key)
	case a.row == nil && b.row == nil:
		return b.key.Compare(a.key)
	case a.row != nil:
		return -1
	}
	return 1
}

// commit makes the changes in one database, in one transaction unless the server rejects it.
func (t *Target) commit(ctx context.Context, client *ovsdb.Client, changes []change, budget *int) error {
	if len(changes) == 0 {
		return nil
	}
	c := newCompiler(t.model, changes)
	ops, bad := c.compile()
	if len(ops) > 0 {
		late.For(ctx, t.server(client))
		_, err := client.Transact(ctx, ops...)
		switch {
		case err == nil:
		case len(changes) == 1:
			return fmt.Errorf("%s of %s: %w", changes[0].key, changes[0].owner(), err)
		case !rejected(err) || *budget <= 0:
			return err
		default:
			*budget--
			half := len(changes) / 2
			return errors.Join(t.commit(ctx, client, changes[:half], budget),
				t.commit(ctx, client, changes[half:], budget))
		}
	}
	t.updateModel(changes)
	return errors.Join(bad...)
}

// rejected reports whether the server rejected the transaction because of its content.
func rejected(err error) bool {
	var e *ovsdb.TransactError
	return errors.As(err, &e) && (e.Reason == ovsdb.ConstraintViolation || e.Reason == ovsdb.ReferentialViolation)
}

// updateModel updates the model after a transaction, and keeps the wanted rows' pointers for the
// rows written. It signals a change if other rows changed, too.
func (t *Target) updateModel(changes []change) {
	wanted := make(map[nb.Key]nb.Row, len(changes)) // nil: deleted
	for _, c := range changes {
		wanted[c.key] = c.row
	}
	t.model.hints = wanted
	touched := t.model.update(t.nb.View(), t.sb.View())
	t.model.hints = nil
	for _, key := range touched {
		if want, ours := wanted[key]; !ours || t.model.state[key] != want {
			t.changed.Notify()
			return
		}
	}
}

// transactions splits changes of the Northbound database where settle has to wait between them.
func (t *Target) transactions(rows []change) [][]change {
	i := slices.IndexFunc(rows, func(c change) bool { return c.row == nil })
	if added, deleted := t.datapaths(rows); !added || !deleted {
		return [][]change{rows}
	}
	return [][]change{rows[:i], rows[i:]}
}

// datapaths returns whether the changes add logical switches or routers, and whether they delete
// some.
func (t *Target) datapaths(changes []change) (added, deleted bool) {
	for _, c := range changes {
		if c.key.Table == nb.TableSwitch || c.key.Table == nb.TableRouter {
			added = added || c.row != nil && t.model.state[c.key] == nil
			deleted = deleted || c.row == nil
		}
	}
	return added, deleted
}

// settle waits until ovn-northd has processed earlier changes, if they deleted logical switches or
// routers and these changes add some, or the other way round: the ovn-northd of OVN 26.03.1 aborts
// when it processes both at once (OVN commit 0378a953b). The changes are made even if it does not
// answer, because a stopped ovn-northd reads everything anew when it starts.
func (t *Target) settle(ctx context.Context, changes []change) {
	added, deleted := t.datapaths(changes)
	if added && t.deleted || deleted && t.added {
		_ = t.waitForNorthd(ctx)
		t.added, t.deleted = false, false
	}
	t.added, t.deleted = t.added || added, t.deleted || deleted
}

// waitForNorthd waits until ovn-northd has processed the Northbound database.
func (t *Target) waitForNorthd(ctx context.Context) error {
	late.For(ctx, northd)
	ctx, cancel := context.WithTimeout(ctx, sbWait)
	defer cancel()
	return t.sync(ctx, func(g *ovsdb.NBGlobal) int { return g.SBCfg })
}
