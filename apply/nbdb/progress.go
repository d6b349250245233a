package nbdb

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"hairpin/apply"
	"hairpin/apply/late"
	"hairpin/ovsdb"
)

// oldest is the oldest supported OVN. Older ones recompute everything for one changed load balancer
// (1 270 ms at 10 000, instead of 25).
const oldest = "25.03"

// Sync waits until the current Northbound database is in the switch of this node. While
// ovn-controller has not registered its chassis, Sync waits for ovn-northd only.
func (t *Target) Sync(ctx context.Context) error {
	late.For(ctx, controller)
	if err := t.sync(ctx, func(g *ovsdb.NBGlobal) int { return g.HVCfg }); err != nil {
		return fmt.Errorf("wait for ovn-controller: %w", err)
	}
	return nil
}

// sync increments nb_cfg (ovn-nb(5), NB_Global), and waits until done has reached the new value.
func (t *Target) sync(ctx context.Context, done func(*ovsdb.NBGlobal) int) error {
	results, err := t.progress.Transact(ctx,
		ovsdb.Mutate("NB_Global", ovsdb.Add("nb_cfg", 1)).All(),
		ovsdb.Select[ovsdb.NBGlobal]("nb_cfg"))
	if err != nil {
		return err
	}
	rows, err := ovsdb.Selected[ovsdb.NBGlobal](results[1])
	if err != nil {
		return err
	}
	if len(rows) != 1 {
		return errors.New("NB_Global has no row: ovn-northd never ran on this database")
	}
	return t.progress.WaitFor(ctx, func(v ovsdb.View) bool {
		global := ovsdb.First[ovsdb.NBGlobal](v)
		return global != nil && done(global) >= rows[0].NBCfg
	})
}

// Version waits for ovn-northd, and returns its version of OVN from NB_Global, such as "25.03.0".
func (t *Target) Version(ctx context.Context) (string, error) {
	var version string
	err := t.progress.WaitFor(ctx, func(v ovsdb.View) bool {
		if global := ovsdb.First[ovsdb.NBGlobal](v); global != nil {
			version, _, _ = strings.Cut(global.Options["northd_internal_version"], "-")
		}
		return version != ""
	})
	if err != nil {
		return "", fmt.Errorf("find the version of OVN: %w", err)
	}
	return version, nil
}

// CheckVersion returns an error that names both versions if OVN is too old.
func CheckVersion(version string) error { return apply.NeedVersion("OVN", version, oldest) }
