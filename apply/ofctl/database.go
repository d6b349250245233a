package ofctl

import (
	"context"
	"fmt"

	"hairpin/apply/late"
	"hairpin/apply/ofctl/vsctl"
	"hairpin/datapath/ovs"
	"hairpin/delta"
	"hairpin/ovsdb"
)

// write makes a transaction. It increments next_cfg, which wakes ovs-vswitchd even if the rest
// needs no action of it; ovs-vsctl does the same.
func (t *Target) write(ctx context.Context, ops []ovsdb.Op) error {
	late.For(ctx, serverName)
	_, err := t.db.Transact(ctx, append(ops, ovsdb.Mutate("Open_vSwitch", ovsdb.Add("next_cfg", 1)).All())...)
	return err
}

// writeAndWait makes a transaction, and waits until ovs-vswitchd has carried it out. Errors begin
// with what it does.
func (t *Target) writeAndWait(ctx context.Context, what string, ops []ovsdb.Op) error {
	if err := t.write(ctx, ops); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	late.For(ctx, vswitchdName)
	if err := t.carriedOut(ctx); err != nil {
		return fmt.Errorf("%s: wait for ovs-vswitchd: %w", what, err)
	}
	return nil
}

// applyBridges makes bridges, and removes unwanted ones with their content. It waits for
// ovs-vswitchd, because ports and flows need the bridges.
func (t *Target) applyBridges(ctx context.Context, d delta.Delta[string, ovs.Bridge]) error {
	ops := vsctl.BridgeOps(t.db.View(), d)
	if len(ops) == 0 {
		return nil
	}
	return t.writeAndWait(ctx, "bridges of Open vSwitch", ops)
}

// carriedOut waits until ovs-vswitchd has processed the database's current content.
func (t *Target) carriedOut(ctx context.Context) error {
	next := 0
	return t.db.WaitFor(ctx, func(v ovsdb.View) bool {
		row := ovsdb.First[ovsdb.OpenVSwitch](v)
		if row != nil && next == 0 {
			next = row.NextCfg
		}
		return row != nil && row.CurCfg >= next
	})
}

// applyRows changes settings, ports and names of tables in one transaction. It returns the missing
// bridges, for each port that needs one.
func (t *Target) applyRows(ctx context.Context, d ovs.Delta) (missing []string, err error) {
	ops, missing := t.vsctl.Ops(t.db.View(), d)
	if len(ops) == 0 {
		return missing, nil
	}
	if err := t.write(ctx, ops); err != nil {
		return missing, fmt.Errorf("write to Open vSwitch: %w", err)
	}
	return missing, nil
}

// RemovePorts removes ports from their bridges, and waits until ovs-vswitchd has removed their
// devices, too.
func (t *Target) RemovePorts(ctx context.Context, names []string) error {
	var ops []ovsdb.Op
	for _, name := range names {
		ops = append(ops, vsctl.RemovePort(t.db.View(), name)...)
	}
	return t.writeAndWait(ctx, "remove ports of Open vSwitch", ops)
}

// rows reads the local copy of the database. While the server does not respond, the database cannot
// change.
func (t *Target) rows(ctx context.Context) (vsctl.Content, error) {
	late.For(ctx, serverName)
	if err := t.db.WaitFor(ctx, func(ovsdb.View) bool { return t.db.Synced() }); err != nil {
		return vsctl.Content{}, err
	}
	c := t.vsctl.Read(t.db.View())
	if _, ok := c.Numbers[t.cfg.Bridge]; !ok {
		return vsctl.Content{}, fmt.Errorf("there is no bridge %s", t.cfg.Bridge)
	}
	return c, nil
}
