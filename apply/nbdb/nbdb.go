// Package nbdb makes a node's OVN databases equal to an nb.State: the Northbound database, and the
// rows of remote chassis in the Southbound one.
//
// A row is ours when its external_ids have the key claims.KeyOwner. Tables without external_ids
// (Load_Balancer_Group, Static_MAC_Binding) have their owners in the external_ids of NB_Global,
// under the key of the row. In shared maps (options, other_config) the keys that tables.go names
// are ours, in rows that are ours. Everything else is neither read nor written, with one exception:
// a wanted row takes over a row of the same name that has no owner, since OVN allows one of a name
// only.
//
// A row of ours that no type of nb can express (a port disabled by hand, two rows of one name) is
// read as a row whose owner is of kind "altered": it equals no wanted row, so it is repaired.
package nbdb

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"hairpin/apply/late"
	"hairpin/datapath/nb"
	"hairpin/ovsdb"
	"hairpin/signal"
)

// Config says where the databases are.
type Config struct {
	Northbound string // endpoint of OVN_Northbound, such as "unix:/run/ovn/ovnnb_db.sock"
	Southbound string // endpoint of OVN_Southbound
	Logger     *slog.Logger
}

// Target is the two databases. It implements apply.Target[nb.State, nb.Delta]. Its methods may be
// called at any time.
type Target struct {
	nb, sb   *ovsdb.Client
	progress *ovsdb.Client // nb_cfg and what follows it, apart, so that progress is no change
	changed  signal.Signal
	stop     chan struct{}
	tasks    sync.WaitGroup

	mu    sync.Mutex
	model *model
}

// Open starts to mirror the databases. It does not wait for them: Read does.
func Open(c Config) (*Target, error) {
	t := &Target{changed: signal.New(), stop: make(chan struct{}), model: newModel()}
	var err error
	open := func(endpoint, database string, tables ...ovsdb.Table) *ovsdb.Client {
		client, e := ovsdb.Open(ovsdb.Config{Endpoint: endpoint, Database: database, Tables: tables, Logger: c.Logger})
		err = errors.Join(err, e)
		return client
	}
	t.nb = open(c.Northbound, "OVN_Northbound", t.model.schema.mirrors(false)...)
	t.sb = open(c.Southbound, "OVN_Southbound", t.model.schema.mirrors(true)...)
	t.progress = open(c.Northbound, "OVN_Northbound",
		ovsdb.Mirror[ovsdb.NBGlobal]("nb_cfg", "sb_cfg", "hv_cfg", "options"))
	if err != nil {
		t.Close()
		return nil, fmt.Errorf("open OVN's databases: %w", err)
	}
	t.tasks.Go(t.watch)
	return t, nil
}

// Close ends the connections.
func (t *Target) Close() {
	for _, c := range []*ovsdb.Client{t.nb, t.sb, t.progress} {
		if c != nil {
			c.Close()
		}
	}
	close(t.stop)
	t.tasks.Wait()
}

// watch makes one notice of those of both databases.
func (t *Target) watch() {
	for {
		select {
		case <-t.stop:
			return
		case <-t.nb.Changed():
		case <-t.sb.Changed():
		}
		if t.news() {
			t.changed.Notify()
		}
	}
}

// news tells whether the databases are other than the model has them. What Apply did is in the
// model when it returns.
func (t *Target) news() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.model.nb != t.nb.View() || t.model.sb != t.sb.View()
}

// Changed tells that a mirrored column of one of the databases changed, or that one was built anew.
// What Apply changed, and found to be as it was wanted, is not told.
func (t *Target) Changed() <-chan struct{} { return t.changed.C() }

// server is whom Read and Apply wait for.
const server = "ovsdb-server of OVN"

// grace is how long a database may be away, such as while its server restarts, before a Read or
// Apply fails.
const grace = 500 * time.Millisecond

// Read gives the rows that are ours. It fails when one of the databases is not connected, or has
// not answered an earlier Apply yet, so that what it gives is not older than the call.
func (t *Target) Read(ctx context.Context) (nb.State, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.refresh(ctx); err != nil {
		return nil, err
	}
	return t.model.share(), nil
}

// Adopt tells that want is equal to what there is. The rows of want are given back by later Reads,
// as long as they are not changed, so that a comparison with them is one of pointers.
func (t *Target) Adopt(want nb.State) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.model.adopt(want)
}

// refresh brings the model up to date.
func (t *Target) refresh(ctx context.Context) error {
	late.For(ctx, server)
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	for _, c := range []*ovsdb.Client{t.nb, t.sb} {
		if err := c.WaitFor(ctx, func(ovsdb.View) bool { return c.Settled() }); err != nil {
			return err
		}
	}
	t.model.update(t.nb.View(), t.sb.View())
	return nil
}
