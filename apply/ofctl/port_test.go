package ofctl_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"hairpin/apply"
	"hairpin/apply/ofctl"
	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/datapath/ovs"
	"hairpin/lab"
)

// until waits until a State holds: it reads once, and then after every signal.
func until(t testing.TB, target *ofctl.Target, what string, holds func(ovs.State, error) bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		s, err := target.Read(ctx(t))
		if holds(s, err) {
			return
		}
		select {
		case <-target.Changed():
		case <-deadline:
			t.Fatalf("%s: not told in 20 s; the last State is\n%s%v", what, ovs.Print(s), err)
		}
	}
}

func TestFlowsWaitForTheirPort(t *testing.T) {
	n := node(t)
	sh(t, n, `ovs-vsctl del-port `+patch)
	target := open(t, n)
	want := rich(t)
	waiting, installed := 0, 0
	for _, f := range want.Flows.All() {
		if slices.Contains(f.Ports(), patch) {
			waiting++
		} else {
			installed++
		}
	}
	err := target.Apply(ctx(t), ovs.Diff(want, read(t, target)))
	var w *apply.Waiting
	if !errors.As(err, &w) || !slices.Equal(w.Devices, []string{patch}) {
		t.Fatalf("Apply without the port: %v", err)
	}
	have := read(t, target)
	if d := ovs.Diff(want, have); have.Flows.Len() != installed || d.Count() != waiting ||
		len(d.Flows.Add) != waiting {
		t.Fatalf("%d flows, want %d; the difference is %+v", have.Flows.Len(), installed, d)
	}

	addPatch(t, n)
	until(t, target, "the port appears", func(s ovs.State, err error) bool {
		return err == nil && target.Apply(ctx(t), ovs.Diff(want, s)) == nil
	})
	if d := ovs.Diff(want, read(t, target)); !d.Empty() {
		t.Fatalf("%d differences left: %+v", d.Count(), d)
	}
}

// TestFloodsToThePortsThatAreThere checks that a flow which floods exists without a missing port,
// and gets it when the port appears.
func TestFloodsToThePortsThatAreThere(t *testing.T) {
	n := node(t)
	target := open(t, n)
	want := parse(t,
		fmt.Sprintf("priority=5 actions=output:%q,output:late\npriority=6,in_port=late "+
			"actions=output:%q\npriority=7,in_port=LOCAL actions=output:late\n", patch, patch))
	err := target.Apply(ctx(t), ovs.Diff(want, read(t, target)))
	var w *apply.Waiting
	if !errors.As(err, &w) || !slices.Equal(w.Devices, []string{"late"}) {
		t.Fatalf("Apply without the port: %v", err)
	}
	if got, want := ovs.Print(ovs.State{Flows: read(t, target).Flows}),
		fmt.Sprintf("cookie=0xdeff105,table=0,priority=5 actions=output:%q\n", patch); got != want {
		t.Fatalf("without the port there is\n%swant\n%s", got, want)
	}
	sh(t, n, `ovs-vsctl add-port br-ex late -- set Interface late type=patch options:peer=x`)
	until(t, target, "the port appears", func(s ovs.State, err error) bool {
		return err == nil && target.Apply(ctx(t), ovs.Diff(want, s)) == nil && ovs.Diff(want, read(t, target)).Empty()
	})
}

func TestPortsWaitForTheirBridge(t *testing.T) {
	n := node(t)
	sh(t, n, `ovs-vsctl del-br br-int`)
	target := open(t, n)
	want := ovs.State{Bridge: "br-ex", Ports: rich(t).Ports, Settings: map[string]string{"ovn-encap-ip": "172.18.0.3"}}
	err := target.Apply(ctx(t), ovs.Diff(want, read(t, target)))
	var w *apply.Waiting
	if !errors.As(err, &w) || !slices.Equal(w.Devices, []string{"br-int"}) {
		t.Fatalf("Apply without the bridge: %v", err)
	}
	if got := read(t, target).Settings; got["ovn-encap-ip"] != "172.18.0.3" {
		t.Fatalf("the setting waited too: %v", got)
	}
	sh(t, n, `ovs-vsctl add-br br-int -- set Bridge br-int datapath_type=`+n.Datapath())
	reach(t, target, want)
}

