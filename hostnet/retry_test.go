package hostnet

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"hairpin/apply/inside"
	"hairpin/apply/inside/insidetest"
	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/config"
	"hairpin/ovsdb"
)

// detachedScanner returns a Scanner of a node in mode detached that cannot reach Open vSwitch, and
// its log.
func detachedScanner(t *testing.T) (*Scanner, *strings.Builder) {
	t.Helper()
	ovs, err := ovsdb.Open(ovsdb.Config{
		Endpoint: "unix:" + t.TempDir() + "/none.sock", Database: "Open_vSwitch",
		Tables: []ovsdb.Table{ovsdb.Mirror[ovsdb.OpenVSwitch](), ovsdb.Mirror[ovsdb.Bridge](),
			ovsdb.Mirror[ovsdb.Port](), ovsdb.Mirror[ovsdb.Interface]()},
		Logger: slog.New(slog.DiscardHandler), MaxBackoff: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ovs.Close)
	c := config.DefaultConfig()
	c.Cluster.Gateway.Mode, c.Process.TakeOver = cluster.ModeDetached, true
	var text strings.Builder
	return NewScanner("node-a", c, ovs, nil, func(*Scan) {}, slog.New(slog.NewTextHandler(&text, nil))), &text
}

// TestFailedTakeOverIsNotRetried: a failed take-over is reported, and does not make the node scan
// its host repeatedly.
func TestFailedTakeOverIsNotRetried(t *testing.T) {
	l, text := detachedScanner(t)
	ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer stop()
	if err := inside.Do(insidetest.NetNS(t), func() error { l.TakeOver(ctx); return nil }); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text.String(), "take over the gateway bridge") {
		t.Fatalf("it did not fail: %s", text)
	}
	if wait := l.nextScan(time.Now()); wait != 0 {
		t.Errorf("it scans again in %s", wait)
	}
}

// TestBridgesAreRetried: bridges of mode detached that could not be made are retried after
// growing pauses, and the log has one line of it.
func TestBridgesAreRetried(t *testing.T) {
	l, text := detachedScanner(t)
	ns := insidetest.NetNS(t)
	applyMode := func(ctx context.Context) {
		if err := inside.Do(ns, func() error { l.applyMode(ctx); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	var waits []time.Duration
	for range 2 {
		for !l.mode.backoff.Due(time.Now()) {
			time.Sleep(time.Millisecond)
		}
		ctx, stop := context.WithTimeout(t.Context(), 50*time.Millisecond)
		applyMode(ctx)
		stop()
		waits = append(waits, l.nextScan(time.Now()))
		before := l.mode
		applyMode(t.Context()) // another scan comes before
		if l.mode != before {
			t.Errorf("it tried before its time: %+v became %+v", before, l.mode)
		}
	}
	if waits[0] <= 0 || waits[1] <= waits[0] {
		t.Errorf("it waits %v", waits)
	}
	if n := strings.Count(text.String(), "change bridges for the gateway mode"); n != 1 {
		t.Errorf("the log has %d lines:\n%s", n, text)
	}
}

// TestLinkLeftOfDetached: the link of the tunnels' path is also removed when its bridge is gone
// already, after a removal that was interrupted.
func TestLinkLeftOfDetached(t *testing.T) {
	l, _ := detachedScanner(t)
	if err := inside.Do(insidetest.NetNS(t), func() error {
		if err := addVethPair(claims.EncapHost, claims.EncapPort); err != nil {
			return err
		}
		if _, err := removeDetached(t.Context(), l.ovs); err != nil {
			return err
		}
		if _, err := netlink.LinkByName(claims.EncapHost); err == nil {
			t.Errorf("link %s is left", claims.EncapHost)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
