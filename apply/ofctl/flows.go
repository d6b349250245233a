package ofctl

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"hairpin/apply/ofctl/vsctl"
	"hairpin/claims"
	"hairpin/datapath/flow"
	"hairpin/datapath/ovs"
	"hairpin/delta"
	"hairpin/openflow"
)

// maxAge is how long a cached read of flows and groups is used at most: it limits the harm of a
// lost notification. It is a little shorter than the agent's slow timer, so that each tick reads
// them.
const maxAge = 290 * time.Second

// cache describes the last read of a bridge. The monitor knows if it still holds. Reading takes
// half a second for 40 000 flows, 0.2 s for 10 000 groups.
type cache struct {
	valid   bool
	read    time.Time         // when the read began
	mark    mark              // of the monitor, before the flows were read
	numbers map[string]string // of the ports, by name
	unknown map[ovs.Unknown]openflow.Flow
}

// bridge is a bridge with flows of Hairpin's.
type bridge struct {
	*Target
	name    string
	key     string // in keys of flows
	monitor *monitor
	forget  context.CancelFunc // ends the monitor
	mapped  string             // the instance of ovs-vswitchd on which mapOption succeeded
	cache   cache
}

// updateBridges starts a monitor for each new bridge, and drops what is known of removed ones. It
// returns the existing bridges, the gateway bridge last: what other bridges need must exist before
// flows send packets to them.
func (t *Target) updateBridges(r vsctl.Content) (list []*bridge) {
	for name, b := range t.bridges {
		if _, there := r.Numbers[name]; !there {
			b.forget()
			delete(t.bridges, name)
			t.cached.replace(b.key, content{})
		}
	}
	for _, name := range delta.Keys(r.Numbers) {
		if t.bridges[name] == nil {
			t.bridges[name] = t.watch(name)
		}
		if name != t.cfg.Bridge {
			list = append(list, t.bridges[name])
		}
	}
	return append(list, t.bridges[t.cfg.Bridge])
}

// read returns Hairpin's flows, with port names, and groups. It returns nil when the monitor knows
// that nothing changed since the last read. A bridge that was made a moment ago has no flows.
func (b *bridge) read(ctx context.Context, numbers map[string]string) (*content, error) {
	if b.key != "" && !b.cfg.reachable(ctx, b.name) {
		b.cache = cache{}
		return &content{}, nil
	}
	now, ok := b.monitor.current(ctx)
	if c := &b.cache; ok && c.valid && c.mark == now && time.Since(c.read) < maxAge {
		return nil, nil
	}
	start := time.Now()
	c, unknown := &content{}, map[ovs.Unknown]openflow.Flow{}
	name := naming(numbers)
	if err := b.eachFlow(ctx, b.name, claims.Cookie, claims.CookieMask, func(x *openflow.InstalledFlow) {
		f, known := flow.Decode(x)
		if !known {
			unknown[ovs.Unknown{Bridge: b.key, Flow: f.String()}] = x.Flow
			return
		}
		f = f.WithPorts(name)
		f.Bridge = b.key
		c.flows.Put(f.ID(), f)
	}); err != nil {
		return nil, err
	}
	if err := b.readGroups(ctx, c); err != nil {
		return nil, err
	}
	b.cache = cache{valid: ok, read: start, mark: now, numbers: numbers, unknown: unknown}
	return c, nil
}

// renumber updates the port names in cached flows: ports appear and disappear, but flows keep their
// port numbers.
func (b *bridge) renumber(numbers map[string]string) {
	c := &b.cache
	if maps.Equal(c.numbers, numbers) {
		return
	}
	name := naming(numbers)
	renamed := func(was string) string {
		if n, ok := c.numbers[was]; ok {
			was = n
		}
		return name(was)
	}
	moved := map[string]bool{} // by port as in cached flows, a name or a number: renamed changes it
	for _, list := range []map[string]string{c.numbers, numbers} {
		for port, number := range list {
			moved[port], moved[number] = renamed(port) != port, renamed(number) != number
		}
	}
	d := delta.Delta[flow.ID, *flow.Flow]{Add: map[flow.ID]*flow.Flow{}, Delete: map[flow.ID]*flow.Flow{}}
	for id, f := range b.cached.flows.All() {
		if f.Bridge == b.key && f.Uses(moved) {
			g := f.WithPorts(renamed)
			d.Delete[id], d.Add[g.ID()] = f, g
		}
	}
	c.numbers = numbers
	if !d.Empty() {
		b.cached.change(ovs.Delta{Flows: d})
		b.cached.mayDiffer = true
	}
}

// readGroups adds the groups. A group that Hairpin cannot represent comes without buckets and
// equals no wanted one. Groups of the gateway bridge are not Hairpin's.
func (b *bridge) readGroups(ctx context.Context, c *content) error {
	if b.key == "" {
		return nil
	}
	return b.request(ctx, b.name, openflow.RequestGroups(nil, 1), func(body []byte) (bool, error) {
		list, more, err := openflow.ParseGroups(body)
		for _, x := range list {
			g := flow.DecodeGroup(x, b.key)
			c.groups.Put(g.GroupKey, g)
		}
		return more, err
	})
}

// naming returns a function that maps port numbers back to names.
func naming(numbers map[string]string) func(number string) string {
	names := make(map[string]string, len(numbers))
	for name, number := range numbers {
		names[number] = name
	}
	return func(number string) string {
		if n, ok := names[number]; ok {
			return n
		}
		return number // of a removed port
	}
}