// TestFlowsGoToThePortOfTheFullName checks two ports whose names have the first 15 characters in
// common, the maximum that OpenFlow reports.
func TestFlowsGoToThePortOfTheFullName(t *testing.T) {
	n := node(t)
	sh(t, n,
		`ovs-vsctl add-port br-ex patch-br-ex_node-b -- set Interface patch-br-ex_node-b type=patch options:peer=x`)
	target := open(t, n)
	want := parse(t,
		fmt.Sprintf("priority=5,in_port=%q "+
			"actions=output:\"patch-br-ex_node-b\"\npriority=5,in_port=\"patch-br-ex_node-b\" actions=output:%q\n",
			patch, patch))
	reach(t, target, want)
	a, b := ofport(t, n, patch), ofport(t, n, "patch-br-ex_node-b")
	flows := sh(t, n, `ovs-ofctl --no-names --no-stats dump-flows br-ex cookie=0xdeff105/-1`)
	for _, line := range []string{"in_port=" + a + " actions=output:" + b, "in_port=" + b + " actions=output:" + a} {
		if !strings.Contains(flows, line) {
			t.Errorf("no %s in\n%s", line, flows)
		}
	}
}

func ofport(t testing.TB, n *lab.Node, port string) string {
	t.Helper()
	return strings.TrimSpace(sh(t, n, `ovs-vsctl get Interface `+port+` ofport`))
}

func TestPortMadeAgainUnderAnotherNumber(t *testing.T) {
	n := node(t)
	target := open(t, n)
	want := rich(t)
	reach(t, target, want)
	before := ofport(t, n, patch)

	sh(t, n, `ovs-vsctl del-port `+patch)
	until(t, target, "the port goes", func(s ovs.State, err error) bool {
		return err == nil && s.Flows.At(flow.Key{Priority: 105,
			Match: flow.Match{Protocol: flow.IP, PktMark: 0x3f0, InPort: before}}.ID()) != nil
	})
	// A foreign port takes over the number: Hairpin's flows must not apply to it.
	sh(t, n, `ovs-vsctl add-port br-ex theirs -- set Interface theirs type=internal ofport_request=`+before)
	addPatch(t, n)
	until(t, target, "the port comes back", func(s ovs.State, err error) bool {
		return err == nil && target.Apply(ctx(t), ovs.Diff(want, s)) == nil
	})
	after := ofport(t, n, patch)
	if after == before || ofport(t, n, "theirs") != before {
		t.Fatalf("the port had number %s and has %s", before, after)
	}
	if d := ovs.Diff(want, read(t, target)); !d.Empty() {
		t.Fatalf("%+v", d)
	}
	if flows := sh(t, n, `ovs-ofctl --no-names --no-stats dump-flows br-ex`); strings.Contains(flows, "in_port="+
		before) || strings.Contains(flows, "output:"+before) {
		t.Fatalf("number %s is still in\n%s", before, flows)
	}
}

