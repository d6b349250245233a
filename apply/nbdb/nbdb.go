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
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"hairpin/apply/late"
	"hairpin/apply/unixctl"
	"hairpin/datapath/nb"
	"hairpin/ovsdb"
	"hairpin/signal"
)

// Config describes where OVN is.
type Config struct {
	RunDir string       // has the sockets and pid files of OVN's daemons, such as /run/ovn
	Logger *slog.Logger // nil = no log
}

// Target is the two databases. It implements apply.Target[nb.State, nb.Delta]. Its methods may be
// called at any time.
type Target struct {
	cfg      Config
	nb, sb   *ovsdb.Client
	progress *ovsdb.Client // nb_cfg and its replies, on its own connection, so that progress signals no change
	// deletions counts deleted rows of the tables of deletable.
	deletions *ovsdb.Client
	nbChanged atomic.Pointer[time.Time] // when rows of the Northbound database changed
	changed   signal.Signal
	daemons   []*late.Daemon
	stop      context.CancelFunc
	tasks     sync.WaitGroup

	mu             sync.Mutex
	model          *model
	added, deleted bool // logical switches or routers, since settle waited
}

// Open starts mirroring the databases. It does not wait for them: Read does.
func Open(c Config) (*Target, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	ctx, stop := context.WithCancel(context.Background())
	t := &Target{cfg: c, changed: signal.New(), stop: stop, model: newModel()}
	t.nbChanged.Store(new(time.Now()))
	var err error
	open := func(socket, database string, tables ...ovsdb.Table) *ovsdb.Client {
		client, e := ovsdb.Open(ovsdb.Config{Endpoint: "unix:" + filepath.Join(c.RunDir, socket), Database: database,
			Tables: tables, Logger: c.Logger})
		err = errors.Join(err, e)
		return client
	}
	t.nb = open("ovnnb_db.sock", "OVN_Northbound", t.model.schema.mirrors(false)...)
	t.sb = open("ovnsb_db.sock", "OVN_Southbound", t.model.schema.mirrors(true)...)
	t.progress = open("ovnnb_db.sock", "OVN_Northbound",
		ovsdb.Mirror[ovsdb.NBGlobal]("nb_cfg", "sb_cfg", "hv_cfg", "options"))
	t.deletions = open("ovnsb_db.sock", "OVN_Southbound", deletable()...)
	if err != nil {
		t.Close()
		return nil, fmt.Errorf("open OVN's databases: %w", err)
	}
	t.daemons = []*late.Daemon{{Name: northbound, Ask: t.nb.Echo}, {Name: southbound, Ask: t.sb.Echo},
		{Name: northd, Ask: t.version(northd)}, {Name: controller, Ask: t.version(controller)}}
	t.tasks.Go(func() { t.watch(ctx) })
	t.tasks.Go(func() { t.watchDeletions(ctx) })
	t.tasks.Go(func() { late.Watch(ctx, t.daemons, t.changed.Notify) })
	return t, nil
}

// Close closes the connections.
func (t *Target) Close() {
	t.stop()
	for _, c := range []*ovsdb.Client{t.nb, t.sb, t.progress, t.deletions} {
		if c != nil {
			c.Close()
		}
	}
	t.tasks.Wait()
}

// watch combines the change signals of both databases.
func (t *Target) watch(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.nb.Changed():
			t.nbChanged.Store(new(time.Now()))
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

// Changed signals that a mirrored column changed, that a mirror was rebuilt, or that a daemon
// stopped responding or responds again. It does not signal changes by Apply that were read back as
// wanted.
func (t *Target) Changed() <-chan struct{} { return t.changed.C() }

// Daemons of OVN. Read and Apply wait for the servers of the databases.
const (
	northbound = "ovsdb-server of OVN_Northbound"
	southbound = "ovsdb-server of OVN_Southbound"
	northd     = "ovn-northd"
	controller = "ovn-controller"
)

// version returns a request of a daemon for its version.
func (t *Target) version(daemon string) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := unixctl.Ask(ctx, t.cfg.RunDir, daemon, "version")
		return err
	}
}

// Recompute makes ovn-northd compute the Southbound database again. By itself it computes what
// depends on changed rows, and leaves deleted rows deleted (see deletable).
func (t *Target) Recompute(ctx context.Context) error {
	_, err := unixctl.Ask(ctx, t.cfg.RunDir, northd, "inc-engine/recompute")
	return err
}

// Daemons returns the daemons of OVN that the node needs.
func (t *Target) Daemons() []*late.Daemon { return t.daemons }

// Unresponsive returns an error while one of the daemons does not respond. The databases can still
// be read and changed, unless it is their server.
func (t *Target) Unresponsive() error { return late.Unresponsive(t.daemons) }

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
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	for _, c := range []*ovsdb.Client{t.nb, t.sb} {
		late.For(ctx, t.server(c))
		if err := c.WaitFor(ctx, func(ovsdb.View) bool { return c.Settled() }); err != nil {
			return err
		}
	}
	t.model.update(t.nb.View(), t.sb.View())
	return nil
}

// server returns the name of the server that a client is connected to.
func (t *Target) server(c *ovsdb.Client) string {
	if c == t.sb {
		return southbound
	}
	return northbound
}
