package ofctl_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"hairpin/apply/ofctl"
	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/datapath/ovs"
	"hairpin/delta"
	"hairpin/lab"
)

// TestTheSwitchSaysWhatPrintWrites checks that the switch reports what Print wrote and ovs-ofctl
// set: the syntax is the real one.
func TestTheSwitchSaysWhatPrintWrites(t *testing.T) {
	n := node(t)
	want := rich(t)
	var lines []string
	for _, f := range want.Flows.All() {
		lines = append(lines, f.WithPorts(func(name string) string { return ofport(t, n, name) }).String())
	}
	if out, err := n.ExecInput(ctx(t), strings.Join(lines, "\n"), "ovs-ofctl", "-O", "OpenFlow14", "--bundle",
		"add-flows", "br-ex", "-"); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	have := read(t, open(t, n))
	if d := ovs.Diff(ovs.State{Bridge: "br-ex", Flows: want.Flows}, have); !d.Empty() {
		t.Fatalf("%d differences: %+v", d.Count(), d)
	}
	// With names, as in ovs-ofctl's usual output, for short names.
	for line := range strings.Lines(sh(t, n, `ovs-ofctl -O OpenFlow14 --names --no-stats dump-flows br-ex cookie=0xdeff105/-1 | tail -n +2`)) {
		f, err := flow.ParseFlow(line)
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		full := f.WithPorts(func(name string) string {
			if strings.HasPrefix(patch, name) {
				return patch
			}
			return name
		})
		if w := want.Flows.At(full.ID()); w == nil || !w.Equal(full) {
			t.Errorf("not what was wanted: %s", line)
		}
	}
}

func TestABadFlowDoesNotStopTheOthers(t *testing.T) {
	n := node(t)
	target := open(t, n)
	good := parse(t, "table=7,priority=5 actions=drop\n")
	bad := &flow.Flow{Key: flow.Key{Table: 7, Priority: 6, Match: flow.Match{Protocol: flow.IP, DstPort: 80}},
		Actions: []flow.Action{flow.Drop{}}}
	d := ovs.Diff(good, read(t, target))
	d.Flows.Add[bad.ID()] = bad
	if err := target.Apply(ctx(t), d); err == nil || !strings.Contains(err.Error(), "table=7,priority=6,ip,tp_dst=80") {
		t.Fatalf("the error does not name the flow: %v", err)
	}
	if d := ovs.Diff(good, read(t, target)); !d.Empty() {
		t.Fatalf("the good flow is missing: %+v", d)
	}
}

func TestApplyIsForOneBridge(t *testing.T) {
	target := open(t, node(t))
	other := parse(t, "priority=1 actions=drop")
	other.Bridge = "br-int"
	if err := target.Apply(ctx(t), ovs.Diff(other, ovs.State{})); err == nil ||
		!strings.Contains(err.Error(), "br-int") {
		t.Fatalf("flows of br-int on br-ex: %v", err)
	}
}

// TestOwnChangesAreNoNews checks that own changes cause no signal: the Target knows their result,
// and reads again only what others changed.
func TestOwnChangesAreNoNews(t *testing.T) {
	n := node(t)
	target := open(t, n)
	want := rich(t)
	reach(t, target, want)
	quiet(t, target)

	next := rich(t)
	for id, f := range next.Flows.All() {
		if f.Table == 1 {
			next.Flows.Delete(id)
		}
		if f.Table == 0 && f.Priority == 110 {
			next.Flows.Put(id, &flow.Flow{Key: f.Key, Feature: 9, Actions: f.Actions})
		}
	}
	add := &flow.Flow{Key: flow.Key{Table: 8, Match: flow.Match{InPort: patch}},
		Actions: []flow.Action{flow.Output{Port: "eth0"}}}
	next.Flows.Put(add.ID(), add)
	reach(t, target, next)
	silent(t, target)
	if d := ovs.Diff(next, read(t, open(t, n))); !d.Empty() {
		t.Fatalf("another Target sees %+v", d)
	}

	start := time.Now()
	sh(t, n, `ovs-ofctl --strict del-flows br-ex table=8,priority=0,in_port=`+ofport(t, n, patch))
	if d := ovs.Diff(next, read(t, target)); d.Count() != 1 {
		t.Fatalf("what was deleted before Read is not missing: %+v", d)
	}
	select {
	case <-target.Changed():
		t.Logf("told %v after the command began", time.Since(start).Round(time.Millisecond))
	case <-time.After(10 * time.Second):
		t.Fatal("not told")
	}
}

// silent expects no signal after an own change.
func silent(t testing.TB, target *ofctl.Target) {
	t.Helper()
	select {
	case <-target.Changed():
		t.Error("our own change is told")
	case <-time.After(300 * time.Millisecond):
	}
}

// quiet waits until every bridge is monitored, and all earlier events are reported.
func quiet(t testing.TB, target *ofctl.Target) {
	t.Helper()
	for end := time.After(20 * time.Second); !target.Watching(); {
		select {
		case <-target.Changed():
		case <-end:
			t.Fatal("not every bridge is watched after 20 s")
		}
	}
	told(t, target)
}