// TestPortsCostNoReading checks that a new or removed pod port does not cause another read of all
// flows. Flows of a removed port keep its number.
func TestPortsCostNoReading(t *testing.T) {
	n := serviceNode(t)
	var readings atomic.Int32
	target, err := ofctl.Open(ofctl.Config{Bridge: lab.GatewayBridge, Settings: settings(), Path: n.Path,
		Command: func(ctx context.Context, args ...string) *exec.Cmd {
			if slices.Contains(args, "dump-flows") {
				readings.Add(1)
			}
			return n.Command(ctx, args...)
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(target.Close)
	want := withGroups(t, n)
	reach(t, target, want)
	quiet(t, target)
	read(t, target)
	before := readings.Load()

	sh(t, n, `ovs-vsctl add-port br-svc pod3 -- set Interface pod3 type=internal`)
	of := func(port string) flow.Key {
		return flow.Key{Bridge: "br-svc", Table: 50, Priority: 100, Match: flow.Match{InPort: port}}
	}
	want.Flows.Put(of("pod3").ID(), &flow.Flow{Key: of("pod3"), Actions: []flow.Action{flow.Output{Port: "veth2"}}})
	until(t, target, "the port comes", func(s ovs.State, err error) bool {
		return err == nil && target.Apply(ctx(t), ovs.Diff(want, s)) == nil
	})
	number := ofport(t, n, "pod3")
	sh(t, n, `ovs-vsctl del-port pod3`)
	until(t, target, "the port goes", func(s ovs.State, err error) bool {
		return err == nil && s.Flows.At(of(number).ID()) != nil
	})
	sh(t, n, `ovs-vsctl add-port br-svc pod4 -- set Interface pod4 type=internal ofport_request=`+number)
	until(t, target, "another has the number", func(s ovs.State, err error) bool {
		return err == nil && s.Flows.At(of("pod4").ID()) != nil
	})
	reach(t, target, withGroups(t, n))
	if more := readings.Load() - before; more > 0 {
		t.Errorf("flows were read %d times more", more)
	}
	reach(t, open(t, n), withGroups(t, n))
}

// TestPortTakesOver checks that a wanted port takes over an existing port of the same name, on any
// bridge and of any owner.
func TestPortTakesOver(t *testing.T) {
	n := node(t)
	target := open(t, n)
	for _, stands := range []string{
		`ovs-vsctl add-port br-int ovn-k8s-mp0 -- set Interface ovn-k8s-mp0 type=internal external_ids:iface-id=old`,
		`ovs-vsctl add-port br-ex ovn-k8s-mp0 -- set Interface ovn-k8s-mp0 type=internal external_ids:iface-id=old`,
		`ovs-vsctl add-port br-int ovn-k8s-mp0 -- set Interface ovn-k8s-mp0 type=internal options:peer=x`,
		`ovs-vsctl add-bond br-int ovn-k8s-mp0 x1 x2 -- set Interface x1 type=internal -- set Interface x2 type=internal`,
	} {
		sh(t, n, `ovs-vsctl --if-exists del-port ovn-k8s-mp0 -- `+strings.TrimPrefix(stands, "ovs-vsctl "))
		reach(t, target, ovs.State{Bridge: "br-ex", Ports: rich(t).Ports})
		if got := strings.TrimSpace(sh(t, n,
			`ovs-vsctl port-to-br ovn-k8s-mp0; ovs-vsctl get Interface ovn-k8s-mp0 external_ids:iface-id type`)); got != "br-int\nk8s-node-a\ninternal" {
			t.Fatalf("after %s: %s", stands, got)
		}
	}
}

func TestTunnelNeighbors(t *testing.T) {
	n := node(t)
	target := open(t, n)
	sh(t, n, `ovs-appctl tnl/neigh/set br-int 172.18.0.9 02:42:ac:12:00:09`)
	a, b := netip.MustParseAddr("172.18.0.4"), netip.MustParseAddr("fc00:f853:ccd::4")
	want := ovs.State{Bridge: "br-ex", TunnelNeighbors: map[netip.Addr]cluster.MAC{a: {2, 0, 0, 0, 0, 4},
		b: {2, 0, 0, 0, 0, 4}}}
	reach(t, target, want)
	want.TunnelNeighbors[a] = cluster.MAC{2, 0, 0, 0, 0, 5}
	reach(t, target, want)
	if got := read(t, target).TunnelNeighbors; len(got) != 2 || got[a] != want.TunnelNeighbors[a] ||
		got[b] != want.TunnelNeighbors[b] {
		t.Fatalf("neighbours %v", got)
	}
	sh(t, n, `ovs-appctl tnl/neigh/flush`)
	if d := ovs.Diff(want, read(t, target)); len(d.TunnelNeighbors.Add) != 2 {
		t.Fatalf("lost neighbours are not missed: %+v", d)
	}
	reach(t, target, want)
}

func TestTunnelRoutes(t *testing.T) {
	n := node(t)
	sh(t, n, `ovs-vsctl add-br br-enc -- set Bridge br-enc datapath_type=`+n.Datapath())
	sh(t, n, `ip link set br-enc up; ip addr add 169.254.170.2/30 dev br-enc; ip addr add fd6a::2/126 dev br-enc nodad`)
	target, err := ofctl.Open(ofctl.Config{Bridge: "br-ex", TunnelBridge: "br-enc", Path: n.Path, Command: n.Command})
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	a, b, via4, via6 := netip.MustParseAddr("172.18.0.4"), netip.MustParseAddr("fc00:f853:ccd::4"),
		netip.MustParseAddr("169.254.170.1"), netip.MustParseAddr("fd6a::1")
	want := ovs.State{
		Bridge: "br-ex", TunnelBridge: "br-enc", TunnelRoutes: map[netip.Addr]netip.Addr{a: via4, b: via6},
		TunnelNeighbors: map[netip.Addr]cluster.MAC{via4: {2, 0, 0, 0, 0, 4}},
	}
	reach(t, target, want)
	if got := sh(t, n, `ovs-appctl tnl/neigh/show`); !strings.Contains(got, "br-enc") {
		t.Fatalf("neighbours:\n%s", got)
	}
	delete(want.TunnelRoutes, b)
	want.TunnelRoutes[netip.MustParseAddr("172.18.0.5")] = via4
	reach(t, target, want)
	if got := sh(t, n, `ovs-appctl ovs/route/show`); strings.Count(got, "User: ") != 2 ||
		strings.Contains(got, "User: fc00") {
		t.Fatalf("routes:\n%s", got)
	}
}
