// Package nbdb makes a node's OVN databases equal to an nb.State: the Northbound database, and the
// rows of remote chassis in the Southbound one.
//
// A row is Hairpin's when its external_ids have the key claims.KeyOwner. Tables without
// external_ids (Load_Balancer_Group, Static_MAC_Binding) have their owners in the external_ids of
// NB_Global, under the key of the row. In shared maps (options, other_config) of Hairpin's rows,
// the keys in tables.go are Hairpin's. Everything else is neither read nor written, with one
// exception: a wanted row takes over a row of the same name that has no owner, because OVN allows
// only one row per name.
//
// If nb's types cannot represent one of Hairpin's rows (a port disabled by hand, two rows of one
// name), Read returns it with an owner of kind "altered". It equals no wanted row, so it is
// repaired.
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

// Config has the addresses of the databases.
type Config struct {
	Northbound string // endpoint of OVN_Northbound, such as "unix:/run/ovn/ovnnb_db.sock"
	Southbound string // endpoint of OVN_Southbound
	Logger     *slog.Logger
}

// Target is the two databases. It implements apply.Target[nb.State, nb.Delta]. Its methods may be
// called at any time.
type Target struct {
	nb, sb   *ovsdb.Client
	progress *ovsdb.Client // nb_cfg and its replies, on its own connection, so that progress signals no change
	changed  signal.Signal
	stop     chan struct{}
	tasks    sync.WaitGroup

	mu             sync.Mutex
	model          *model
	added, deleted bool // logical switches or routers, since settle waited
}

// Open starts mirroring the databases. It does not wait for them: Read does.
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

// Close closes the connections.
func (t *Target) Close() {
	for _, c := range []*ovsdb.Client{t.nb, t.sb, t.progress} {
		if c != nil {
			c.Close()
		}
	}
	close(t.stop)
	t.tasks.Wait()
}

// watch combines the change signals of both databases.
func (t *Target) watch() {
	for {
		select {
		case <-t.stop:
			return
		case <-t.nb.Changed():
		case <-t.sb.Changed():
		}
		if t.outdated() {
			t.changed.Notify()
		}
	}
}

// outdated reports whether the databases differ from the model, which includes finished Applies.
func (t *Target) outdated() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.model.nb != t.nb.View() || t.model.sb != t.sb.View()
}

// Changed signals that a mirrored column changed, or that a mirror was rebuilt. It does not signal
// changes by Apply that were read back as wanted.
func (t *Target) Changed() <-chan struct{} { return t.changed.C() }

// server is the daemon that Read and Apply wait for.
const server = "ovsdb-server of OVN"

// grace is how long a database may be unreachable, such as during a restart of its server, before a
// Read or Apply fails.
const grace = 500 * time.Millisecond

// Read returns Hairpin's rows. It fails when a database is not connected or has not replied to an
// earlier Apply yet, so that the result is not older than the call.
func (t *Target) Read(ctx context.Context) (nb.State, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.refresh(ctx); err != nil {
		return nil, err
	}
	return t.model.share(), nil
}

// ShareWanted records that want equals the real state. Later Reads return want's rows, as long as
// they are unchanged, so that a comparison compares pointers.
func (t *Target) ShareWanted(want nb.State) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.model.adopt(want)
}

// refresh updates the model.
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
