package plan_test

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/datapath/host"
	"hairpin/datapath/nb"
	"hairpin/datapath/nft"
	"hairpin/plan"
	"hairpin/plan/gateway"
)

var modes = cluster.ModeNames()

// inMode sets a node's gateway mode, and what the node reports then.
func inMode(n *cluster.Node, mode string) {
	g := &n.Gateway
	g.Mode = mode
	if mode != cluster.ModeDetached {
		return
	}
	g.Uplink, g.Device, g.MAC = "", "eth0", cluster.MAC{0x0a, 0x58, 10, 44}
	var own []netip.Prefix
	for _, a := range g.Addresses {
		if a.Addr().Is4() {
			own = append(own, prefix("10.44.0.0/32"))
		} else {
			own = append(own, prefix("fd00:10:44::/128"))
		}
	}
	g.Addresses = own
}

// nodeIn returns the first node of a cluster in a mode.
func nodeIn(mode string) *cluster.Node {
	n := node("node-a", 1, 3)
	n.Gateway.Userspace = true
	inMode(n, mode)
	return n
}

// The number of nft rules and of routes does not depend on the number of Services. Neither does
// that of flows, where the host translates connections to Services.
func TestServicesAreElements(t *testing.T) {
	count := func(s *cluster.Snapshot, mode string) (rules, routes, flows int) {
		for _, n := range s.Nodes {
			inMode(n, mode)
		}
		state, problems := plan.Node(s, "node-000")
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		for _, c := range state.NFT[nft.Inet].Chains {
			rules += len(c.Rules)
		}
		return rules, len(state.Host.Routes), state.Bridge.Flows.Len()
	}
	for _, mode := range modes {
		r1, h1, f1 := count(large(3, 10, cluster.IPv4, cluster.IPv6), mode)
		r2, h2, f2 := count(large(3, 500, cluster.IPv4, cluster.IPv6), mode)
		if r1 != r2 || h1 != h2 {
			t.Errorf("%s: %d rules and %d routes for 10 Services, %d and %d for 500", mode, r1, h1, r2, h2)
		}
		if mode != cluster.ModeShared && f1 != f2 {
			t.Errorf("%s: %d flows for 10 Services, %d for 500", mode, f1, f2)
		}
	}
}

// A detached bridge uses nothing of the machine: no port, no borrowed address or route. Its only
// flows are from and to the gateway router and the host.
func TestDetachedUsesNoUplink(t *testing.T) {
	state, problems := plan.Node(snapshot(nodeIn(cluster.ModeDetached),
		frontend("a", "10.96.0.1:80", 30001, "172.18.0.3:80")), "node-a")
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	for _, f := range state.Bridge.Flows.All() {
		for _, p := range f.Ports() {
			if p != "patch-breth0_node-a-to-br-int" {
				t.Errorf("a flow names port %s: %s", p, f)
			}
		}
		if slices.Contains(f.Actions, flow.Action(flow.Normal{})) {
			t.Errorf("a flow switches as it likes: %s", f)
		}
	}
	for _, r := range state.Host.Routes {
		if r.Borrowed || r.Prefix.Bits() == 0 || r.Link == "eth0" {
			t.Errorf("a route of the machine's: %+v", r)
		}
	}
	for k, a := range state.Host.Addresses {
		if a.Borrowed || k.Link == "eth0" {
			t.Errorf("an address of the machine's: %+v", a)
		}
	}
	if _, ok := state.Host.Links["eth0"]; ok {
		t.Error("the NIC is in the plan")
	}
	if c := state.NFT[nft.Netdev].Chains["uplink"]; c != nil {
		t.Errorf("the kernel is made deaf: %+v", c)
	}
}

