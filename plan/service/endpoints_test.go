package service

import (
	"net/netip"
	"strings"
	"testing"

	"hairpin/cluster"
	"hairpin/plan/node"
)

// Endpoints are written as "NAME ready|serving|dead NODE [node:N,…|zone:Z,…]"; their address is
// 10.0.0.NAME.
func endpointsOf(t *testing.T, text string) []cluster.Backend {
	t.Helper()
	var list []cluster.Backend
	for _, e := range strings.Split(text, ";") {
		w := strings.Fields(e)
		b := cluster.Backend{Addr: netip.MustParseAddr("10.0.0." + w[0]), Port: 80, Node: w[2]}
		switch w[1] {
		case "ready":
			b.Ready, b.Serving = true, true
		case "serving":
			b.Serving, b.Terminating = true, true
		}
		for _, h := range w[3:] {
			kind, names, _ := strings.Cut(h, ":")
			if kind == "node" {
				b.ForNodes = strings.Split(names, ",")
			} else {
				b.ForZones = strings.Split(names, ",")
			}
		}
		list = append(list, b)
	}
	return list
}

// By location first, then by readiness; hints count only if every ready endpoint has some and one
// is for this node (service semantics 13 and 14).
func TestChooseEndpoints(t *testing.T) {
	for _, c := range []struct{ name, endpoints, all, local string }{
		{"ready", "1 ready a; 2 ready b; 3 dead a", "1 2", "1"},
		{"none ready", "1 serving a; 2 serving b; 3 dead a", "1 2", "1"},
		{"none ready here", "1 serving a; 2 ready b", "2", "1"},
		{"none here", "1 ready b; 2 serving b", "1", ""},
		{"nobody", "1 dead a", "", ""},
		{"zones", "1 ready a zone:z; 2 ready b zone:y; 3 ready b zone:z", "1 3", "1"},
		{"zones, one without", "1 ready a zone:z; 2 ready b", "1 2", "1"},
		{"zones, one without that is not ready", "1 ready a zone:z; 2 ready b zone:y; 3 serving b", "1", "1"},
		{"zones, none for here", "1 ready b zone:y; 2 ready b zone:x", "1 2", ""},
		{"nodes before zones", "1 ready a node:a zone:y; 2 ready b node:b zone:z", "1", "1"},
		{"nodes, none for here", "1 ready b node:b zone:z; 2 ready b node:b zone:y", "1", ""},
		{"hints do not count for what terminates", "1 serving a zone:y; 2 serving b zone:z", "1 2", "1"},
	} {
		e := &node.Env{Node: &cluster.Node{Name: "a", Zone: "z"}}
		all, local := chooseEndpoints(e, &cluster.Frontend{ExternalLocal: true, Backends: endpointsOf(t, c.endpoints)})
		text := func(list []netip.AddrPort) string {
			var names []string
			for _, x := range list {
				names = append(names, strings.TrimPrefix(x.Addr().String(), "10.0.0."))
			}
			return strings.Join(names, " ")
		}
		if text(all) != c.all || text(local) != c.local {
			t.Errorf("%s: all %q, local %q; want %q and %q", c.name, text(all), text(local), c.all, c.local)
		}
	}
}
