package agent_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"hairpin/image"
	"hairpin/lab"
)

// machine is a node on which everything comes from the containers of a pod. It has no Open vSwitch
// of its own, and its addresses are on eth0.
type machine struct {
	l         *lab.Lab
	n         *lab.Node
	cfg       lab.NodeConfig
	manifests string // on the machine of the lab
}

// newMachine starts a machine and an external client. The agent's cluster is not known until known
// is called.
func newMachine(t *testing.T) *machine {
	t.Helper()
	hairpin := build(t)
	entry, err := filepath.Abs("../image/entry")
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{l: lab.Start(t, lab.Config{Name: fmt.Sprintf("br%d", os.Getpid())}), manifests: t.TempDir()}
	disks := filepath.Join(image.DefaultDir, "disks")
	if err := os.MkdirAll(disks, 0o755); err != nil {
		t.Fatal(err)
	}
	disk, err := os.MkdirTemp(disks, "br")
	if err != nil {
		t.Fatal(err)
	}
	m.cfg = lab.NodeConfig{
		Name: "node-a", Disk: disk, Addresses: prefixes("172.18.0.3/16", "fc00:f853:ccd::3/64"),
		Binds: map[string]string{"/usr/local/lib/hairpin": entry, "/usr/local/bin/hairpin": hairpin,
			"/opt/cni/bin/hairpin": hairpin, "/mnt": m.manifests},
		Files: map[string]string{settings: "[kubernetes]\nmanifests = /mnt/now\n",
			"/etc/cni/net.d/10-hairpin.conflist": `{"cniVersion": "1.1.0", "name": "hairpin", "plugins": [{"type": "hairpin"}]}`},
	}
	m.boot(t)
	client, err := m.l.StartHost(t.Context(),
		lab.HostConfig{Name: "client", Addresses: prefixes("172.18.0.100/16", "fc00:f853:ccd::64/64")})
	if err == nil {
		_, err = client.Exec(t.Context(), "sysctl", "-qw", "net.ipv4.ip_local_port_range=20000 39999") // see startDemo
	}
	if err == nil {
		_, err = lab.Serve(t.Context(), client, "client", 9000)
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func prefixes(list ...string) (out []netip.Prefix) {
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// boot starts the machine and the services of its operating system, and none of Hairpin's.
func (m *machine) boot(t *testing.T) {
	t.Helper()
	m.n = m.l.Add(t, m.cfg)
	sh(t, m.n, "sysctl -qw 'net.ipv4.ip_local_port_range=40000 60999'")
	if _, err := lab.Serve(t.Context(), m.n.Host, "host-a", 8081); err != nil {
		t.Fatal(err)
	}
}

// known makes the cluster known or unknown to the agent.
func (m *machine) known(t *testing.T, known bool) {
	t.Helper()
	now := filepath.Join(m.manifests, "now")
	err := os.RemoveAll(now)
	if err == nil && known {
		if err = os.CopyFS(now+".new", os.DirFS("../examples/demo")); err == nil {
			err = os.Rename(now+".new", now)
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

// pod starts containers of a pod.
func (m *machine) pod(t *testing.T, pod string, containers ...string) {
	t.Helper()
	for _, c := range containers {
		args := []string{"unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc",
			"/usr/local/lib/hairpin/" + c}
		if c == agent {
			args = []string{"hairpin", "node", "--config-file", settings}
		}
		if err := m.n.StartDaemon(t.Context(), pod+"-"+c, args...); err != nil {
			t.Fatal(err)
		}
	}
}

// end ends a container as the kubelet does.
func (m *machine) end(t *testing.T, pod, c string) {
	t.Helper()
	name := pod + "-" + c
	if c == agent {
		if err := m.n.Kill(t.Context(), name, syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		return
	}
	if c == "ovs" {
		sh(t, m.n, "/usr/local/lib/hairpin/ovs-handover")
	}
	sh(t, m.n, fmt.Sprintf("pkill -TERM --parent %d", m.n.Pid(name)))
	eventually(t, 15*time.Second, name+" ends", func() (bool, string) { return m.n.Pid(name) == 0, "it runs" })
}

// waits waits until the next container waits for a lock.
func (m *machine) waits(t *testing.T, lock string) {
	t.Helper()
	eventually(t, 15*time.Second, "somebody waits for "+lock, func() (bool, string) {
		_, err := m.n.Exec(t.Context(), "sh", "-c", "! flock --nonblock "+lock+".next true")
		return err == nil, "nobody does"
	})
}

// ways returns the paths from and to the machine without another node: with Services, or without.
func (m *machine) ways(t *testing.T, services bool) []path {
	t.Helper()
	return slices.DeleteFunc(paths(t, m.l), func(p path) bool {
		own := strings.HasPrefix(p.name, "outside → host ") || strings.HasPrefix(p.name, "host → outside ")
		return !own && !(services && strings.Contains(p.name, "hostself"))
	})
}

// onBridge waits until the machine's network is on the bridge.
func (m *machine) onBridge(t *testing.T) time.Duration {
	t.Helper()
	return eventually(t, 20*time.Second, "the machine's network is on br-ex", func() (bool, string) {
		out, err := m.n.Exec(t.Context(), "sh", "-c",
			`ip -o addr show scope global; ip route; ip -6 route; ovs-vsctl --timeout=2 show`)
		if err != nil {
			return false, err.Error()
		}
		ok := !strings.Contains(sh(t, m.n, "ip -o addr show dev eth0 scope global"), "inet") &&
			strings.Contains(out, "default via 172.18.0.1 dev br-ex") &&
			strings.Contains(out, "default via fc00:f853:ccd::1 dev br-ex")
		return ok, out
	})
}

// TestBringUp: a pod makes a machine a node. It stays a node through a change of the pod and a
// boot, and its connections continue. The cluster is unreachable when the network comes up: the
// path to it may lead over the bridge.
func TestBringUp(t *testing.T) {
	m := newMachine(t)
	o := underAt(t, gentle, m.ways(t, false), func(f traffic) {
		m.pod(t, "one", "zone", "ovs", agent)
		t.Logf("network on the bridge after %v", m.onBridge(t).Round(time.Millisecond))
		f.flows(late)
	})
	t.Logf("taken in: %s", o)
	o.allWell(t)
	if ok, why := well(t.Context(), m.n); ok || !strings.Contains(why, "the cluster is not known yet") {
		t.Errorf("the agent says %v: %s", ok, why)
	}
	m.known(t, true)
	waitServes(t, m.n)

	o = underAt(t, gentle, m.ways(t, true), func(f traffic) {
		m.pod(t, "two", "zone", agent)
		m.waits(t, "/run/ovn/hairpin.lock")
		m.end(t, "one", "zone")
		m.end(t, "one", agent)
		waitServes(t, m.n)
		f.flows(more)
	})
	t.Logf("zone and agent replaced: %s", o)
	o.fewFail(t)
	o = underAt(t, gentle, m.ways(t, true), func(f traffic) {
		m.pod(t, "two", "ovs")
		m.waits(t, "/run/openvswitch/hairpin.lock")
		m.end(t, "one", "ovs")
		waitServes(t, m.n)
		f.flows(more)
	})
	t.Logf("Open vSwitch replaced: %s", o)
	if o.broken > 0 || m.n.Datapath() != "netdev" { // see restartSwitch
		o.allWell(t)
	}

	m.known(t, false)
	if err := m.n.Stop(); err != nil {
		t.Fatal(err)
	}
	m.boot(t)
	o = underAt(t, gentle, m.ways(t, false), func(f traffic) {
		m.pod(t, "two", "ovs")
		eventually(t, 20*time.Second, "Open vSwitch runs", func() (bool, string) {
			out, err := m.n.Exec(t.Context(), "ovs-vsctl", "--timeout=5", "list-ports", "br-ex")
			return err == nil && !strings.Contains(out, "eth0"), out
		})
		f.flows(late) // no agent: the machine is reachable as it is
		m.pod(t, "two", "zone", agent)
		t.Logf("network on the bridge after %v", m.onBridge(t).Round(time.Millisecond))
		f.flows(late)
	})
	t.Logf("booted: %s", o)
	o.allWell(t)
	m.known(t, true)
	waitServes(t, m.n)
	o = underAt(t, gentle, m.ways(t, true), func(f traffic) { f.flows(more) })
	t.Logf("Services after the boot: %s", o)
	o.allWell(t)
}

// TestReplacedAgain: each replacement of Open vSwitch takes as long as the first. ovn-controller
// must not wait for twice as long as the last time before it looks for the new database.
func TestReplacedAgain(t *testing.T) {
	m := newMachine(t)
	m.pod(t, "0", "zone", "ovs", agent)
	m.known(t, true)
	waitServes(t, m.n)
	stirred := func() string {
		return sh(t, m.n, "ovs-vsctl --if-exists get Interface br-int external_ids:hairpin-stirred")
	}
	for i := range 3 {
		before := stirred()
		m.pod(t, fmt.Sprint(i+1), "ovs")
		m.waits(t, "/run/openvswitch/hairpin.lock")
		m.end(t, fmt.Sprint(i), "ovs")
		waitServes(t, m.n)
		took := eventually(t, 20*time.Second, "ovn-controller hears of the database",
			func() (bool, string) { now := stirred(); return now != before, now })
		t.Logf("heard after %v", took.Round(time.Millisecond))
	}
	text, err := os.ReadFile(m.n.LogFile("0-zone"))
	noError(t, err)
	// Another connection than that with the ports, for which nothing waits (OVN's lib/features.c),
	// waits longer and longer: 2 seconds once, 4 once.
	longer := map[string]int{}
	for l := range strings.Lines(string(text)) {
		if _, wait, found := strings.Cut(l, "/run/openvswitch/db.sock: waiting "); found {
			longer[wait]++
		}
	}
	for wait, times := range longer {
		if times > 1 {
			t.Errorf("ovn-controller was %d times waiting %s", times, wait)
		}
	}
}

// TestNoUplink: the status reports why the node has no uplink. When an uplink is possible, the node
// gets it without a restart.
func TestNoUplink(t *testing.T) {
	m := newMachine(t)
	sh(t, m.n, "ip route del default; ip -6 route del default")
	m.known(t, true)
	m.pod(t, "one", "zone", "ovs", agent)
	eventually(t, 20*time.Second, "the status says why", func() (bool, string) {
		ok, why := well(t.Context(), m.n)
		return !ok && strings.Contains(why, "there is no default route"), why
	})
	sh(t, m.n, "ip route add default via 172.18.0.1; ip -6 route add default via fc00:f853:ccd::1 dev eth0")
	m.onBridge(t)
	waitServes(t, m.n)
}
