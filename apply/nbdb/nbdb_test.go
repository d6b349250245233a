package nbdb_test

import (
	"context"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"hairpin/apply"
	"hairpin/apply/nbdb"
	"hairpin/cluster"
	"hairpin/datapath/datapathtest"
	"hairpin/datapath/nb"
	"hairpin/lab"
)

var _ apply.Target[nb.State, nb.Delta] = (*nbdb.Target)(nil)

// rich returns a State with rows of every table, as on a node.
func rich(t testing.TB) nb.State {
	return datapathtest.Read[nb.State](t, "../../datapath/nb/testdata/node-a.json")
}

// node starts a node with databases and ovn-northd, and without Open vSwitch.
func node(t testing.TB) *lab.Node {
	return lab.StartNode(t, lab.NodeConfig{Daemons: []string{lab.NB, lab.SB, lab.Northd}})
}

func open(t testing.TB, n *lab.Node) *nbdb.Target {
	t.Helper()
	target, err := nbdb.Open(nbdb.Config{RunDir: n.Path("/run/ovn")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(target.Close)
	read(t, target) // waits until it is connected
	return target
}

// read reads, and retries while a database is unreachable.
func read(t testing.TB, target *nbdb.Target) nb.State {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; {
		s, err := target.Read(t.Context())
		if err == nil {
			return s
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func ctx(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// sh runs lines in the node as one script that stops at the first error. Hundreds of commands of
// ovn-nbctl take longer than other steps on a busy machine.
func sh(t testing.TB, n *lab.Node, script string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out, err := n.ExecInput(ctx, script, "bash", "-e")
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, script, out)
	}
	return out
}

// reach makes the databases equal to want.
func reach(t testing.TB, target *nbdb.Target, want nb.State) {
	t.Helper()
	have := read(t, target)
	if err := target.Apply(ctx(t), nb.Diff(want, have)); err != nil {
		t.Fatal(err)
	}
}

// isNow checks that Read returns want.
func isNow(t testing.TB, target *nbdb.Target, want nb.State) {
	t.Helper()
	have := read(t, target)
	if d := nb.Diff(want, have); !d.Empty() {
		t.Fatalf("%d differences\nwant\n%s\nhave\n%s", d.Count(), nb.Print(want), nb.Print(have))
	}
}

func TestKeysOfOthersInRowsOfOursSurvive(t *testing.T) {
	n := node(t)
	target := open(t, n)
	want := rich(t)
	reach(t, target, want)
	sh(t, n, foreign)
	sh(t, n,
		`ovn-nbctl set logical_router GR_node-a options:foreign=1 external_ids:foreign=1 -- set logical_switch node-a other_config:foreign=1 -- set logical_router_port rtos-node-a options:foreign=1`)
	isNow(t, target, want)

	// Every option of Hairpin's is changed or removed.
	other := nb.State{}
	for k, r := range want {
		other[k] = r
	}
	other.Add(
		&nb.Router{Name: "GR_node-a", Options: map[string]string{"chassis": "x"},
			Owner: cluster.Owner{Kind: "Node", Name: "x"}},
		&nb.LoadBalancer{Name: "none", Protocol: cluster.SCTP, Options: map[string]string{"reject": "true"}},
		&nb.Switch{Name: "node-a"},
		&nb.RouterPort{Name: "rtos-node-a", Router: "ovn_cluster_router", MAC: cluster.MAC{2}},
		&nb.Global{Name: "x"},
	)
	reach(t, target, other)
	isNow(t, target, other)
	reach(t, target, want)
	isNow(t, target, want)
	got := sh(t, n,
		`for x in "nb_global ." "load_balancer none" "logical_switch_port default_web" "logical_router GR_node-a" "logical_router_port rtos-node-a"; do ovn-nbctl get $x options:foreign; done
ovn-nbctl get logical_switch node-a other_config:foreign
for x in "nb_global ." "load_balancer none" "logical_switch_port default_web" "logical_router GR_node-a"; do ovn-nbctl get $x external_ids:foreign; done`)
	if got != strings.Repeat("\"1\"\n", 10) {
		t.Fatalf("keys of others: %q", got)
	}
	if got := sh(t, n, `ovn-nbctl get nb_global . options:svc_monitor_mac`); len(got) < 17 {
		t.Fatalf("ovn-northd's own key is gone: %q", got)
	}
	// Foreign keys in Hairpin's rows are kept as well.
	if got := sh(t, n,
		`ovn-nbctl ls-lb-list node-a; ovn-nbctl lr-route-list GR_node-a; ovn-nbctl lr-policy-list ovn_cluster_router; ovn-nbctl lr-nat-list ovn_cluster_router; ovn-nbctl lsp-list node-a`); !strings.Contains(got, "flb") ||
		!strings.Contains(got, "172.18.0.77") || !strings.Contains(got, "169.254.9.9") ||
		!strings.Contains(got, "foreign-port") {
		t.Fatalf("what others attached: %s", got)
	}
}

// TestPrintedLinesAreCommands checks that ovn-nbctl accepts the output of Print, and makes the
// printed rows.
func TestPrintedLinesAreCommands(t *testing.T) {
	n := node(t)
	want := rich(t)
	sh(t, n, script(nb.Print(want)))
	target := open(t, n)
	found, err := target.ReadAll(ctx(t))
	if err != nil {
		t.Fatal(err)
	}
	for k, w := range want {
		h := found[k]
		if h == nil || !nb.SameContent(w, h) {
			t.Errorf("%s\nmade %v", nb.Line(w), h)
		}
	}
	if len(found) != len(want) {
		t.Errorf("%d rows of %d lines:\n%s", len(found), len(want), nb.Print(found))
	}
	// Apply takes over rows of those names, and does not recreate them.
	reach(t, target, want)
	isNow(t, target, want)
	after, err := target.ReadAll(ctx(t))
	if err != nil || len(after) != len(want) {
		t.Errorf("%d rows after they were taken over, %v", len(after), err)
	}
	if count := sh(t, n, `ovn-nbctl --bare --columns=name list logical_router | grep -c .`); count != "2\n" {
		t.Errorf("%s routers", count)
	}
}

func TestOneEndpointIsOneUpdateOfVIPs(t *testing.T) {
	n := node(t)
	target := open(t, n)
	want := rich(t)
	reach(t, target, want)
	sh(t, n, `ovn-nbctl --wait=sb sync`)
	if err := n.Kill(ctx(t), lab.Northd, syscall.SIGKILL); err != nil { // so that only Hairpin writes the log
		t.Fatal(err)
	}
	const records = `ovsdb-tool -mm show-log /var/lib/ovn/ovnnb_db.db`
	before := sh(t, n, records)
	key := nb.Key{Table: nb.TableLoadBalancer, Name: "default/web:http/tcp/IPv4"}
	lb := *want[key].(*nb.LoadBalancer)
	lb.VIPs = []nb.VIP{{Addr: lb.VIPs[0].Addr, Backends: lb.VIPs[0].Backends[:1]}, lb.VIPs[1]}
	want[key] = &lb
	reach(t, target, want)
	isNow(t, target, want)
	reach(t, target, want) // writes nothing
	log, _ := strings.CutPrefix(sh(t, n, records), before)
	if strings.Count(log, "record ") != 1 || strings.Count(log, "table ") != 1 ||
		!strings.Contains(log, "table Load_Balancer row \"default/web:http/tcp/IPv4\"") ||
		!strings.Contains(log, " diff:\n    vips=") {
		t.Errorf("the log of the database got\n%s", log)
	}
}

func TestOneBadRowDoesNotKeepTheOthersAway(t *testing.T) {
	n := node(t)
	target := open(t, n)
	want := rich(t)
	bad := map[string]nb.Row{
		"the server refuses its value": &nb.NAT{Router: "GR_node-a", Type: "sideways",
			External: netip.MustParseAddr("1.1.1.1"), Logical: netip.MustParsePrefix("1.1.1.1/32")},
		"its router is not there": &nb.RouterPort{Name: "lost", Router: "nowhere"},
		"its option is not ours":  &nb.Router{Name: "odd", Options: map[string]string{"mystery": "1"}},
		"its group is not there": &nb.LoadBalancer{Name: "lost", Protocol: cluster.TCP,
			Groups: []string{"nowhere"}},
		"OVN has no such protocol": &nb.LoadBalancer{Name: "icmp", Protocol: 1},
	}
	for _, r := range bad {
		want.Add(r)
	}
	err := target.Apply(ctx(t), nb.Diff(want, read(t, target)))
	if err == nil {
		t.Fatal("no error")
	}
	for why, r := range bad {
		if !strings.Contains(err.Error(), r.Key().String()) {
			t.Errorf("%s: the error does not name %s: %v", why, r.Key(), err)
		}
		delete(want, r.Key())
	}
	isNow(t, target, want)
}

func TestRemovedChassisGoesAfterItsPort(t *testing.T) {
	n := node(t)
	target := open(t, n)
	want := rich(t)
	reach(t, target, want)
	sh(t, n, `ovn-nbctl --wait=sb sync; ovn-sbctl --timeout=5 wait-until port_binding tstor-node-b tunnel_key=4`)
	for k, r := range want {
		if nb.OwnerOf(r).Name == "node-b" {
			delete(want, k)
		}
	}
	reach(t, target, want)
	isNow(t, target, want)
	if got := sh(t, n,
		`ovn-sbctl --bare --columns=name list chassis; ovn-sbctl --bare --columns=ip list encap; ovn-sbctl --bare --columns=logical_port find port_binding logical_port=tstor-node-b`); strings.TrimSpace(got) != "" {
		t.Errorf("left: %q", got)
	}
	// A node that returns under another name, with the address of a removed one.
	again := rich(t)
	reach(t, target, again)
	delete(again, nb.Key{Table: nb.TableChassis, Name: "node-b"})
	again.Add(&nb.Chassis{Name: "node-x", Hostname: "node-x", IP: netip.MustParseAddr("172.18.0.4")})
	reach(t, target, again)
	isNow(t, target, again)
}

func TestOwnChassisIsNeverTaken(t *testing.T) {
	n := node(t)
	target := open(t, n)
	sh(t, n, `ovn-sbctl chassis-add node-a geneve 172.18.0.3`)
	for found := (nb.State)(nil); len(found) == 0; {
		var err error
		if found, err = target.ReadAll(ctx(t)); err != nil {
			t.Fatal(err)
		}
		delete(found, nb.Key{Table: nb.TableGlobal, Name: "."})
	}
	want := nb.State{}
	want.Add(&nb.Chassis{Name: "node-a", IP: netip.MustParseAddr("172.18.0.3")})
	if err := target.Apply(ctx(t), nb.Diff(want, nil)); err == nil ||
		!strings.Contains(err.Error(), "chassis of this node") {
		t.Errorf("error: %v", err)
	}
	if got := sh(t, n, `ovn-sbctl get chassis node-a other_config`); got != "{}\n" {
		t.Errorf("other_config is %s", got)
	}
}

func TestDatabasesBuiltAnew(t *testing.T) {
	n := node(t)
	target := open(t, n)
	want := rich(t)
	reach(t, target, want)
	for _, db := range []struct{ daemon, file string }{{lab.SB, "/var/lib/ovn/ovnsb_db.db"},
		{lab.NB, "/var/lib/ovn/ovnnb_db.db"}} {
		drain(target)
		if err := n.Kill(ctx(t), db.daemon, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		sh(t, n, "rm "+db.file)
		if err := n.Start(ctx(t), db.daemon); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		for {
			if d := nb.Diff(want, read(t, target)); !d.Empty() {
				break
			}
			select {
			case <-target.Changed():
			case <-ctx(t).Done():
				t.Fatalf("%s was built anew, and nobody noticed", db.daemon)
			}
		}
		t.Logf("%s built anew: noticed after %v", db.daemon, time.Since(begin))
		reach(t, target, want)
		isNow(t, target, want)
	}
}

// TestNorthdSurvivesWhatComesBack checks a router that is deleted and recreated while ovn-northd is
// busy, which ovn-northd sees as one change. With a new UUID, all its later transactions would fail
// (see compiler.newID).
func TestNorthdSurvivesWhatComesBack(t *testing.T) {
	n := node(t)
	target := open(t, n)
	want := rich(t)
	reach(t, target, want)
	sh(t, n, `ovn-nbctl --wait=sb sync`)
	for name, hand := range map[string]func(){
		"routers and switches": func() {
			sh(t, n, `ovn-nbctl --all destroy logical_router -- --all destroy logical_switch`)
		},
		"the Northbound database": func() {
			if err := n.Kill(ctx(t), lab.NB, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			sh(t, n, `rm /var/lib/ovn/ovnnb_db.db`)
			if err := n.Start(ctx(t), lab.NB); err != nil {
				t.Fatal(err)
			}
		},
	} {
		if err := n.Signal(lab.Northd, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		hand()
		for {
			d := nb.Diff(want, read(t, target))
			if d.Empty() {
				break
			}
			if err := target.Apply(ctx(t), d); err != nil {
				t.Fatal(err)
			}
		}
		if err := n.Signal(lab.Northd, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Exec(ctx(t), "ovn-nbctl", "--wait=sb", "--timeout=10", "sync"); err != nil {
			t.Errorf("%s: ovn-northd is stuck: %v", name, err)
		}
		reach(t, target, want)
		isNow(t, target, want)
	}
}

func drain(target *nbdb.Target) {
	select {
	case <-target.Changed():
	default:
	}
}

func TestReadFailsWithoutDatabase(t *testing.T) {
	n := node(t)
	target := open(t, n)
	reach(t, target, rich(t))
	if err := n.Kill(ctx(t), lab.NB, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	deadline := time.Now().Add(10 * time.Second)
	for {
		if _, err := target.Read(short); err != nil {
			t.Logf("as it must be: %v", err)
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("Read gives rows of a database that is not there")
		}
	}
	if err := n.Start(ctx(t), lab.NB); err != nil {
		t.Fatal(err)
	}
	isNow(t, target, rich(t))
}

func TestVersion(t *testing.T) {
	target := open(t, node(t))
	v, err := target.Version(ctx(t))
	if err != nil || nbdb.CheckVersion(v) != nil {
		t.Errorf("version %q, %v, %v", v, err, nbdb.CheckVersion(v))
	}
	t.Logf("OVN %s", v)
	for v, ok := range map[string]bool{"25.03.0": true, "25.03.1": true, "25.09.0": true, "26.3": true, "25.3.0": true,
		"24.09.2": false, "23.03.1": false, "": false, "new": false} {
		err := nbdb.CheckVersion(v)
		if (err == nil) != ok {
			t.Errorf("%q: %v", v, err)
		}
		if err != nil && (!strings.Contains(err.Error(), "25.03") || !strings.Contains(err.Error(), v)) {
			t.Errorf("the message does not name both versions: %v", err)
		}
	}
}

func vip(addr string, backends ...string) nb.VIP {
	v := nb.VIP{Addr: netip.MustParseAddrPort(addr)}
	for _, b := range backends {
		v.Backends = append(v.Backends, netip.MustParseAddrPort(b))
	}
	return v
}
