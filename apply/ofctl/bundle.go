package ofctl

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"hairpin/datapath/flow"
	"hairpin/openflow"
)

// bundle collects the messages of one bundle.
type bundle struct {
	numbers map[string]string
	groups  []change               // to be made or changed
	deletes []change               // of flows
	flows   []change               // to be made or changed
	made    map[flow.ID]*flow.Flow // those of flows, as they are then read
	// unencodable has the groups left out: the switch would reject a bundle with flows that name
	// one.
	unencodable map[uint32]bool

	groupDeletes []change // the switch removes flows to these groups with them
	missing      []string // ports of the flows left out
	errs         []error  // of flows and groups that cannot be encoded
}

// change is a message, and its text for the error if the switch rejects it.
type change struct {
	kind openflow.Type
	body []byte
	what fmt.Stringer
}

// changes returns all changes, in order. Flow deletes come first, because a port number may have
// moved from one name to another. Groups are made before the flows that use them, and deleted last.
func (b *bundle) changes() []change {
	return slices.Concat(b.groups, b.deletes, b.flows, b.groupDeletes)
}

func (b *bundle) addGroup(g *flow.Group) {
	err := g.Check()
	var body []byte
	if err == nil {
		e := g.Encode()
		body, err = e.AddOrModify()
	}
	if err != nil {
		b.errs, b.unencodable[g.ID] = append(b.errs, err), true
		return
	}
	b.groups = append(b.groups, change{openflow.GroupMod, body, g})
}

func (b *bundle) deleteGroup(g *flow.Group) {
	e := openflow.SelectGroup{ID: g.ID}
	b.groupDeletes = append(b.groupDeletes, change{openflow.GroupMod, e.Delete(), g})
}

func (b *bundle) addFlow(id flow.ID, f *flow.Flow) {
	if slices.ContainsFunc(f.Actions,
		func(a flow.Action) bool { to, ok := a.(flow.ToGroup); return ok && b.unencodable[to.ID] }) {
		return // the group has the error already
	}
	if err := f.Check(); err != nil {
		b.errs = append(b.errs, err)
		return
	}
	if f = b.withoutMissing(f); f == nil {
		return
	}
	b.made[id] = f
	numbered := f.WithPorts(func(name string) string { n, _ := b.portNumber(name); return n })
	e := numbered.Encode()
	b.flows = append(b.flows, change{openflow.FlowMod, e.Add(), f})
}

// withoutMissing returns the flow without outputs to missing ports. It returns nil when the flow's
// in_port or all of its output ports are missing. One missing port must not block the others.
func (b *bundle) withoutMissing(f *flow.Flow) *flow.Flow {
	var lacks []string
	for _, name := range f.Ports() {
		if _, ok := b.portNumber(name); !ok {
			lacks = append(lacks, name)
		}
	}
	b.missing = append(b.missing, lacks...)
	switch {
	case len(lacks) == 0:
		return f
	case slices.Contains(lacks, f.Match.InPort):
		return nil
	}
	g := *f
	g.Actions = slices.DeleteFunc(slices.Clone(f.Actions), func(a flow.Action) bool {
		out, ok := a.(flow.Output)
		return ok && slices.Contains(lacks, out.Port)
	})
	if to := g.Ports(); len(to) == 0 || len(to) == 1 && to[0] == f.Match.InPort {
		return nil
	}
	return &g
}

// portNumber returns a port's number. A number stays as it is: such a flow deliberately names no
// port of Hairpin's.
func (b *bundle) portNumber(name string) (string, bool) {
	if n, ok := b.numbers[name]; ok {
		return n, true
	}
	_, err := strconv.ParseUint(name, 10, 16)
	return name, err == nil
}

// errAbsent is the error of a bridge whose OpenFlow socket does not accept connections.
var errAbsent = errors.New("ovs-vswitchd does not listen for the bridge")

// send makes the switch do all changes, or none, and returns the mark after them. It uses the
// monitor's connection, because the switch does not report changes made on that connection.
func (b *bridge) send(ctx context.Context, changes []change) (mark, error) {
	if !b.monitor.isUp() {
		if !b.cfg.reachable(ctx, b.name) {
			return mark{}, errAbsent
		}
		b.monitor.waitUp(ctx)
	}
	_, err := b.monitor.exchange(ctx, bundled(changes))
	var rejected *openflow.SwitchError
	if errors.As(err, &rejected) {
		b.monitor.discard()
	}
	var after mark
	if err == nil {
		after, err = b.monitor.exchange(ctx, bundleControl(nil, openflow.BundleCommit))
	}
	if errors.As(err, &rejected) {
		if i := rejected.XID - firstChange; int(i) < len(changes) {
			err = fmt.Errorf("%w: %s", err, changes[i].what)
		}
	}
	return after, err
}

// firstChange is the transaction ID of the first message in a bundle; the others follow. Bundle
// control messages use the highest transaction ID.
const firstChange = 1 << 31

// bundleControl appends a message that opens, commits or discards a bundle.
func bundleControl(b []byte, kind uint16) []byte { return openflow.BundleStep(b, math.MaxUint32, kind) }

// bundled opens a bundle and fills it. The caller commits it only after the switch accepted all
// messages: a commit would leave out rejected ones.
func bundled(changes []change) []byte {
	b := bundleControl(nil, openflow.BundleOpen)
	for i, c := range changes {
		b = openflow.AddToBundle(b, firstChange+uint32(i), c.kind, c.body)
	}
	return b
}
