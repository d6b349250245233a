// Package ofctl makes a node's Open vSwitch equal to an ovs.State: keys of external_ids, bridges
// and ports in its database, OpenFlow flows and groups, and the tunnel neighbours of the userspace
// datapath.
//
// These are Hairpin's:
//
//   - the keys named in Config,
//   - the bridges whose row has claims.KeyBridge in its external_ids, with all their groups,
//   - the ports whose row has claims.KeyOwner there,
//   - on these bridges and the gateway bridge, the flows whose cookie has claims.Cookie in the bits
//     of claims.CookieMask,
//   - the names of tables in rows of Flow_Table with claims.KeyTable.
//
// A wanted bridge or port takes over one of the same name. A wanted flow takes over one of the same
// table, priority and match. Open vSwitch can have only one of each. Tunnel neighbours are a cache
// that the switch fills, too: unwanted ones stay until they expire.
//
// A flow.Flow has port names, an OpenFlow flow has port numbers. Each Read and Apply takes the
// numbers from the database, so a recreated port with another number gets its flows at once.
// ovs-ofctl itself could translate only the first 15 characters of a name.
//
// Package vsctl has the rows of the database, as values and as operations.
package ofctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"time"

	"hairpin/apply"
	"hairpin/apply/late"
	"hairpin/apply/ofctl/vsctl"
	"hairpin/datapath/ovs"
	"hairpin/ovsdb"
	"hairpin/retry"
	"hairpin/signal"
)

var _ apply.Target[ovs.State, ovs.Delta] = (*Target)(nil)

// Daemons that Read and Apply wait for.
const (
	serverName   = "ovsdb-server of Open vSwitch"
	vswitchdName = "ovs-vswitchd"
)

// Config describes where Open vSwitch is and which of its objects are Hairpin's.
type Config struct {
	Bridge   string   // the gateway bridge
	Settings []string // Hairpin's keys in Open_vSwitch's external_ids
	PortKeys []string // Hairpin's keys in the external_ids of its ports' Interfaces; empty = iface-id
	// TunnelBridge is a bridge that tunnels may use as output instead of Bridge. Configured routes
	// over it are Hairpin's.
	TunnelBridge string
	// Integration is the bridge whose flows ovn-controller writes; empty = not checked.
	Integration string
	// Recompute makes ovn-northd write the logical flows again from which ovn-controller computes
	// those of Integration; nil = not possible.
	Recompute func(context.Context) error
	RunDir    string // as Open vSwitch's daemons see it; empty = /run/openvswitch
	// Path translates a path of the node to a path of this process; nil = they are equal.
	Path func(inNode string) string
	// Command prepares a command that runs in the node and ends with ctx; nil =
	// exec.CommandContext.
	Command func(ctx context.Context, args ...string) *exec.Cmd
	Logger  *slog.Logger // nil: none
}

// Target is Open vSwitch. Its methods are safe for concurrent use.
type Target struct {
	cfg     Config
	vsctl   vsctl.Config // the part of cfg about the database
	log     *slog.Logger
	db      *ovsdb.Client
	changed signal.Signal
	stop    context.CancelFunc
	tasks   sync.WaitGroup
	watch   func(name string) *bridge // starts to monitor a bridge

	mu      sync.Mutex // one Read or Apply at a time
	bridges map[string]*bridge
	cached  cachedContent

	integration integration

	daemons []*late.Daemon // the server of the database first
}

