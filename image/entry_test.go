package image_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"hairpin/claims"
	"hairpin/lab"
	"hairpin/lab/probe"
)

// container runs an entry script as a container runtime does: the first process of a process
// namespace that ends with it.
type container struct {
	n    *lab.Node
	name string
}

func start(t testing.TB, n *lab.Node, pod, script string) container {
	t.Helper()
	c := container{n, pod + "-" + script}
	err := n.StartDaemon(t.Context(), c.name, "env", "HAIRPIN_PATIENCE=3", "unshare", "--pid", "--fork", "--kill-child",
		"--mount", "--mount-proc", "/usr/local/lib/hairpin/"+script)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// term sends SIGTERM to the container, as the kubelet does, and waits until it has ended.
func (c container) term(t testing.TB) {
	t.Helper()
	sh(t, c.n, fmt.Sprintf("pkill -TERM --parent %d", c.n.Pid(c.name)))
	eventually(t, c.name+" ends", func() bool { return c.n.Pid(c.name) == 0 })
}

// kill kills the container's first process, and thereby the container.
func (c container) kill(t testing.TB) {
	t.Helper()
	if err := c.n.Kill(t.Context(), c.name, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

func sh(t testing.TB, n *lab.Node, script string) string {
	t.Helper()
	out, err := n.Exec(t.Context(), "sh", "-ec", script)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

func eventually(t testing.TB, what string, done func() bool) time.Duration {
	t.Helper()
	begin := time.Now()
	for !done() {
		if time.Since(begin) > 20*time.Second {
			t.Fatalf("not within 20 s: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return time.Since(begin)
}

// succeeds waits until a script in the node succeeds.
func succeeds(t testing.TB, n *lab.Node, script string) time.Duration {
	t.Helper()
	return eventually(t, script, func() bool { _, err := n.Exec(t.Context(), "sh", "-ec", script); return err == nil })
}

// node is a machine on which the entry scripts are the only daemons.
func node(t testing.TB) (*lab.Lab, *lab.Node) {
	t.Helper()
	entry, err := filepath.Abs("entry")
	if err != nil {
		t.Fatal(err)
	}
	l := lab.Start(t, lab.Config{Name: fmt.Sprintf("br%d", os.Getpid())})
	return l, l.Add(t, lab.NodeConfig{Daemons: []string{}, Binds: map[string]string{"/usr/local/lib/hairpin": entry}})
}

// serves waits until Open vSwitch has the flows of a logical port of the zone.
func serves(t testing.TB, n *lab.Node, port string) time.Duration {
	t.Helper()
	return succeeds(t, n, "ovn-nbctl --timeout=5 --may-exist ls-add net -- --may-exist lsp-add net "+port+`
		ovs-vsctl --timeout=5 --may-exist add-port br-int `+port+" -- set Interface "+port+" type=internal external_ids:iface-id="+port+`
		ovn-nbctl --timeout=5 --wait=hv sync
		test "$(ovn-sbctl --bare --columns=up find Port_Binding logical_port=`+port+`)" = true`)
}

// bridge makes the gateway bridge, as the agent or the administrator does; the lab sets its
// addresses.
func bridge(t testing.TB, n *lab.Node) {
	t.Helper()
	succeeds(t, n, `type=$(ovs-vsctl --timeout=2 get Open_vSwitch . external_ids:hairpin-datapath)
		ovs-vsctl --timeout=2 --may-exist add-br br-ex -- set Bridge br-ex datapath_type=$type fail_mode=standalone -- --may-exist add-port br-ex eth0
		ovs-vsctl set Open_vSwitch . external_ids:system-id=a external_ids:ovn-remote=unix:/run/ovn/ovnsb_db.sock external_ids:ovn-encap-type=geneve external_ids:ovn-encap-ip=172.18.0.3
		ip link set eth0 up
		ip -o addr show dev br-ex | grep -q 172.18.0.3`)
	if sh(t, n, "ovs-vsctl get Bridge br-ex datapath_type") == "netdev" {
		sh(t, n,
			`nft 'add table netdev guard; add chain netdev guard eth0 { type filter hook ingress device "eth0" priority -500; }; add rule netdev guard eth0 drop'`)
	}
}

// TestEntryAnyOrder checks that the containers of a pod start in any order, and again after their
// first process was killed.
func TestEntryAnyOrder(t *testing.T) {
	_, n := node(t)
	zone := start(t, n, "one", "zone")
	succeeds(t, n, "test -S /run/ovn/ovnnb_db.sock")
	ovs := start(t, n, "one", "ovs")
	bridge(t, n)
	t.Logf("zone first: flows after %v", serves(t, n, "p0").Round(time.Millisecond))
	for i := range 3 {
		ovs.kill(t)
		ovs = start(t, n, "one", "ovs")
		t.Logf("ovs killed: flows after %v", serves(t, n, fmt.Sprintf("o%d", i)).Round(time.Millisecond))
		zone.kill(t)
		zone = start(t, n, "one", "zone")
		t.Logf("zone killed: flows after %v", serves(t, n, fmt.Sprintf("z%d", i)).Round(time.Millisecond))
		ovs.kill(t)
		zone.kill(t)
		ovs, zone = start(t, n, "one", "ovs"), start(t, n, "one", "zone")
		t.Logf("both killed: flows after %v", serves(t, n, fmt.Sprintf("b%d", i)).Round(time.Millisecond))
	}
	// A truncated or empty database does not prevent the start.
	zone.kill(t)
	sh(t, n, ": >/var/lib/ovn/ovnsb_db.db; truncate -s -5 /var/lib/ovn/ovnnb_db.db")
	zone = start(t, n, "one", "zone")
	serves(t, n, "torn")
	zone.term(t)
	ovs.term(t)
	if left := sh(t, n, "pgrep -l 'ov[sn]' || true"); left != "" {
		t.Errorf("left after the end:\n%s", left)
	}
	// what is in the kernel stays
	sh(t, n, "test -e /sys/class/net/br-ex; ip -o addr show dev br-ex | grep -q 172.18.0.3")
}

// TestEntryDaemonsComeBack checks that a killed daemon runs again within 0.2 s, and works soon
// after.
func TestEntryDaemonsComeBack(t *testing.T) {
	_, n := node(t)
	start(t, n, "one", "ovs")
	start(t, n, "one", "zone")
	bridge(t, n)
	serves(t, n, "p0")
	for i, name := range []string{"ovn-northd", "ovn-controller", "ovs-vswitchd", "ovsdb-server"} {
		// one that repeatedly ends at once is restarted more slowly
		succeeds(t, n, `for p in $(pgrep -x `+name+`); do [ "$(ps -o etimes= -p $p)" -ge 2 ] || exit 1; done`)
		pids := func() string { return sh(t, n, "pgrep -x "+name+" || true") }
		before := pids()
		sh(t, n, "pkill -KILL -x "+name)
		took := eventually(t, name+" is back", func() bool {
			now := pids()
			return strings.Count(now, "\n") == strings.Count(before, "\n") && now != "" && now != before
		})
		t.Logf("%s: back after %v, flows after %v", name, took.Round(time.Millisecond),
			serves(t, n, fmt.Sprintf("k%d", i)).Round(time.Millisecond))
	}
}

// TestEntryHandover checks that the next pod's containers wait, and continue as soon as the
// previous ones end. No connection breaks.
func TestEntryHandover(t *testing.T) {
	l, n := node(t)
	ovs, zone := start(t, n, "pod0", "ovs"), start(t, n, "pod0", "zone")
	bridge(t, n)
	serves(t, n, "p0")
	stop, err := lab.Serve(t.Context(), n.Host, "host", 8081)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stop() }()
	for i := range 4 {
		pod := fmt.Sprintf("pod%d", i+1)
		nextOVS, nextZone := start(t, n, pod, "ovs"), start(t, n, pod, "zone")
		for _, lock := range []string{"/run/openvswitch/hairpin.lock", "/run/ovn/hairpin.lock"} {
			succeeds(t, n, "! flock --nonblock "+lock+".next true") // it waits
		}
		s, err := lab.StartStream(t.Context(), l.Host("underlay"), probe.StreamConfig{
			Protocol: "tcp", To: netip.AddrPortFrom(n.Addresses()[0].Addr(), 8081), Rate: 200, Long: 10,
			Every: 10 * time.Millisecond, Timeout: 5 * time.Second, Duration: time.Minute,
		})
		if err != nil {
			t.Fatal(err)
		}
		how := container.term
		if i%2 == 1 {
			how = container.kill
		}
		how(zone, t)
		zoneAfter := serves(t, n, pod+"z")
		how(ovs, t)
		ovsAfter := serves(t, n, pod+"o")
		ovs, zone = nextOVS, nextZone
		r, err := s.End()
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: flows after %v (zone) and %v (ovs); %d of %d new connections failed, longest gap %.0f ms; %d of "+
			"%d open ones broke, longest gap %.0f ms", pod,
			zoneAfter.Round(time.Millisecond), ovsAfter.Round(time.Millisecond), r.Failed, r.Opened, r.OpenGapMs,
			r.Broken, r.Long, r.LongGapMs)
		if r.Failed > 0 || r.Broken > 0 {
			t.Errorf("%v", r.Errors)
		}
	}
}

// TestEntryPodDeleted checks that preStop keeps the switch until the next pod waits: the kubelet
// receives that pod through the switch. If Hairpin leaves the node, or the switch hangs, it ends.
func TestEntryPodDeleted(t *testing.T) {
	_, n := node(t)
	ovs, zone := start(t, n, "pod0", "ovs"), start(t, n, "pod0", "zone")
	bridge(t, n)
	sh(t, n, "mkdir -p /run/hairpin")
	daemon := func(name string, argv ...string) (ended func() bool) {
		if err := n.StartDaemon(t.Context(), name, argv...); err != nil {
			t.Fatal(err)
		}
		return func() bool { return n.Pid(name) == 0 }
	}
	preStop := func(name string) (ended func() bool) {
		first := sh(t, n, fmt.Sprintf("pgrep --parent %d", n.Pid(ovs.name)))
		return daemon(name, "nsenter", "--target="+first, "--pid", "--mount", "/usr/local/lib/hairpin/ovs-handover")
	}
	keeps := func(ended func() bool) {
		t.Helper()
		for begin := time.Now(); time.Since(begin) < time.Second; time.Sleep(5 * time.Millisecond) {
			if ended() {
				t.Fatalf("preStop ended after %v", time.Since(begin).Round(time.Millisecond))
			}
		}
	}
	daemon("agent", "flock", "/run/hairpin/agent.lock", "sleep", "infinity")
	replaced := preStop("replaced")
	keeps(replaced)
	next := start(t, n, "pod1", "ovs")
	eventually(t, "preStop ends with a next pod", replaced)
	next.term(t)

	hangs := preStop("hangs")
	keeps(hangs)
	sh(t, n, "pkill -STOP -x ovs-vswitchd")
	eventually(t, "preStop ends for a switch that hangs", hangs)
	sh(t, n, "pkill -CONT -x ovs-vswitchd")

	leaves := preStop("leaves")
	keeps(leaves)
	zone.term(t)
	eventually(t, "preStop ends when Hairpin leaves", leaves)
}

// TestEntryNoAgent checks that a switch forwards the host's packets after some time without an
// agent, and none to other ports: OVN's gateway router has the host's MAC.
func TestEntryNoAgent(t *testing.T) {
	_, n := node(t)
	ovs := start(t, n, "one", "ovs")
	bridge(t, n)
	sh(t, n, `ovs-vsctl set Open_vSwitch . other_config:flow-restore-wait=true
		ovs-vsctl set Bridge br-ex external_ids:hairpin-uplink=eth0
		ip link add router type veth peer name patch
		sysctl -qw net.ipv6.conf.patch.disable_ipv6=1; ip link set router up; ip link set patch up
		ovs-vsctl add-port br-ex patch`)
	ovs.kill(t)
	received := func() string { return sh(t, n, "cat /sys/class/net/router/statistics/rx_packets") }
	before := received()
	start(t, n, "one", "ovs")
	succeeds(t, n, "test -S /run/openvswitch/br-ex.mgmt")
	sh(t, n, "ip neigh flush dev br-ex")
	begin := time.Now()
	answers := func() bool {
		return errors.Is(n.Do(func() error {
			_, err := net.DialTimeout("tcp", "172.18.0.1:1", 500*time.Millisecond)
			return err
		}), syscall.ECONNREFUSED)
	}
	eventually(t, "the wire answers", answers)
	if took := time.Since(begin); took < 2*time.Second {
		t.Errorf("it forwarded %v after its start, and did not wait", took)
	} else {
		t.Logf("it forwards %v after its start", took.Round(time.Millisecond))
	}
	if wait := sh(t, n, "ovs-vsctl get Open_vSwitch . other_config"); strings.Contains(wait, "flow-restore-wait") {
		t.Errorf("the database has %s", wait)
	}
	flows := sh(t, n, fmt.Sprintf("ovs-ofctl dump-flows br-ex cookie=%#x/-1", claims.Cookie))
	if strings.Count(flows, "cookie=") != 3 {
		t.Errorf("an agent replaces the flows that have its cookie, these are: %s", flows)
	}
	if after := received(); after != before {
		t.Errorf("the gateway router received packets: it had %s, now %s", before, after)
	}
}
