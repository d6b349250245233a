package ui_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"hairpin/cluster"
	"hairpin/config"
	"hairpin/ui"
	"hairpin/walk/explain"
)

// TestSendUnwatches checks that watches that were started end if a later one cannot start.
func TestSendUnwatches(t *testing.T) {
	e := &explain.Explanation{}
	e.Trace.Sent.Protocol, e.Trace.Sent.Dst = cluster.TCP, netip.MustParseAddr("10.96.0.1")
	for _, node := range []string{"node-a", "node-b"} {
		e.Endpoints = append(e.Endpoints, explain.Endpoint{Owner: "host/" + node,
			Addr: netip.MustParseAddrPort("192.0.2.1:80")})
	}
	var paths []string
	ask := func(_ context.Context, node, path string) ([]byte, error) {
		path, _, _ = strings.Cut(path, "?")
		paths = append(paths, node+path)
		switch {
		case path == "/watch-end":
			return []byte("[]"), nil
		case node == "node-b":
			return nil, errors.New("no socket is left")
		}
		return []byte("7"), nil
	}
	err := ui.Prove(t.Context(), ask, []string{"node-a", "node-b"}, e)
	if err == nil || !strings.Contains(err.Error(), "no socket is left") {
		t.Errorf("the error is %v", err)
	}
	if want := []string{"node-a/watch", "node-b/watch", "node-a/watch-end"}; !slices.Equal(paths, want) {
		t.Errorf("requests %v, not %v", paths, want)
	}
}

// TestUIHealthOfCanceledRequest checks that a request that is canceled while agents are asked does
// not leave its error to the next one.
func TestUIHealthOfCanceledRequest(t *testing.T) {
	c := config.DefaultConfig()
	c.Process.RunDir = t.TempDir()
	health := ui.Health(c)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if first := health(gone).Error; !strings.Contains(first, "canceled") {
		t.Fatalf("the error of a request that is canceled is %q", first)
	}
	if next := health(t.Context()).Error; strings.Contains(next, "canceled") {
		t.Errorf("the next request has the error %q", next)
	}
}
