package ofctl_test

import (
	"strings"
	"testing"

	"hairpin/apply/ofctl"
	"hairpin/datapath/ovs"
)

// TestLimits checks that Open vSwitch enforces the limits, that an administrator's stays, and that
// Hairpin's are removed with the bridge.
func TestLimits(t *testing.T) {
	n := node(t)
	target := open(t, n)
	want := ovs.State{Bridge: "br-ex", Bridges: withGroups(t, n).Bridges}
	limited := func(learned, connections int) ovs.State {
		b := want.Bridges["br-svc"]
		b.Learned, b.Connections = learned, connections
		return ovs.State{Bridge: want.Bridge, Bridges: map[string]ovs.Bridge{b.Name: b}}
	}
	zone := func(limit string) {
		t.Helper()
		got := sh(t, n, "ovs-appctl dpctl/ct-get-limits zone=64003 | tail -n +2")
		if !strings.Contains(got, ",limit="+limit+",") {
			t.Errorf("the datapath has %q, not the limit %s", got, limit)
		}
	}
	table := func(limit string) {
		t.Helper()
		if got := sh(t, n, "ovs-ofctl dump-tables br-svc"); !strings.Contains(got, "max_entries="+limit+"\n") {
			t.Errorf("table 25 has not the limit %s:\n%s", limit, got)
		}
	}
	reach(t, target, want)
	zone("5000")
	table("100")
	reach(t, target, limited(200, 6000))
	zone("6000")
	table("200")
	sh(t, n, "ovs-ofctl add-flow br-svc table=25,tcp,actions=drop")
	connections, learned, err := target.Usage(ctx(t))
	if err != nil || *connections != (ofctl.Usage{Limit: 6000}) || *learned != (ofctl.Usage{Used: 1, Limit: 200}) {
		t.Errorf("usage: %+v, %+v, %v", connections, learned, err)
	}
	sh(t, n, "ovs-ofctl del-flows br-svc table=25")
	reach(t, target, limited(0, 0))
	zone("0")
	if connections, learned, err := target.Usage(ctx(t)); err != nil || connections != nil || learned != nil {
		t.Errorf("usage without limits: %+v, %+v, %v", connections, learned, err)
	}
	if got := sh(t, n, "ovs-vsctl list Flow_Table"); got != "" {
		t.Errorf("the limit of flows is still there:\n%s", got)
	}

	set := "ovs-vsctl set-zone-limit " + n.Datapath() + " 64003 "
	for _, before := range []int{0, 5000} { // without and with a limit of Hairpin's
		reach(t, target, limited(100, before))
		sh(t, n, set+"70")
		until(t, target, "an administrator's limit is no drift", func(s ovs.State, err error) bool {
			return err == nil && s.Bridges["br-svc"].Connections == ovs.ForeignLimit &&
				ovs.Diff(want, s).Bridges.Empty()
		})
		reach(t, target, limited(300, 8000))
		zone("70")
		reach(t, target, ovs.State{Bridge: "br-ex"})
		zone("70")
		sh(t, n, "ovs-vsctl del-zone-limit "+n.Datapath()+" 64003")
	}

	sh(t, n, "ovs-vsctl add-zone-tp "+n.Datapath()+" zone=64003 udp_first=20")
	until(t, target, "a timeout policy alone is no limit", func(s ovs.State, err error) bool {
		return err == nil && target.Apply(ctx(t), ovs.Diff(want, s)) == nil && ovs.Diff(want, read(t, target)).Empty()
	})
	zone("5000")
	reach(t, target, ovs.State{Bridge: "br-ex"})
	zone("0")
	if got := sh(t, n, "ovs-vsctl list-zone-tp "+n.Datapath()); !strings.Contains(got, "udp_first=20") {
		t.Errorf("the administrator's timeout policy is gone: %q", got)
	}
}
