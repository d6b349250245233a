package ofctl_test

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"hairpin/datapath/ovs"
)

// TestTableNames checks that Open vSwitch shows the names of the pipeline, that it gets them
// without a change of flows or megaflows, that names of others stay, and that Hairpin's are
// removed.
func TestTableNames(t *testing.T) {
	n := serviceNode(t)
	target := open(t, n)
	want := withGroups(t, n)
	bare := want
	bare.Named = nil
	reach(t, target, bare)
	if got := sh(t, n, "ovs-vsctl --columns=name,external_ids list Flow_Table"); strings.Contains(got, "ServiceLB") {
		t.Fatalf("tables have names that are not wanted:\n%s", got)
	}

	// A host's packets have a megaflow, which counts all but the first.
	sh(t, n, `ovs-ofctl add-flow br-ex table=99,priority=1,actions=drop
		ovs-ofctl add-flow br-ex table=0,priority=900,udp,in_port=LOCAL,nw_dst=172.18.99.99,actions=resubmit\(,99\)
		ip neigh replace 172.18.99.99 lladdr 02:00:00:00:00:99 dev br-ex
		for i in 1 2 3 4 5; do echo x >/dev/udp/172.18.99.99/9; sleep 0.1; done`)
	counted := func() (most int) {
		for _, m := range regexp.MustCompile(`dst=172.18.99.99.* packets:(\d+)`).FindAllStringSubmatch(
			sh(t, n, "ovs-appctl dpctl/dump-flows"), -1) {
			c, _ := strconv.Atoi(m[1])
			most = max(most, c)
		}
		return most
	}
	before := counted()
	if before == 0 {
		t.Fatalf("no megaflow of the host's packets: the test shows nothing\n%s",
			sh(t, n, "ovs-appctl dpctl/dump-flows; ovs-ofctl dump-flows br-ex table=99"))
	}
	reach(t, target, want)
	if after := counted(); after < before {
		t.Errorf("the megaflow has counted %d packets, and %d before the tables got names", after, before)
	}
	shown := sh(t, n, "ovs-ofctl --names -O OpenFlow15 dump-flows br-svc; ovs-ofctl --names dump-flows br-ex")
	for _, name := range []string{"table=Classifier,", "table=ServiceLB,", "resubmit(,SessionAffinity)", "table=99,"} {
		if !strings.Contains(shown, name) {
			t.Errorf("ovs-ofctl does not show %s:\n%s", name, shown)
		}
	}

	named := func(bridge string, id int, name string) {
		t.Helper()
		got := strings.TrimSpace(sh(t, n,
			fmt.Sprintf("ovs-vsctl get Flow_Table $(ovs-vsctl get Bridge %s flow_tables:%d) name", bridge, id)))
		if strings.Trim(got, `"`) != name {
			t.Errorf("table %d of %s is named %s, not %s", id, bridge, got, name)
		}
	}
	unchanged := func(what string) {
		t.Helper()
		until(t, target, what, func(s ovs.State, err error) bool { return err == nil && ovs.Diff(want, s).Empty() })
	}
	// Another program names a table of ours, and one that has no name yet.
	sh(t, n, `ovs-vsctl set Flow_Table $(ovs-vsctl get Bridge br-svc flow_tables:20) name=theirs`)
	unchanged("another name is no drift")
	reach(t, target, bare)
	named("br-svc", 20, "theirs")
	if got := sh(t, n, "ovs-vsctl --columns=name list Flow_Table"); strings.Contains(got, "Classifier") {
		t.Errorf("names are left:\n%s", got)
	}
	sh(t, n, `ovs-vsctl --id=@t create Flow_Table name=first -- set Bridge br-ex flow_tables:0=@t`)
	reach(t, target, want)
	named("br-ex", 0, "first")
	named("br-svc", 20, "theirs")
	named("br-svc", 25, "SessionAffinity")

	// A name of an earlier version is replaced, and that of a table that it had goes.
	sh(t, n,
		`ovs-vsctl set Flow_Table $(ovs-vsctl get Bridge br-svc flow_tables:26) name=Old external_ids:k8s.ovn.org/table=Old
		ovs-vsctl --id=@t create Flow_Table name=Gone external_ids:k8s.ovn.org/table=Gone -- set Bridge br-svc flow_tables:99=@t`)
	until(t, target, "the old names are drift", func(s ovs.State, err error) bool {
		return err == nil && ovs.Diff(want, s).Named.Change["br-svc"]
	})
	reach(t, target, want)
	named("br-svc", 26, "EndpointDNAT")
	reach(t, target, ovs.State{Bridge: "br-ex"})
	if got := strings.Fields(sh(t, n, "ovs-vsctl --bare --columns=name list Flow_Table")); len(got) != 1 ||
		got[0] != "first" {
		t.Errorf("after the removal of all there are the tables %q, not only another program's", got)
	}
}
