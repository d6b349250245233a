package ofctl

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"syscall"
	"time"

	"hairpin/apply/late"
	"hairpin/datapath/flow"
)

// bundle collects the messages of one bundle.
type bundle struct {
	numbers map[string]string
	groups  []change // to be made or changed
	deletes []change // of flows
	flows   []change // to be made or changed
	made    map[flow.Key]*flow.Flow
	unfit   map[uint32]bool // groups left out: a flow that names one would stop the bundle

	groupsGone []change // flows that lead to one go with it
	missing    []string // ports of the flows left out
	errs       []error  // of those which cannot be
}

// change is a message, and its text for who must know which one was refused.
type change struct {
	kind uint8
	body []byte
	what fmt.Stringer
}

// changes are all, in order. Of flows, deletes come first: a port's number may have gone from one name to another. Groups are there before
// flows that lead to them, and go after them.
func (b *bundle) changes() []change { return slices.Concat(b.groups, b.deletes, b.flows, b.groupsGone) }

func (b *bundle) group(g *flow.Group) {
	err := g.Check()
	var body []byte
	if err == nil {
		body, err = groupMod(groupAddOrModify, g)
	}
	if err != nil {
		b.errs, b.unfit[g.ID] = append(b.errs, err), true
		return
	}
	b.groups = append(b.groups, change{typeGroupMod, body, g})
}

func (b *bundle) groupGone(g *flow.Group) {
	body, _ := groupMod(groupDelete, g) // names no buckets
	b.groupsGone = append(b.groupsGone, change{typeGroupMod, body, g})
}

func (b *bundle) add(f *flow.Flow) {
	if slices.ContainsFunc(f.Actions, func(a flow.Action) bool { to, ok := a.(flow.ToGroup); return ok && b.unfit[to.ID] }) {
		return // the error is the group's
	}
	if err := f.Check(); err != nil {
		b.errs = append(b.errs, err)
		return
	}
	for _, name := range f.Ports() {
		if _, ok := b.number(name); !ok {
			b.missing = append(b.missing, name)
			return
		}
	}
	b.made[f.Key] = f
	numbered := f.WithPorts(func(name string) string { n, _ := b.number(name); return n })
	b.flows = append(b.flows, change{typeFlowMod, flowMod(flowAdd, f.Cookie(), numbered), f})
}

// number translates a port. A number stays: that is a flow that names no port of ours on purpose.
func (b *bundle) number(name string) (string, bool) {
	if n, ok := b.numbers[name]; ok {
		return n, true
	}
	_, err := strconv.ParseUint(name, 10, 16)
	return name, err == nil
}

// send makes the switch do all changes, or none. A connection that ovs-vswitchd has ended is tried once more, as in ofctl.
func (t *bridge) send(ctx context.Context, changes []change) error {
	late.For(ctx, vswitchd)
	err := t.sendOnce(ctx, changes)
	if err != nil && ctx.Err() == nil && slices.ContainsFunc([]error{io.EOF, io.ErrUnexpectedEOF, syscall.EPIPE, syscall.ECONNRESET}, func(why error) bool { return errors.Is(err, why) }) {
		t.log.Debug("ovs-vswitchd ended a connection", "error", err)
		err = t.sendOnce(ctx, changes)
	}
	return err
}

// absent reports whether nobody listens for OpenFlow of the bridge.
func absent(err error) bool {
	return errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ECONNREFUSED)
}

// sendOnce is one try.
func (t *bridge) sendOnce(ctx context.Context, changes []change) error {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", t.cfg.Path(t.cfg.socket(t.name)))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if err = talk(conn, bundled(changes), changes); err == nil {
		err = talk(conn, committing(), changes)
	}
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return err
}

// talk writes messages and reads until the switch has done them all, or refused one.
func talk(conn net.Conn, messages []byte, changes []change) error {
	wrote := make(chan error, 1)
	go func() { // answers must be read meanwhile
		_, err := conn.Write(messages)
		wrote <- err
	}()
	err := answers(conn, changes)
	if err != nil {
		_ = conn.Close() // so that a write that nobody reads ends
	}
	return cmp.Or(err, <-wrote)
}

// Steps of a bundle.
const (
	bundleOpen, bundleCommit = 0, 4
	bundleFlags              = 3 // all or nothing, in order
)

func step(b []byte, step uint16) []byte {
	return message(b, typeBundle, 0, u32(1), u16(step), u16(bundleFlags))
}

// bundled opens a bundle and fills it, and asks for an answer. The number of a message is its place.
func bundled(changes []change) []byte {
	b := step(message(nil, typeHello, 0), bundleOpen)
	for i, c := range changes {
		xid := uint32(i + 1)
		b = message(b, typeBundleAdd, xid, u32(1), u16(0), u16(bundleFlags), message(nil, c.kind, xid, c.body))
	}
	return message(b, typeBarrierRequest, 0)
}

// committing is for a bundle whose messages were all taken: the switch would leave out those that were not.
func committing() []byte { return message(step(nil, bundleCommit), typeBarrierRequest, 0) }

// answers reads until the switch has told of all that it was sent.
func answers(r io.Reader, changes []change) error {
	for {
		switch kind, xid, body, err := receive(r); {
		case err != nil:
			return err
		case kind == typeError:
			err := refusal(body)
			if i := int(xid) - 1; i >= 0 && i < len(changes) {
				err = fmt.Errorf("%w: %s", err, changes[i].what)
			}
			return err
		case kind == typeBarrierReply:
			return nil
		}
	}
}
