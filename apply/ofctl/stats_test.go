package ofctl_test

import (
	"testing"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/datapath/ovs"
	"hairpin/pipeline"
)

// TestStats checks the figures of a running Open vSwitch, with packets that a flow drops and others
// that match none.
func TestStats(t *testing.T) {
	n := node(t)
	target := open(t, n)
	want := ovs.State{Bridge: "br-ex", Bridges: withGroups(t, n).Bridges}
	k := flow.Key{Bridge: claims.ServiceBridge, Table: pipeline.SvcClassifier, Priority: 9,
		Match: flow.Match{Protocol: flow.ARP}}
	want.Flows.Put(k.ID(), flow.New(k, claims.FeatureServices, cluster.Owner{Kind: "Node", Name: "node-a"},
		flow.Drop{}))
	reach(t, target, want)
	before, err := target.Stats(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	sh(t, n, `ovs-vsctl add-port br-svc probe0 -- set Interface probe0 type=internal
		ip link set probe0 up
		for i in 1 2 3; do ovs-ofctl packet-out br-svc "in_port=LOCAL packet=ffffffffffff0a580af4010208060001080006040001`+
		`0a580af401020af401020000000000000af40103 actions=table"; done
		ovs-ofctl packet-out br-svc "in_port=LOCAL packet=ffffffffffff0a580af401028999`+
		`0000000000000000000000000000000000000000000000000000000000000000 actions=table"
		ovs-appctl revalidator/wait; ovs-appctl revalidator/wait`)
	drops, err := target.DropCounts(ctx(t))
	if err != nil || len(drops) != 1 || drops[k] != 3 {
		t.Errorf("the flow has dropped %v, %v", drops, err)
	}
	missed, err := target.Unmatched(ctx(t))
	if err != nil || missed[pipeline.SvcClassifier] < 1 {
		t.Errorf("without a flow: %v, %v", missed, err)
	}
	after, err := target.Stats(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	if after.Objects["rules"] == 0 || after.Objects["ports"] <= before.Objects["ports"] || after.Lost != 0 {
		t.Errorf("before %+v, after %+v", before, after)
	}
	if userspace := n.Datapath() == "netdev"; (after.Connections != nil) != userspace ||
		userspace && after.Connections.Limit == 0 {
		t.Errorf("connections of datapath %s: %+v", n.Datapath(), after.Connections)
	}
	t.Logf("%+v", after)
}
