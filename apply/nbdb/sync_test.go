package nbdb_test

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"syscall"
	"testing"
	"time"

	"hairpin/datapath/nb"
	"hairpin/lab"
)

// controlled starts a complete node with a working ovn-controller.
func controlled(t *testing.T) *lab.Node {
	n := lab.StartNode(t, lab.NodeConfig{})
	sh(t, n,
		`ovs-vsctl set open . external_ids:ovn-remote=unix:/run/ovn/ovnsb_db.sock external_ids:ovn-encap-type=geneve external_ids:ovn-encap-ip=172.18.0.3 \
external_ids:ovn-is-interconn=true external_ids:ovn-monitor-all=true external_ids:ovn-bridge-datapath-type=`+n.Datapath()+`
ovn-sbctl --timeout=20 wait-until chassis node-a`)
	return n
}

// TestSyncIsTheSwitch checks that Sync returns when the flows are in the switch, and not before.
func TestSyncIsTheSwitch(t *testing.T) {
	n := controlled(t)
	target := open(t, n)
	want := rich(t)
	global := *want[(&nb.Global{}).Key()].(*nb.Global)
	global.Options = maps.Clone(global.Options)
	delete(global.Options, "name")
	want.Add(&global)
	reach(t, target, want)
	begin := time.Now()
	if err := target.Sync(ctx(t)); err != nil {
		t.Fatal(err)
	}
	t.Logf("first Sync: %v", time.Since(begin))

	const flows = `ovs-ofctl dump-flows br-int | grep -c 'nw_dst=10.99.0.1' || true`
	if got := sh(t, n, flows); got != "0\n" {
		t.Fatalf("flows before: %s", got)
	}
	lb := *want[nb.Key{Table: nb.TableLoadBalancer, Name: "default/web:http/tcp/IPv4"}].(*nb.LoadBalancer)
	lb.VIPs = append([]nb.VIP{vip("10.99.0.1:80", "10.244.1.3:80")}, lb.VIPs...)
	want.Add(&lb)
	// The port must be bound for the node's switch to have flows here.
	sh(t, n, `ovs-vsctl add-port br-int web -- set interface web type=internal external_ids:iface-id=default_web`)
	reach(t, target, want)
	if err := target.Sync(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if got := sh(t, n, flows); got == "0\n" {
		t.Fatalf("Sync returned, and the flows are not there")
	}
	// The remote chassis has a tunnel, and does not delay Sync.
	if got := sh(t, n, `ovs-vsctl --bare --columns=options find interface type=geneve`); !strings.Contains(got,
		"172.18.0.4") {
		t.Errorf("no tunnel to the remote chassis: %q", got)
	}

	if err := n.Signal(lab.Controller, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := target.Sync(short); err == nil {
		t.Error("Sync returned though ovn-controller stands still")
	}
	if err := n.Signal(lab.Controller, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := target.Sync(ctx(t)); err != nil {
		t.Error(err)
	}
	isNow(t, target, want)
}

// TestDaemonsMakeNoDrift checks that the node's own chassis, and the rows that OVN's daemons write,
// are not Hairpin's and cause no signal.
func TestDaemonsMakeNoDrift(t *testing.T) {
	n := controlled(t)
	target := open(t, n)
	want := rich(t)
	reach(t, target, want)
	for i := range 3 {
		if err := target.Sync(ctx(t)); err != nil {
			t.Fatal(err)
		}
		isNow(t, target, want)
		sh(t, n,
			fmt.Sprintf(`ovn-appctl -t ovn-northd inc-engine/recompute; ovs-vsctl --may-exist add-port br-int p%d -- set interface p%d type=internal external_ids:iface-id=default_web`, i, i))
	}
	// Progress is no change: without other changes, Sync causes no signal.
	for quiet := false; !quiet; {
		select {
		case <-target.Changed():
		case <-time.After(500 * time.Millisecond):
			quiet = true
		}
	}
	if err := target.Sync(ctx(t)); err != nil {
		t.Fatal(err)
	}
	select {
	case <-target.Changed():
		t.Error("Sync is told as a change")
	case <-time.After(300 * time.Millisecond):
	}
}

// TestNorthdSurvivesReplacements: a logical switch or router comes while another goes, in one Apply
// and in two.
func TestNorthdSurvivesReplacements(t *testing.T) {
	n := node(t)
	target := open(t, n)
	pid := n.Pid(lab.Northd)
	for i := range 4 {
		for _, row := range []func(name string) nb.Row{
			func(name string) nb.Row { return &nb.Switch{Name: name} },
			func(name string) nb.Row { return &nb.Router{Name: name} },
		} {
			for j := range 2 {
				sh(t, n, `ovn-nbctl --timeout=20 --wait=sb sync`)
				want := nb.State{}
				want.Add(row(fmt.Sprint(i, j)))
				if i%2 == 1 {
					reach(t, target, nb.State{})
				}
				reach(t, target, want)
			}
		}
	}
	sh(t, n, `ovn-nbctl --timeout=20 --wait=sb sync`)
	if now := n.Pid(lab.Northd); now != pid {
		t.Errorf("ovn-northd ended and was started again: its process was %d, and is %d", pid, now)
	}
}
