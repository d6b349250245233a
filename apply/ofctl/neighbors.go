package ofctl

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"hairpin/cluster"
	"hairpin/datapath/delta"
)

// readNeighbors gives the tunnel neighbours of the bridge: ours, and what the switch learned.
func (t *Target) readNeighbors(ctx context.Context) (map[netip.Addr]cluster.MAC, error) {
	table, err := t.vswitchd(ctx, "tnl/neigh/show")
	if err != nil {
		return nil, err
	}
	return parseNeighbors(table, t.cfg.Bridge), nil
}

// parseNeighbors reads lines of address, MAC and bridge; the heading is none.
func parseNeighbors(table, bridge string) map[netip.Addr]cluster.MAC {
	var list map[netip.Addr]cluster.MAC
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 3 || f[2] != bridge {
			continue
		}
		a, errA := netip.ParseAddr(f[0])
		m, errM := cluster.ParseMAC(f[1])
		if errA != nil || errM != nil {
			continue
		}
		if list == nil {
			list = map[netip.Addr]cluster.MAC{}
		}
		list[a] = m
	}
	return list
}

// applyNeighbors sets neighbours. There is no command to remove a single one.
func (t *Target) applyNeighbors(ctx context.Context, d delta.Delta[netip.Addr, cluster.MAC]) error {
	var errs []error
	for _, part := range []map[netip.Addr]cluster.MAC{d.Add, d.Change} {
		for _, a := range delta.Sorted(part, netip.Addr.Compare) {
			if _, err := t.vswitchd(ctx, "tnl/neigh/set", t.cfg.Bridge, a.String(), part[a].String()); err != nil {
				errs = append(errs, fmt.Errorf("tunnel neighbour %s: %w", a, err))
			}
		}
	}
	return errors.Join(errs...)
}