// applyFlows makes the changes on all bridges. It returns the missing bridges and ports, one for
// each flow that it leaves out.
func (t *Target) applyFlows(ctx context.Context, d ovs.Delta, r vsctl.Content) (missing []string, err error) {
	list := t.updateBridges(r)
	if len(d.Flows.Add)+len(d.Flows.Change) == 0 { // removals: first the flows that send packets to others
		slices.Reverse(list)
	}
	var errs []error
	for _, b := range list {
		lacks, err := b.apply(ctx, b.part(d), r)
		missing, errs = append(missing, lacks...), append(errs, err)
	}
	for _, f := range d.Flows.Add {
		if _, there := r.Numbers[f.Bridge]; f.Bridge != "" && !there {
			missing = append(missing, f.Bridge)
		}
	}
	return missing, errors.Join(errs...)
}

// part returns the part of d on this bridge.
func (b *bridge) part(d ovs.Delta) (own ovs.Delta) {
	own.Flows = d.Flows.Filter(func(id flow.ID) bool { return id.Value().Bridge == b.key })
	own.Groups = d.Groups.Filter(func(k flow.GroupKey) bool { return k.Bridge == b.key })
	for _, u := range d.Unknown {
		if u.Bridge == b.key {
			own.Unknown = append(own.Unknown, u)
		}
	}
	return own
}

// apply makes the changes of the bridge in one bundle, which the switch applies as a whole or not
// at all. It returns the missing ports or bridge, for each flow left out. A flow that cannot be
// encoded is left out as well and is an error.
func (b *bridge) apply(ctx context.Context, d ovs.Delta, r vsctl.Content) (missing []string, err error) {
	if d.Empty() {
		return nil, nil
	}
	numbers := r.Numbers[b.name]
	batch := bundle{numbers: numbers, deletes: deletions(d, numbers), made: map[flow.ID]*flow.Flow{},
		unencodable: map[uint32]bool{}}
	for _, part := range []map[flow.GroupKey]*flow.Group{d.Groups.Add, d.Groups.Change} {
		for _, g := range part {
			batch.addGroup(g)
		}
	}
	for _, g := range d.Groups.Delete {
		batch.deleteGroup(g)
	}
	for _, part := range []map[flow.ID]*flow.Flow{d.Flows.Add, d.Flows.Change} {
		for id, f := range part {
			batch.addFlow(id, f)
		}
	}
	// Open vSwitch gives a new bridge with fail_mode standalone this flow. The wanted flow replaced
	// it. When the wanted flow is deleted, the bridge gets it back, or it would drop everything.
	if _, gone := d.Flows.Delete[flow.Key{}.ID()]; gone && !r.Secure {
		normal := &flow.Flow{Actions: []flow.Action{flow.Normal{}}}
		e := normal.Encode()
		e.Cookie = 0
		batch.flows = append(batch.flows, change{openflow.FlowMod, e.Add(), normal})
	}
	for _, u := range d.Unknown {
		if e, ok := b.cache.unknown[u]; ok {
			e.CookieMask = claims.CookieMask
			batch.deletes = append(batch.deletes, change{openflow.FlowMod, e.Delete(), u})
		}
	}
	if len(batch.changes()) > 0 {
		err := b.commit(ctx, batch, d)
		if b.key != "" && errors.Is(err, errAbsent) {
			return []string{b.name}, nil // a bridge made a moment ago
		}
		batch.errs = append(batch.errs, err)
	}
	return batch.missing, errors.Join(batch.errs...)
}

// deletions returns deletes of the unwanted flows. It skips a flow whose port has no number any
// more, or whose number now belongs to a named port: the next Read shows what is left.
func deletions(d ovs.Delta, numbers map[string]string) []change {
	named := map[string]bool{}
	for _, n := range numbers {
		named[n] = true
	}
	var list []change
	for _, f := range d.Flows.Delete {
		k := f.Key
		if p := k.Match.InPort; p != "" && p != flow.Local {
			number, ok := numbers[p]
			if !ok && named[p] {
				continue
			}
			if _, err := strconv.ParseUint(p, 10, 16); !ok && err != nil {
				continue
			}
			if ok {
				k.Match.InPort = number
			}
		}
		e := (&flow.Flow{Key: k}).Encode()
		e.CookieMask = claims.CookieMask
		list = append(list, change{openflow.FlowMod, e.Delete(), f})
	}
	return list
}

// commit sends a bundle.
func (b *bridge) commit(ctx context.Context, batch bundle, d ovs.Delta) error {
	err := b.mapOption(ctx, batch.made)
	after := mark{}
	if err == nil {
		after, err = b.send(ctx, batch.changes())
	}
	if b.key != "" && errors.Is(err, errAbsent) {
		return err
	}
	c := &b.cache
	// Without a notification nothing else changed since the last read: the cache plus these changes
	// is the current content.
	if err != nil || !c.valid || len(batch.unencodable) > 0 || len(d.Unknown) > 0 || after != c.mark {
		c.valid = false
		b.changed.Notify()
	} else {
		b.renumber(batch.numbers)
		b.cached.change(ovs.Delta{Flows: delta.Delta[flow.ID, *flow.Flow]{Add: batch.made, Delete: d.Flows.Delete},
			Groups: d.Groups})
	}
	if err != nil {
		b.mapped = ""
		return fmt.Errorf("change flows of %s: %w", b.name, err)
	}
	return nil
}
