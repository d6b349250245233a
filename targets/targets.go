// Package targets opens the systems that are configured on a node. StandBy makes the agents of a
// node use them one after the other.
package targets

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"hairpin/apply"
	"hairpin/apply/conntrack"
	"hairpin/apply/kernel"
	"hairpin/apply/knft"
	"hairpin/apply/nbdb"
	"hairpin/apply/ofctl"
	"hairpin/apply/redirect"
	"hairpin/claims"
	"hairpin/config"
	"hairpin/datapath/host"
	"hairpin/hostnet"
	"hairpin/plan"
	"hairpin/plan/gateway"
	"hairpin/plan/service"
)

// Set has the targets of the node: each as its type, and all of them for apply.NewPass.
type Set struct {
	NB     *nbdb.Target
	Bridge *ofctl.Target
	NFT    *knft.Target
	Host   *kernel.Target

	Redirect *redirect.Target

	Systems apply.Targets

	opened []interface{ Close() }
	asked  versions

	WantedHost atomic.Pointer[host.State] // the desired state of the kernel target
}

// Open opens the targets. It does not wait for daemons that do not run yet.
func Open(c config.Config, log *slog.Logger) (_ *Set, err error) {
	t := &Set{}
	t.WantedHost.Store(&host.State{})
	defer func() {
		if err != nil {
			t.Close()
		}
	}()
	if t.NB, err = nbdb.Open(nbdb.Config{RunDir: c.Process.OVNRunDir, Logger: log}); err != nil {
		return nil, fmt.Errorf("OVN: %w", err)
	}
	t.opened = append(t.opened, t.NB)
	if t.Bridge, err = ofctl.Open(ofctl.Config{
		Bridge: c.Cluster.Gateway.Interface, Settings: gateway.SettingKeys(), RunDir: c.Process.OVSRunDir, Logger: log,
		TunnelBridge: claims.EncapBridge, Integration: claims.IntegrationBridge, Recompute: t.NB.Recompute,
	}); err != nil {
		return nil, fmt.Errorf("Open vSwitch: %w", err)
	}
	t.opened = append(t.opened, t.Bridge)
	if t.NFT, err = knft.New(knft.Config{Log: log}); err != nil {
		return nil, fmt.Errorf("nft: %w", err)
	}
	t.opened = append(t.opened, t.NFT)
	if t.Host, err = kernel.New(kernel.Config{
		Links:    []string{claims.ManagementPort, claims.LocalPort, claims.ServiceHost},
		Prefixes: slices.Concat(c.Cluster.Gateway.MasqueradeSubnets, hostnet.DetachedPrefixes(c.Cluster)),
		Wanted:   func() host.State { return *t.WantedHost.Load() },
		Former:   FormerSysctls(c),
	}); err != nil {
		return nil, fmt.Errorf("kernel: %w", err)
	}
	t.opened = append(t.opened, t.Host)
	if t.Redirect, err = redirect.New(redirect.Config{Settled: t.NB.Sync}); err != nil {
		return nil, fmt.Errorf("redirect: %w", err)
	}
	t.opened = append(t.opened, t.Redirect)
	connections := conntrack.New(conntrack.Config{Settled: t.NB.Sync, Switch: t.Bridge.Ask})
	t.Systems = apply.Targets{NB: t.NB, Bridge: t.Bridge, NFT: t.NFT, Host: t.Host, Conn: connections,
		Redirect: t.Redirect}
	return t, nil
}

// portsLimit limits how long an agent's start waits for ProxyPorts. It is several times what nft
// takes on a busy machine, because Services that get other ports lose their connections.
const portsLimit = 10 * time.Second

// ProxyPorts returns the proxy ports that Services have on the node. It is an error if nft fails,
// or does not answer within portsLimit.
func (t *Set) ProxyPorts(ctx context.Context, c *config.Config) (plan.ProxyPorts, error) {
	ctx, cancel := context.WithTimeout(ctx, portsLimit)
	defer cancel()
	tables, err := t.NFT.ReadAhead(ctx)
	if err != nil {
		return nil, err
	}
	return service.ProxyPortsIn(tables, &c.Cluster), nil
}

// FormerSysctls returns the file with the former values of sysctls. A boot resets them, and
// removes the file.
func FormerSysctls(c config.Config) string { return filepath.Join(c.Process.RunDir, "sysctls.json") }

// Close closes the targets. The systems keep their state.
func (t *Set) Close() {
	for _, target := range t.opened {
		target.Close()
	}
}
