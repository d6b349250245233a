package cni

import (
	"context"
	"log/slog"
	"net/netip"
	"testing"

	"hairpin/lab"
	"hairpin/ovsdb"
)

// TestReadyFacts checks that awaitReady never returns the facts of an agent that was not ready,
// without an error: an ADD has no address with them.
func TestReadyFacts(t *testing.T) {
	n := lab.StartNode(t, lab.NodeConfig{Daemons: []string{lab.OVSDB}})
	ovs, err := ovsdb.Open(ovsdb.Config{Endpoint: "unix:" + n.Path("/run/openvswitch/db.sock"),
		Database: "Open_vSwitch", Tables: []ovsdb.Table{ovsdb.Mirror[ovsdb.Interface]()}})
	if err != nil {
		t.Fatal(err)
	}
	defer ovs.Close()
	if err := ovs.WaitSynced(t.Context()); err != nil {
		t.Fatal(err)
	}
	s := NewServer(ovs, "node-a", slog.New(slog.DiscardHandler))
	facts := Facts{Subnets: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}}
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case <-done:
				return
			default:
				s.SetFacts(Facts{}, "of a test")
				s.SetFacts(facts, "")
			}
		}
	}()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100_000 {
		if f, cniErr := s.awaitReady(ended); cniErr == nil && len(f.Subnets) == 0 {
			t.Fatalf("ready with %+v", f)
		}
	}
}
