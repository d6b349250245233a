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

// owner is for messages.
func (c change) owner() cluster.Owner {
	if c.row == nil {
		return cluster.Owner{}
	}
	return c.row.Why()
}

// applyWait bounds an Apply whose database goes away meanwhile.
const applyWait = 30 * time.Second

// sbWait is how long ovn-northd may take to forget a remote port, before the removal of its chassis
// is given up.
const sbWait = 10 * time.Second

// splits is how many transactions more than one an Apply may try, to find rows that the server
// refuses.
const splits = 64

// Apply makes the changes of d. Remote chassis come first, then the Northbound database changes in
// one transaction, and chassis go last, after ovn-northd has seen that nothing names them any more.
//
// When the server refuses that transaction, it is tried in parts, so that one bad row does not keep
// the others away. The error names the rows that are not written.
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
	come, rows, leave := order(d)
	budget := splits
	err := t.commit(ctx, t.sb, come, &budget)
	rowsErr := t.commit(ctx, t.nb, rows, &budget)
	if len(leave) == 0 || rowsErr != nil {
		return errors.Join(err, rowsErr)
	}
	if e := t.forgotten(ctx); e != nil {
		return errors.Join(err, e)
	}
	leaveErr := t.commit(ctx, t.sb, leave, &budget)
	if err != nil && leaveErr == nil {
		err = t.commit(ctx, t.sb, come, &budget) // a chassis that left may have had the address of one that comes
	}
	return errors.Join(err, leaveErr)
}

// order sorts the changes: chassis that come, rows of the Northbound database, chassis that leave.
// Rows are written after those that they name, and deleted before.
func order(d nb.Delta) (come, rows, leave []change) {
	write := func(m map[nb.Key]nb.Row) {
		for k, r := range m {
			if k.Table == nb.TableChassis {
				come = append(come, change{k, r})
			} else {
				rows = append(rows, change{k, r})
			}
		}
	}
	write(d.Add)
	write(d.Change)
	for k := range d.Delete {
		if k.Table == nb.TableChassis {
			leave = append(leave, change{key: k})
		} else {
			rows = append(rows, change{key: k})
		}
	}
	slices.SortFunc(come, compare)
	slices.SortFunc(rows, compare)
	slices.SortFunc(leave, compare)
	return come, rows, leave
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

// commit makes the changes in one database, in one transaction unless the server refuses it.
func (t *Target) commit(ctx context.Context, client *ovsdb.Client, changes []change, budget *int) error {
	if len(changes) == 0 {
		return nil
	}
	c := newCompiler(t.model, changes)
	ops, bad := c.compile()
	if len(ops) > 0 {
		_, err := client.Transact(ctx, ops...)
		switch {
		case err == nil:
		case len(changes) == 1:
			return fmt.Errorf("%s of %s: %w", changes[0].key, changes[0].owner(), err)
		case !refused(err) || *budget <= 0:
			return err
		default:
			*budget--
			half := len(changes) / 2
			return errors.Join(t.commit(ctx, client, changes[:half], budget),
				t.commit(ctx, client, changes[half:], budget))
		}
	}
	t.follow(changes)
	return errors.Join(bad...)
}

// refused tells whether the server had the transaction and found fault with it.
func refused(err error) bool {
	var e *ovsdb.TransactError
	return errors.As(err, &e) && (e.Reason == ovsdb.ConstraintViolation || e.Reason == ovsdb.ReferentialViolation)
}

// follow brings the model up to date after a transaction, and keeps the rows that were wanted as
// those that were found. When others changed something as well, that is told.
func (t *Target) follow(changes []change) {
	wanted := make(map[nb.Key]nb.Row, len(changes)) // nil: to be gone
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

// forgotten waits until ovn-northd has done what is in the Northbound database.
func (t *Target) forgotten(ctx context.Context) error {
	late.For(ctx, "ovn-northd")
	defer late.For(ctx, server)
	ctx, cancel := context.WithTimeout(ctx, sbWait)
	defer cancel()
	err := t.sync(ctx, func(g *ovsdb.NBGlobal) int { return g.SBCfg })
	if err != nil {
		return fmt.Errorf("wait for ovn-northd before a chassis is removed: %w", err)
	}
	return nil
}