// Tunnels of a detached node leave through the host with the userspace datapath, and are the host's
// own with the kernel's.
func TestDetachedTunnels(t *testing.T) {
	a := nodeIn(cluster.ModeDetached)
	b, far := node("node-b", 2, 4), node("node-c", 3, 5)
	far.Addresses = []netip.Addr{addr("192.0.2.5")}
	state, problems := plan.Node(snapshot(a, b, far), "node-a")
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	via := addr("169.254.170.1")
	got := state.Bridge
	if got.TunnelBridge != claims.EncapBridge || len(got.TunnelRoutes) != 2 ||
		got.TunnelRoutes[addr("172.18.0.4")] != via || got.TunnelRoutes[addr("192.0.2.5")] != via {
		t.Errorf("tunnel routes are %v by %q", got.TunnelRoutes, got.TunnelBridge)
	}
	if mac := state.Host.Links[claims.EncapHost].MAC; len(got.TunnelNeighbors) != 1 ||
		got.TunnelNeighbors[via] != mac || mac == (cluster.MAC{}) {
		t.Errorf("tunnel neighbours are %v, the host's end has %v", got.TunnelNeighbors, mac)
	}
	if state.NFT[nft.Netdev].Chains["tunnels"].Device != "eth0" {
		t.Errorf("tunnels are taken from %+v", state.NFT[nft.Netdev].Chains["tunnels"])
	}
	a.Gateway.Device = ""
	_, problems = plan.Node(snapshot(a, b, far), "node-a")
	if len(problems) != 1 ||
		problems[0].Error() != "Node/node-a: metadata.annotations[k8s.ovn.org/l3-gateway-config]: device: no link "+
			"of the host has 172.18.0.3, so tunnels from other nodes do not arrive" {
		t.Errorf("problems without a device: %v", problems)
	}
	a.Gateway.Device, a.Gateway.Userspace = "eth0", false
	state, _ = plan.Node(snapshot(a, b, far), "node-a")
	if len(state.Bridge.TunnelRoutes)+len(state.Bridge.TunnelNeighbors) > 0 || state.NFT[nft.Netdev] != nil ||
		state.Host.Links[claims.EncapBridge] != (host.Link{}) {
		t.Error("the kernel datapath needs no way for tunnels")
	}
}

// Pods leave through the host where its routing decides. Nothing there translates them to the
// node's address but its own nft rules.
func TestPodsLeaveByTheHost(t *testing.T) {
	for _, mode := range modes {
		state, _ := plan.Node(snapshot(nodeIn(mode)), "node-a")
		var hops []netip.Addr
		nats := 0
		for _, r := range state.NB {
			switch r := r.(type) {
			case *nb.Route:
				if r.BySource && r.Prefix == prefix("10.244.0.0/16") {
					hops = append(hops, r.NextHop)
				}
			case *nb.NAT:
				if r.Logical == prefix("10.244.1.0/24") {
					nats++
				}
			}
		}
		hop, hidden := addr("10.244.1.2"), 0
		if mode == cluster.ModeShared {
			hop, hidden = addr("100.64.0.2"), 1
		}
		if !slices.Equal(hops, []netip.Addr{hop}) || nats != hidden ||
			strings.Contains(nft.Print(state.NFT), "pods leave the cluster") == (mode == cluster.ModeShared) {
			t.Errorf("%s: pods leave by %v, with %d rows of NAT", mode, hops, nats)
		}
	}
}

// Before the cluster is known, a detached bridge has its addresses; others have those of the
// machine.
func TestBootstrap(t *testing.T) {
	for _, mode := range modes {
		n := nodeIn(mode)
		s := gateway.Bootstrap(n.Gateway)
		addresses := 0
		if mode == cluster.ModeDetached {
			addresses = 2
		}
		if len(s.Addresses) != addresses || len(s.Routes) != 0 {
			t.Errorf("%s: %d addresses and %d routes", mode, len(s.Addresses), len(s.Routes))
		}
	}
}

// modeTable returns the table of an engine: all rows of the default one, the others' own rows.
func modeTable(engine string) string {
	var table strings.Builder
	for i, cells := range modeRows(engine) {
		fmt.Fprintf(&table, "| %s |\n", strings.Join(cells, " | "))
		if i == 0 {
			table.WriteString(strings.Repeat("|---", len(cells)) + "|\n")
		}
	}
	return table.String()
}

