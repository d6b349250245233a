package ofctl

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"hairpin/cluster"
	"hairpin/delta"
)

// readRoutes returns the configured tunnel routes, if there is a tunnel bridge.
func (t *Target) readRoutes(ctx context.Context) (map[netip.Addr]netip.Addr, error) {
	if t.cfg.TunnelBridge == "" {
		return nil, nil
	}
	table, err := t.vswitchd(ctx, "ovs/route/show")
	if err != nil {
		return nil, err
	}
	return parseRoutes(table, t.cfg.TunnelBridge), nil
}

// parseRoutes parses lines such as "User: 172.18.0.4/32 dev br-enc GW 169.254.170.1 SRC
// 169.254.170.2".
func parseRoutes(table, bridge string) map[netip.Addr]netip.Addr {
	var list map[netip.Addr]netip.Addr
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 6 || f[0] != "User:" || f[2] != "dev" || f[3] != bridge || f[4] != "GW" {
			continue
		}
		to, errTo := netip.ParsePrefix(f[1])
		via, errVia := netip.ParseAddr(f[5])
		if errTo != nil || errVia != nil || !to.IsSingleIP() {
			continue
		}
		if list == nil {
			list = map[netip.Addr]netip.Addr{}
		}
		list[to.Addr()] = via
	}
	return list
}

// applyRoutes sets and removes tunnel routes.
func (t *Target) applyRoutes(ctx context.Context, d delta.Delta[netip.Addr, netip.Addr]) error {
	var errs []error
	call := func(method string, to netip.Addr, more ...string) {
		args := append([]string{netip.PrefixFrom(to, to.BitLen()).String()}, more...)
		if _, err := t.vswitchd(ctx, method, args...); err != nil {
			errs = append(errs, fmt.Errorf("tunnel route to %s: %w", to, err))
		}
	}
	for _, part := range []map[netip.Addr]netip.Addr{d.Delete, d.Change} {
		for _, a := range delta.Sorted(part, netip.Addr.Compare) {
			call("ovs/route/del", a)
		}
	}
	for _, part := range []map[netip.Addr]netip.Addr{d.Add, d.Change} {
		for _, a := range delta.Sorted(part, netip.Addr.Compare) {
			call("ovs/route/add", a, t.cfg.TunnelBridge, part[a].String())
		}
	}
	return errors.Join(errs...)
}

// readNeighbors returns the tunnel neighbours of the bridges, both Hairpin's and those that the
// switch learned.
func (t *Target) readNeighbors(ctx context.Context) (map[netip.Addr]cluster.MAC, error) {
	table, err := t.vswitchd(ctx, "tnl/neigh/show")
	if err != nil {
		return nil, err
	}
	return parseNeighbors(table, t.cfg.Bridge, t.cfg.TunnelBridge), nil
}

// parseNeighbors parses lines of address, MAC and bridge, and skips the heading.
func parseNeighbors(table string, bridges ...string) map[netip.Addr]cluster.MAC {
	var list map[netip.Addr]cluster.MAC
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 3 || !slices.Contains(bridges, f[2]) {
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

// applyNeighbors sets neighbours on a bridge. Open vSwitch has no command to remove a single one.
func (t *Target) applyNeighbors(ctx context.Context, bridge string, d delta.Delta[netip.Addr, cluster.MAC]) error {
	var errs []error
	for _, part := range []map[netip.Addr]cluster.MAC{d.Add, d.Change} {
		for _, a := range delta.Sorted(part, netip.Addr.Compare) {
			if _, err := t.vswitchd(ctx, "tnl/neigh/set", bridge, a.String(), part[a].String()); err != nil {
				errs = append(errs, fmt.Errorf("tunnel neighbour %s: %w", a, err))
			}
		}
	}
	return errors.Join(errs...)
}
