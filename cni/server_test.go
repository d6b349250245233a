package cni_test

import (
	"context"
	"fmt"
	"log/slog"
	"syscall"
	"testing"
	"time"

	"hairpin/cni"
	"hairpin/lab"
	"hairpin/ovsdb"
)

// TestPods: plan gets the pods of the Interface rows, and the same pointers for unchanged ones.
func TestPods(t *testing.T) {
	n := lab.StartNode(t, lab.NodeConfig{Daemons: []string{lab.OVSDB}})
	ovs, err := ovsdb.Open(ovsdb.Config{
		Endpoint: "unix:" + n.Path("/run/openvswitch/db.sock"), Database: "Open_vSwitch",
		Tables: []ovsdb.Table{ovsdb.Mirror[ovsdb.OpenVSwitch](), ovsdb.Mirror[ovsdb.Bridge](),
			ovsdb.Mirror[ovsdb.Port](), ovsdb.Mirror[ovsdb.Interface]()},
	})
	must(t, err)
	defer ovs.Close()
	must(t, ovs.WaitSynced(t.Context()))
	s := cni.NewServer(ovs, "node-a", slog.New(slog.DiscardHandler))
	add := func(i int) string {
		return fmt.Sprintf(`ovs-vsctl --no-wait add-port br-int hairpin0000000%[1]d -- set Interface hairpin0000000%[1]d external_ids:sandbox=s%[1]d \
			external_ids:k8s.ovn.org/pod-namespace=default external_ids:k8s.ovn.org/pod-name=p%[1]d external_ids:k8s.ovn.org/pod-ifname=eth0 \
			external_ids:attached_mac='"0a:58:0a:f4:01:0%[1]d"' external_ids:ip_addresses='"10.244.1.%[1]d/24"'
			`, i)
	}
	sh(t, n, "ovs-vsctl --no-wait add-br br-int -- add-port br-int eth7; "+add(3)+add(4))
	seen := func(want ...string) []string {
		t.Helper()
		var list []string
		eventually(t, 10*time.Second, fmt.Sprint(want), func() error {
			list = nil
			for _, p := range s.Pods() {
				list = append(list, p.Owner.String()+" "+p.MAC.String()+" "+fmt.Sprint(p.IPs))
			}
			if fmt.Sprint(list) != fmt.Sprint(want) {
				return fmt.Errorf("pods %v", list)
			}
			return nil
		})
		return list
	}
	three, four := "Pod/default/p3 0a:58:0a:f4:01:03 [10.244.1.3]", "Pod/default/p4 0a:58:0a:f4:01:04 [10.244.1.4]"
	seen(three, four)
	first := s.Pods()
	sh(t, n, "ovs-vsctl --no-wait set Interface hairpin00000003 external_ids:ovn-installed=true; "+add(5))
	seen(three, four, "Pod/default/p5 0a:58:0a:f4:01:05 [10.244.1.5]")
	if again := s.Pods(); again[0] != first[0] || again[1] != first[1] {
		t.Error("what did not change is not the same pointer")
	}
	sh(t, n,
		`ovs-vsctl --no-wait set Interface hairpin00000003 external_ids:ip_addresses='"10.244.1.9/24"' -- remove Interface hairpin00000005 external_ids attached_mac`)
	seen("Pod/default/p3 0a:58:0a:f4:01:03 [10.244.1.9]", four)
	// None of the devices exists.
	must(t, s.Reconcile(t.Context()))
	if got := sh(t, n, "ovs-vsctl list-ports br-int"); got != "eth7" {
		t.Errorf("ports after Reconcile: %s", got)
	}
	seen()
	// A pod that is being deleted is left out, even while its port still exists.
	sh(t, n, add(3))
	seen(three)
	must(t, n.Signal(lab.OVSDB, syscall.SIGSTOP))
	t.Cleanup(func() { must(t, n.Signal(lab.OVSDB, syscall.SIGCONT)) })
	soon, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	must(t, s.Reconcile(soon))
	if !s.NeedsReconcile() {
		t.Error("a database that hangs has deleted a port")
	}
	seen()
}
