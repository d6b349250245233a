package plan_test

import (
	"net/netip"
	"testing"

	"hairpin/datapath/flow"
	"hairpin/plan"
	"hairpin/plan/svcbridge"
)

// TestDropReasons checks the reasons of all flows that drop, and that no other flow has one.
func TestDropReasons(t *testing.T) {
	local := frontend("local", "10.96.0.20:80", 30020, "10.244.2.3:8080") // on the other node
	local.ExternalLocal, local.InternalLocal = true, true
	barred := frontend("barred", "10.96.0.21:80", 30021, "10.244.1.3:8080")
	barred.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr("203.0.113.21")}
	barred.Restricted, barred.SourceRanges = true, []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
	a := node("node-a", 1, 3)
	a.Gateway.OpenFlow = true
	s := snapshot(a, node("node-b", 2, 4), local, barred)
	state, problems := plan.Node(s, "node-a")
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	reasons := map[string]map[string]bool{}
	for _, f := range state.Bridge.Flows.All() {
		reason := svcbridge.DropReason(f)
		if _, drops := f.Actions[0].(flow.Drop); drops != (reason != "") {
			t.Errorf("%s: reason %q", f, reason)
		}
		if reasons[f.Owner.Name] == nil {
			reasons[f.Owner.Name] = map[string]bool{}
		}
		reasons[f.Owner.Name][reason] = true
	}
	for owner, want := range map[string]string{"local": svcbridge.ReasonNoLocal, "barred": svcbridge.ReasonSource,
		"node-a": "UnSNAT"} {
		if !reasons[owner][want] {
			t.Errorf("flows of %s have reasons %v, without %q", owner, reasons[owner], want)
		}
	}
	if reasons["barred"][svcbridge.ReasonNoLocal] || reasons["local"][svcbridge.ReasonSource] {
		t.Errorf("%v", reasons)
	}
}
