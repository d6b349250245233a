package cni_test

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"hairpin/lab"
)

const (
	switchDB     = "/etc/openvswitch/conf.db"
	switchSchema = "/usr/share/openvswitch/vswitch.ovsschema"
)

// residents are pods that run and are reachable.
func residents(t testing.TB, w *world, n *lab.Node, names ...string) []*sandbox {
	t.Helper()
	var list []*sandbox
	for _, name := range names {
		s := w.sandbox(n, name)
		serve(t, s.path())
		s.add()
		s.reachable()
		list = append(list, s)
	}
	return list
}

// stillReachable asserts that all residents are, or are soon, reachable over the same interfaces.
func stillReachable(t *testing.T, n *lab.Node, pods []*sandbox) {
	t.Helper()
	for _, s := range pods {
		for _, ip := range s.ips {
			eventually(t, 30*time.Second, "an answer of "+s.pod,
				func() error { return get(n.Netns(), "udp", ip, port) })
		}
	}
	for _, s := range pods {
		s.reachable()
		s.checked()
	}
	consistent(t, n, pods...)
}

// olderSchema writes an earlier schema: an upgrade has to convert its databases.
func olderSchema(t testing.TB, n *lab.Node, path string) {
	t.Helper()
	text, err := os.ReadFile(n.Path(switchSchema))
	must(t, err)
	var schema map[string]any
	must(t, json.Unmarshal(text, &schema))
	schema["version"] = "8.0.0"
	delete(schema, "cksum")
	delete(schema["tables"].(map[string]any), "CT_Zone") // and no references to it
	delete(schema["tables"].(map[string]any)["Datapath"].(map[string]any)["columns"].(map[string]any), "ct_zones")
	text, err = json.Marshal(schema)
	must(t, err)
	must(t, n.WriteFile(path, string(text)))
}

// ovsContainer runs the entry script of the container ovs, as its runtime does.
func ovsContainer(t testing.TB, n *lab.Node) {
	t.Helper()
	must(t, n.StartDaemon(t.Context(), "ovs", "unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc",
		"/usr/local/lib/hairpin/ovs"))
}

// TestFullDisk: an upgrade of Open vSwitch has no disk space to convert its database, also when it
// is started again. All pods have their network when there is space.
func TestFullDisk(t *testing.T) {
	w, n := single(t)
	pods := residents(t, w, n, "one", "two", "three")
	for _, d := range []string{lab.VSwitchd, lab.OVSDB} {
		must(t, n.Kill(t.Context(), d, syscall.SIGTERM))
	}
	olderSchema(t, n, "/tmp/older.ovsschema")
	sh(t, n, `ovsdb-tool convert `+switchDB+` /tmp/older.ovsschema
		mkdir /tmp/disk; mount -t tmpfs -o size=300k tmpfs /tmp/disk
		cp `+switchDB+` /tmp/disk; cp `+switchDB+` /tmp/before.db
		mount --move /tmp/disk /etc/openvswitch
		head -c 1M /dev/zero >/etc/openvswitch/fill || true`)
	for range 3 {
		ovsContainer(t, n)
		waits := func() error {
			if log, err := os.ReadFile(n.LogFile("ovs")); err != nil ||
				!strings.Contains(string(log), "No space left on device") || !strings.Contains(string(log), "WAITING") {
				return errors.New("its log does not report a full disk")
			}
			return nil
		}
		eventually(t, 10*time.Second, "ovs finds the disk full", waits)
		kill(t, n, "ovs")
		must(t, os.Truncate(n.LogFile("ovs"), 0))
		must(t, n.Restart(t.Context(), agent, syscall.SIGTERM))
	}
	if got := sh(t, n, "cmp "+switchDB+" /tmp/before.db && ls /etc/openvswitch || true"); got != "conf.db\nfill" {
		t.Errorf("the database was touched; there is %q", got)
	}
	ovsContainer(t, n)
	sh(t, n, "rm /etc/openvswitch/fill")
	stillReachable(t, n, pods)
	if got := sh(t, n, "ovsdb-tool needs-conversion "+switchDB+" "+switchSchema); got != "no" {
		t.Errorf("does the database need a conversion: %s", got)
	}
}

// TestLostRows removes the rows of running pods, each time by another method. They are restored
// from the records on the links.
func TestLostRows(t *testing.T) { engines(t, lostRows) }

func lostRows(t *testing.T, engine string) {
	w, n := singleWith(t, engine)
	long := strings.Repeat("long-name.", 25) + "pod" // 253 bytes, as long as a pod's name may be
	pods := residents(t, w, n, "one", "two", long)
	everything := func(script string) {
		t.Helper()
		for _, s := range pods {
			sh(t, n, strings.ReplaceAll(script, "HOST", s.host))
		}
	}
	t.Run("port removed", func(t *testing.T) {
		last := func() string {
			return sh(t, n, `ovs-vsctl get Bridge br-int 'external_ids:"k8s.ovn.org/last-pod-ips"'`)
		}
		newest := last()
		everything("ovs-vsctl del-port " + w.bridge() + " HOST")
		stillReachable(t, n, pods)
		sh(t, n, "ovs-vsctl del-port "+w.bridge()+" "+pods[0].host) // the oldest is restored last
		stillReachable(t, n, pods)
		if now := last(); now != newest {
			t.Errorf("the most recently allocated addresses are %s, before %s", now, newest)
		}
	})
	t.Run("port removed without an agent", func(t *testing.T) {
		kill(t, n, agent)
		everything("ovs-vsctl del-port " + w.bridge() + " HOST")
		w.start(n)
		w.ready(n)
		stillReachable(t, n, pods)
	})
	// The settings that the administrator, or the machine's set-up, adds to a new database.
	setUp := `ovs-vsctl --no-wait init -- set Open_vSwitch . external_ids:system-id=node-a external_ids:hostname=node-a external_ids:ovn-bridge-datapath-type=netdev \
		-- add-br br-ex -- set Bridge br-ex datapath_type=netdev fail_mode=standalone other_config:hwaddr='"02:42:ac:12:00:03"' -- add-port br-ex eth0`
	fresh := func(agentRuns bool) {
		if !agentRuns {
			kill(t, n, agent)
		}
		for _, d := range []string{lab.VSwitchd, lab.OVSDB} {
			must(t, n.Kill(t.Context(), d, syscall.SIGTERM))
		}
		sh(t, n, "rm "+switchDB)
		must(t, n.Start(t.Context(), lab.OVSDB))
		sh(t, n, setUp)
		must(t, n.Start(t.Context(), lab.VSwitchd))
		if !agentRuns {
			w.start(n)
		}
	}
	t.Run("a new database, without an agent", func(t *testing.T) {
		fresh(false)
		stillReachable(t, n, pods)
	})
	t.Run("a new database", func(t *testing.T) {
		fresh(true)
		stillReachable(t, n, pods)
	})
	t.Run("no link", func(t *testing.T) {
		gone := pods[0]
		pods = pods[1:]
		kill(t, n, agent)
		sh(t, n, "ovs-vsctl del-port "+w.bridge()+" "+gone.host+"; ip link del "+gone.host)
		w.start(n)
		w.ready(n)
		stillReachable(t, n, pods)
	})
}