// Open starts to monitor Open vSwitch. It does not wait for it: Read does.
func Open(cfg Config) (*Target, error) {
	if cfg.RunDir == "" {
		cfg.RunDir = "/run/openvswitch"
	}
	if len(cfg.PortKeys) == 0 {
		cfg.PortKeys = []string{"iface-id"}
	}
	if cfg.Path == nil {
		cfg.Path = func(p string) string { return p }
	}
	if cfg.Command == nil {
		cfg.Command = command
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	db, err := ovsdb.Open(ovsdb.Config{
		Endpoint: "unix:" + cfg.Path(filepath.Join(cfg.RunDir, "db.sock")),
		Database: "Open_vSwitch",
		Tables: []ovsdb.Table{
			ovsdb.Mirror[ovsdb.OpenVSwitch]("bridges", "datapaths", "next_cfg", "cur_cfg", "other_config",
				"external_ids"),
			ovsdb.Mirror[ovsdb.Bridge]("name", "ports", "fail_mode", "datapath_type", "flow_tables", "external_ids"),
			ovsdb.Mirror[ovsdb.FlowTable]("name", "flow_limit", "overflow_policy", "groups", "prefixes",
				"external_ids"),
			ovsdb.Mirror[ovsdb.Datapath]("ct_zones"),
			ovsdb.Mirror[ovsdb.CTZone]("limit", "timeout_policy", "external_ids"),
			ovsdb.Mirror[ovsdb.Port]("name", "interfaces", "external_ids"),
			ovsdb.Mirror[ovsdb.Interface]("name", "type", "options", "mac", "mtu_request", "ofport", "external_ids"),
		},
		Logger: cfg.Logger,
	})
	if err != nil {
		return nil, fmt.Errorf("open Open vSwitch: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	t := &Target{cfg: cfg, vsctl: vsctl.Config{Bridge: cfg.Bridge, Settings: cfg.Settings, PortKeys: cfg.PortKeys},
		log: cfg.Logger, db: db, changed: signal.New(), stop: stop}
	t.integration.rewrites = retry.Backoff{Min: firstRewrite, Max: lastRewrite}
	t.watch = func(name string) *bridge {
		b := &bridge{Target: t, name: name,
			monitor: newMonitor(cfg, name, t.log.With("bridge", name), t.changed.Notify), key: t.vsctl.Key(name)}
		life, forget := context.WithCancel(ctx)
		b.forget = forget
		t.tasks.Go(func() { b.monitor.run(life) })
		return b
	}
	t.bridges = map[string]*bridge{cfg.Bridge: t.watch(cfg.Bridge)}
	t.tasks.Go(func() { t.watchRows(ctx) })
	version := func(ctx context.Context) error {
		_, err := t.vswitchd(ctx, "version")
		return err
	}
	t.daemons = []*late.Daemon{{Name: serverName, Ask: db.Echo}, {Name: vswitchdName, Ask: version}}
	t.tasks.Go(func() { late.Watch(ctx, t.daemons, t.changed.Notify) })
	t.tasks.Go(func() { retry.Every(ctx, checkInterval, func() { t.checkIntegration(ctx) }) })
	return t, nil
}

// Close stops monitoring. Open vSwitch keeps its configuration.
func (t *Target) Close() {
	t.stop()
	t.db.Close()
	t.tasks.Wait()
}

// Changed signals:
//
//   - another program changed flows of a bridge,
//   - a relevant row of the database changed, also by this Target,
//   - ovs-vswitchd went away or came back,
//   - ovs-vswitchd or its database is running but does not respond.
func (t *Target) Changed() <-chan struct{} { return t.changed.C() }

// watchRows signals database changes that affect Read or Apply. It ignores others (pods' ports).
func (t *Target) watchRows(ctx context.Context) {
	var last vsctl.Content
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.db.Changed():
		}
		now := t.vsctl.Read(t.db.View())
		if !reflect.DeepEqual(now, last) {
			last = now
			t.changed.Notify()
		}
	}
}

// Times of the checks of the integration bridge.
const (
	checkInterval = 2 * time.Second // between two of them
	checkLimit    = time.Second     // for one
)

// Daemons returns the daemons of Open vSwitch.
func (t *Target) Daemons() []*late.Daemon { return t.daemons }

// Unresponsive returns a *late.Waits while the database server does not respond. Flows can still be
// read and changed. Without ovs-vswitchd, Read fails.
func (t *Target) Unresponsive() error { return t.daemons[0].Unresponsive() }

