package nbdb

import (
	"context"
	"time"

	"hairpin/ovsdb"
	"hairpin/retry"
)

// deletable returns the Southbound tables of which ovn-northd does not notice that another program
// deletes rows. OVN itself restores rows of other tables: at once, or by ovn-controller's next ARP
// request (MAC_Binding).
func deletable() (tables []ovsdb.Table) {
	for _, name := range []string{"Logical_Flow", "Multicast_Group", "Address_Set", "Static_MAC_Binding",
		"Load_Balancer"} {
		tables = append(tables, ovsdb.Deletions(name))
	}
	return tables
}

const (
	// northdTime is how long ovn-northd may take to delete rows after a change of the Northbound
	// database.
	northdTime = 5 * time.Second
	// recomputeFactor and maxPause limit recomputations if ovn-northd itself may have deleted the
	// rows: the pause before one is this many times the duration of the last one. A recomputation
	// takes half a second with 10 000 Services and service-engine = ovn, else some milliseconds.
	recomputeFactor, maxPause = 100, time.Minute
)

// watchDeletions makes ovn-northd compute the Southbound database again after rows were deleted.
func (t *Target) watchDeletions(ctx context.Context) {
	seen, next := 0, time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.deletions.Changed():
		}
		if t.deletions.Stats().Updates == seen {
			continue // a new connection
		}
		begin := time.Now()
		retry.Sleep(ctx, time.Second) // further rows may follow
		foreign := begin.Sub(*t.nbChanged.Load()) > northdTime
		if !foreign {
			retry.Sleep(ctx, time.Until(next))
		}
		seen, begin = t.deletions.Stats().Updates, time.Now()
		for err := t.Recompute(ctx); err != nil && ctx.Err() == nil; err = t.Recompute(ctx) {
			t.cfg.Logger.Warn("restore deleted rows of OVN's Southbound database", "error", err)
			retry.Sleep(ctx, retry.Last)
		}
		if t.version(northd)(ctx) == nil { // ovn-northd answers only after the recomputation
			next = time.Now().Add(min(recomputeFactor*time.Since(begin), maxPause))
		}
		if foreign && ctx.Err() == nil {
			t.cfg.Logger.Warn("another program deleted rows of OVN's Southbound database: ovn-northd computed them again")
		}
	}
}
