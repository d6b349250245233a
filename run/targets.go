package run

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"hairpin/apply"
	"hairpin/apply/conntrack"
	"hairpin/apply/kernel"
	"hairpin/apply/knft"
	"hairpin/apply/nbdb"
	"hairpin/apply/ofctl"
	"hairpin/claims"
	"hairpin/config"
	"hairpin/datapath/host"
	"hairpin/plan"
)

// targets are the systems of the node.
type targets struct {
	nb     *nbdb.Target
	bridge *ofctl.Target
	nft    *knft.Target
	host   *kernel.Target
	pass   apply.Targets
	opened []interface{ Close() }

	wantedHost atomic.Pointer[host.State] // what the kernel target asks for
}

func openTargets(ctx context.Context, c config.Config, log *slog.Logger) (_ *targets, err error) {
	t := &targets{}
	t.wantedHost.Store(&host.State{})
	defer func() {
		if err != nil {
			t.close()
		}
	}()
	endpoint := func(file string) string { return "unix:" + filepath.Join(c.Process.OVNRunDir, file) }
	if t.nb, err = nbdb.Open(nbdb.Config{Northbound: endpoint("ovnnb_db.sock"), Southbound: endpoint("ovnsb_db.sock"), Logger: log}); err != nil {
		return nil, fmt.Errorf("OVN: %w", err)
	}
	t.opened = append(t.opened, t.nb)
	if t.bridge, err = ofctl.Open(ofctl.Config{
		Bridge: c.Cluster.Gateway.Interface, Settings: plan.SettingKeys(), RunDir: c.Process.OVSRunDir, Logger: log,
		TunnelBridge: claims.EncapBridge,
	}); err != nil {
		return nil, fmt.Errorf("Open vSwitch: %w", err)
	}
	t.opened = append(t.opened, t.bridge)
	if t.nft, err = knft.New(ctx, knft.Config{Log: log}); err != nil {
		return nil, fmt.Errorf("nft: %w", err)
	}
	t.opened = append(t.opened, t.nft)
	if t.host, err = kernel.New(kernel.Config{
		Links: []string{claims.ManagementPort}, Prefixes: slices.Concat(c.Cluster.Gateway.MasqueradeSubnets, detachedPrefixes(c.Cluster)),
		Wanted: func() host.State { return *t.wantedHost.Load() },
		Former: formerSysctls(c),
	}); err != nil {
		return nil, fmt.Errorf("kernel: %w", err)
	}
	t.opened = append(t.opened, t.host)
	connections := conntrack.New(conntrack.Config{Settled: t.nb.Sync})
	t.pass = apply.Targets{NB: t.nb, Bridge: t.bridge, NFT: t.nft, Host: t.host, Conn: connections}
	return t, nil
}

// numbers are those that Services have on the node. Without OVN, which may come later than the agent, no packet needs them.
func (t *targets) numbers(ctx context.Context) plan.Numbers {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	rows, err := t.nb.Read(ctx)
	if err != nil {
		return nil
	}
	return plan.NumbersIn(rows)
}

// formerSysctls is the file with the values that sysctls had before. It goes with a boot, as they do.
func formerSysctls(c config.Config) string { return filepath.Join(c.Process.RunDir, "sysctls.json") }

func (t *targets) close() {
	for _, target := range t.opened {
		target.Close()
	}
}

// Oldest Open vSwitch that is served (docs/architecture.md); nbdb knows the oldest OVN.
const (
	ovsMajor = 3
	ovsMinor = 5
)

// checkVersions refuses an Open vSwitch or OVN that is too old, with a message that names the version found and the one
// needed. It waits until both are there to be asked.
func (t *targets) checkVersions(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		version, err := t.nb.Version(ctx)
		if err != nil {
			return err
		}
		return nbdb.CheckVersion(version)
	})
	g.Go(func() error {
		for p := (pace{}); ; {
			version, err := t.bridge.Version(ctx)
			if err == nil {
				return checkOVS(version)
			}
			p.failed()
			select {
			case <-ctx.Done():
				return err
			case <-time.After(p.pause):
			}
		}
	})
	return g.Wait()
}

func checkOVS(version string) error {
	f := strings.SplitN(version, ".", 3)
	if len(f) >= 2 {
		major, err1 := strconv.Atoi(f[0])
		minor, err2 := strconv.Atoi(f[1])
		if err1 == nil && err2 == nil {
			if major > ovsMajor || major == ovsMajor && minor >= ovsMinor {
				return nil
			}
			return fmt.Errorf("Open vSwitch %s is running; %d.%d or newer is needed", version, ovsMajor, ovsMinor)
		}
	}
	return fmt.Errorf("Open vSwitch's version %q is none; %d.%d or newer is needed", version, ovsMajor, ovsMinor)
}