// modeRows has the rows of the table in docs/user/gateway-modes.md: a mode's meaning, by its
// decisions.
func modeRows(engine string) [][]string {
	row := func(title string, answer func(cluster.Mode) string) []string {
		cells := []string{title}
		for i, m := range cluster.Modes() {
			cell := answer(m)
			if j := slices.IndexFunc(cluster.Modes()[:i],
				func(n cluster.Mode) bool { return answer(n) == cell }); j == 0 {
				cell = "the same"
			} else if j > 0 {
				cell = "as " + cluster.Modes()[j].Name
			}
			cells = append(cells, cell)
		}
		return cells
	}
	either := func(decision func(cluster.Mode) bool, yes, no string) func(cluster.Mode) string {
		return func(m cluster.Mode) string {
			if decision(m) {
				return yes
			}
			return no
		}
	}
	uplink := func(m cluster.Mode) bool { return m.Uplink }
	pods := func(m cluster.Mode) bool { return m.PodsByHost }
	clients := func(m cluster.Mode) bool { return m.ClientsByHost }
	services := func(m cluster.Mode) bool { return m.ServicesByHost }
	always := func(text string) func(cluster.Mode) string { return func(cluster.Mode) string { return text } }

	head := []string{""}
	for i, name := range cluster.ModeNames() {
		head = append(head, "`"+name+"`")
		if i == 0 {
			head[1] += " (default)"
		}
	}
	if engine == cluster.EngineOVN {
		return [][]string{
			head,
			row("outside → NodePort, external and LB addresses",
				either(clients, "host's nft → `br-ex` → gateway router", "flows on `br-ex` → gateway router")),
			row("the same, policy `Local`", func(m cluster.Mode) string {
				switch {
				case m.PodsByHost:
					return "host's nft → `ovn-k8s-mp0` → node switch → pod"
				case m.ClientsByHost:
					return "host's nft → `br-ex` → gateway router → pod"
				}
				return "gateway router → pod"
			}),
			row("host → Service", always("`br-ex` → gateway router")),
			row("host or outside → Service → endpoint outside the pod network",
				either(services, "gateway router → `br-ex` → host's routes and nft → any link",
					"gateway router → `br-ex` → uplink")),
		}
	}
	return [][]string{
		head,
		row("gateway bridge `br-ex`", either(uplink, "has the uplink and the node's address",
			"no uplink, and an address of its own")),
		row("the node's NIC", either(uplink, "a port of `br-ex`", "the host's, never touched")),
		row("pod → outside", either(pods, "`ovn-k8s-mp0` → host's routes and nft → uplink",
			"gateway router → `br-ex` → uplink")),
		row("pod → outside, source seen",
			either(pods, "address of the outgoing link, SNAT by nft", "node's address, SNAT by OVN")),
		row("outside → NodePort, external and LB addresses",
			either(clients, "host's nft → `svc-host` → `br-svc`", "flows on `br-ex` → `br-svc`")),
		row("host → Service", always("`svc-host` → `br-svc`")),
		row("host or outside → Service → endpoint outside the pod network",
			always("`br-svc` → host's routes and nft → any link")),
		row("pod → Service → endpoint outside the pod network", always("`br-svc`, then as pod → outside")),
		row("tunnels, kernel datapath", always("host's IP stack → uplink")),
		row("tunnels, userspace datapath", either(uplink, "`br-ex` → uplink", "`br-enc` → host's routes → uplink")),
	}
}

// TestModesDocument: the table in docs/user/gateway-modes.md is generated from the modes' decisions
// (`make golden`).
func TestModesDocument(t *testing.T) {
	const file, from, to = "../docs/user/gateway-modes.md",
		"<!-- Made by `go test ./plan -run ModesDocument -update`. -->\n", "<!-- End of the table. -->\n"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(text), from)
	_, after, ended := strings.Cut(rest, to)
	if !found || !ended {
		t.Fatalf("%s has no place for the table", file)
	}
	want := before + from + "\n" + modeTable(cluster.EngineOpenFlow) +
		"\nWith `service-engine = ovn`, these rows differ:\n\n" + modeTable(cluster.EngineOVN) + "\n" + to + after
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(text) {
		t.Errorf("%s is not what the modes decide: `make golden`", file)
	}
}