// Read returns Hairpin's part of Open vSwitch. It fails while ovs-vswitchd does not run or has no
// such bridge.
func (t *Target) Read(ctx context.Context) (ovs.State, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r, err := t.rows(ctx)
	if err != nil {
		return ovs.State{}, err
	}
	s := ovs.State{Bridge: t.cfg.Bridge, Bridges: r.Bridges, Settings: r.Settings, Ports: r.Ports, Named: r.Named}
	// At the same time, because each waits for a reply: of ovs-vswitchd about one bridge, say.
	list := t.updateBridges(r)
	found, errs := make([]*content, len(list)), make([]error, len(list)+2)
	var tasks sync.WaitGroup
	for i, b := range list {
		tasks.Go(func() { found[i], errs[i] = b.read(ctx, r.Numbers[b.name]) })
	}
	tasks.Go(func() { s.TunnelNeighbors, errs[len(list)] = t.readNeighbors(ctx) })
	tasks.Go(func() { s.TunnelRoutes, errs[len(list)+1] = t.readRoutes(ctx) })
	tasks.Wait()
	for i, b := range list {
		switch {
		case errs[i] != nil:
		case found[i] != nil:
			t.cached.replace(b.key, *found[i])
		default:
			b.renumber(r.Numbers[b.name])
		}
		s.Unknown = append(s.Unknown, slices.SortedFunc(maps.Keys(b.cache.unknown),
			func(x, y ovs.Unknown) int { return cmp.Compare(x.Flow, y.Flow) })...)
	}
	if err := errors.Join(errs...); err != nil {
		return ovs.State{}, err
	}
	s.Flows, s.Groups = t.cached.flows, t.cached.groups
	s.NoFlows = t.readIntegration(ctx)
	if len(s.TunnelRoutes) > 0 {
		s.TunnelBridge = t.cfg.TunnelBridge
	}
	return s, nil
}

// ShareWanted makes later Reads return want's flows and groups where those that were read are
// equal, so that comparing them takes no time. While a Read runs it does nothing; a later call does
// it.
func (t *Target) ShareWanted(want ovs.State) {
	if t.mu.TryLock() {
		defer t.mu.Unlock()
		t.cached.adopt(want)
	}
}

// Apply makes the changes of d: one transaction of the database, one bundle of flows and groups for
// each bridge, one command for each tunnel neighbour and route. An error in one does not prevent
// the others.
//
// Apply leaves out objects on bridges or ports that are missing or have no number yet. The error is
// an *apply.Waiting when it made all other changes.
func (t *Target) Apply(ctx context.Context, d ovs.Delta) error {
	if d.Empty() {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if d.Bridge != "" && d.Bridge != t.cfg.Bridge {
		return fmt.Errorf("the flows are for bridge %s, not for %s", d.Bridge, t.cfg.Bridge)
	}
	errBridges := t.applyBridges(ctx, d.Bridges)
	r, err := t.rows(ctx)
	if err != nil {
		return errors.Join(errBridges, err)
	}
	noBridge, errRows := t.applyRows(ctx, d)
	// ovs-vswitchd gives numbers to ports of new bridges, and new numbers to ports that moved to
	// another bridge. Until it has, it may again write the old number to ofport, which
	// vsctl.Config.Ops cleared.
	if len(d.Bridges.Add)+len(d.Ports.Change) > 0 {
		if err := t.carriedOut(ctx); err != nil {
			return errors.Join(errBridges, errRows, err)
		}
		if r, err = t.rows(ctx); err != nil {
			return errors.Join(errBridges, errRows, err)
		}
	}
	noPort, errFlows := t.applyFlows(ctx, d, r)
	errNeighbors := errors.Join(t.applyRoutes(ctx, d.TunnelRoutes),
		t.applyNeighbors(ctx, cmp.Or(d.TunnelBridge, t.cfg.Bridge), d.TunnelNeighbors))
	if err := errors.Join(errBridges, errRows, errFlows, errNeighbors, t.rewrite(ctx, d.NoFlows)); err != nil {
		return err
	}
	if missing := slices.Concat(noBridge, noPort); len(missing) > 0 {
		slices.Sort(missing)
		return &apply.Waiting{Devices: slices.Compact(missing)}
	}
	return nil
}