// told waits until all earlier events are reported.
func told(t testing.TB, target *ofctl.Target) {
	t.Helper()
	for range 100 {
		select {
		case <-target.Changed():
		case <-time.After(150 * time.Millisecond):
			return
		}
	}
	t.Fatal("Changed tells for ever")
}

// TestBridgeForwardsWhenEverythingOfOursIsGone checks that a standalone bridge gets its only flow
// back when Hairpin's is deleted. Without it, the node would be cut off.
func TestBridgeForwardsWhenEverythingOfOursIsGone(t *testing.T) {
	n := node(t)
	target := open(t, n)
	before := sh(t, n, `ovs-ofctl --no-stats dump-flows br-ex`)
	reach(t, target, rich(t))
	reach(t, target, ovs.State{Bridge: "br-ex"})
	if after := sh(t, n, `ovs-ofctl --no-stats dump-flows br-ex`); after != before {
		t.Fatalf("before\n%s\nafter\n%s", before, after)
	}
}

func TestReadFailsWithoutBridgeOrSwitch(t *testing.T) {
	n := node(t)
	target, err := ofctl.Open(ofctl.Config{Bridge: "br-nope", Path: n.Path, Command: n.Command})
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	if _, err := target.Read(ctx(t)); err == nil || !strings.Contains(err.Error(), "br-nope") {
		t.Fatalf("Read of a bridge that is not there: %v", err)
	}
	told(t, target)
	sh(t, n, `ovs-vsctl add-br br-nope -- set Bridge br-nope datapath_type=`+n.Datapath())
	until(t, target, "the bridge is made", func(_ ovs.State, err error) bool { return err == nil })
	sh(t, n, `ovs-vsctl del-br br-nope`)
	until(t, target, "the bridge goes", func(_ ovs.State, err error) bool { return err != nil })
}

func TestVersion(t *testing.T) {
	n := node(t)
	got, err := open(t, n).Version(ctx(t))
	want := sh(t, n, `ovs-vswitchd --version | sed -n '1s/.* //p'`)
	if err != nil || got != strings.TrimSpace(want) {
		t.Fatalf("%q, %v; want %q", got, err, want)
	}
}

// nodePorts returns n flows of NodePorts.
func nodePorts(n int) (flows delta.Map[flow.ID, *flow.Flow]) {
	for i := range n / 2 {
		m := flow.Match{Protocol: flow.TCP, InPort: "eth0", DstPort: uint16(30000 + i)}
		in := &flow.Flow{Key: flow.Key{Priority: 110, Match: m}, Feature: 2,
			Actions: []flow.Action{flow.Output{Port: patch}}}
		m = flow.Match{Protocol: flow.TCP, InPort: patch, SrcPort: uint16(30000 + i), EthSrc: cluster.MAC{2}}
		out := &flow.Flow{Key: flow.Key{Priority: 110, Match: m}, Feature: 2,
			Actions: []flow.Action{flow.CT{Commit: true, Zone: claims.ZoneUplink, Mark: claims.CTMarkOVN},
				flow.Output{Port: "eth0"}}}
		flows.Put(in.ID(), in)
		flows.Put(out.ID(), out)
	}
	return flows
}

func BenchmarkBridge(b *testing.B) {
	n := node(b)
	const size = 40000
	all := ovs.State{Bridge: lab.GatewayBridge, Flows: nodePorts(size)}
	target := open(b, n)
	reach(b, target, ovs.State{Bridge: lab.GatewayBridge})
	b.Run(fmt.Sprintf("Apply%d", size), func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			reach(b, target, ovs.State{Bridge: lab.GatewayBridge})
			d := ovs.Diff(all, read(b, target))
			b.StartTimer()
			if err := target.Apply(ctx(b), d); err != nil {
				b.Fatal(err)
			}
		}
	})
	reach(b, target, all)
	b.Run("ReadFromSwitch", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			fresh := open(b, n)
			b.StartTimer()
			if got := read(b, fresh); got.Flows.Len() != size {
				b.Fatal(got.Flows.Len())
			}
			b.StopTimer()
			fresh.Close()
			b.StartTimer()
		}
	})
	b.Run("ReadUnchanged", func(b *testing.B) {
		for b.Loop() {
			read(b, target)
		}
	})
	one := &flow.Flow{Key: flow.Key{Priority: 110, Match: flow.Match{Protocol: flow.UDP, InPort: "eth0", DstPort: 5}},
		Actions: []flow.Action{flow.Drop{}}}
	b.Run("ApplyOneReadDiff", func(b *testing.B) {
		for b.Loop() {
			want := ovs.State{Bridge: lab.GatewayBridge, Flows: all.Flows}
			d := ovs.Delta{Bridge: want.Bridge}
			d.Flows.Add = map[flow.ID]*flow.Flow{one.ID(): one}
			if err := target.Apply(ctx(b), d); err != nil {
				b.Fatal(err)
			}
			back := ovs.Diff(want, read(b, target))
			if len(back.Flows.Delete) != 1 {
				b.Fatal(back.Count())
			}
			if err := target.Apply(ctx(b), back); err != nil {
				b.Fatal(err)
			}
		}
	})
}
