package lab

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestNode checks that a node provides everything that other tests need, soon after its start.
func TestNode(t *testing.T) {
	ctx := t.Context()
	l := Start(t, Config{})
	begin := time.Now()
	n := l.Add(t, NodeConfig{Files: map[string]string{"/etc/hairpin/hairpin.conf": "[gateway]\n"}})
	took := time.Since(begin)
	t.Logf("node up in %s", took.Round(time.Millisecond))
	for _, c := range []struct{ command, want string }{
		{"hostname", "node-a\n"},
		{"cat /etc/hairpin/hairpin.conf", "[gateway]\n"},
		{"ovs-vsctl get Open_vSwitch . external_ids:system-id", "node-a\n"},
		{"ovs-vsctl list-ports br-ex", "eth0\n"},
		{"ip -br -4 addr show br-ex", "172.18.0.3/16"},
		{"ip -br -6 addr show br-ex", "fc00:f853:ccd::3/64"},
		{"ip route show default", "default via 172.18.0.1 dev br-ex"},
		{"ip -6 route show default", "default via fc00:f853:ccd::1 dev br-ex"},
		{"cat /sys/class/net/br-ex/address", "02:42:ac:12:00:03\n"},
		{"cat /proc/sys/net/ipv4/ip_forward", "1\n"},
		{"ovn-nbctl --wait=sb sync", ""},
	} {
		out, err := n.Exec(ctx, strings.Fields(c.command)...)
		if err != nil || !strings.Contains(out, c.want) {
			t.Errorf("%s: %q, %v; want %q in it", c.command, out, err, c.want)
		}
	}
	if out, err := n.ExecInput(ctx, "hello", "cat"); err != nil || out != "hello" {
		t.Errorf("cat: %q, %v", out, err)
	}
	for _, sock := range []string{"/run/openvswitch/db.sock", "/run/ovn/ovnnb_db.sock", "/run/ovn/ovnsb_db.sock"} {
		conn, err := net.Dial("unix", n.Path(sock))
		if err != nil {
			t.Error(err)
			continue
		}
		conn.Close()
	}
	err := n.Do(func() error {
		_, err := net.InterfaceByName(GatewayBridge)
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if _, err := net.InterfaceByName(GatewayBridge); err == nil {
		t.Error("br-ex is on the machine itself")
	}
	if _, err := n.Exec(ctx, "sh", "-c", "echo no >&2; exit 3"); err == nil || !strings.HasSuffix(err.Error(), "no") {
		t.Errorf("a failing command gave %v", err)
	}
}

// TestLinkFalls checks that a link that goes down is set up again, with its addresses and routes:
// ovs-vswitchd may set a bridge down after it was configured.
func TestLinkFalls(t *testing.T) {
	n := StartNode(t, NodeConfig{Daemons: []string{OVSDB, VSwitchd}})
	for i := range 3 {
		if i == 2 { // the holder has been so slow that the kernel has dropped messages about links
			if err := unix.Kill(n.holder.PID, unix.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			changes := strings.Repeat("link set dev lo mtu 1400\nlink set dev lo mtu 65536\n", 1000)
			_, err := n.ExecInput(t.Context(), changes, "ip", "-batch", "-")
			if err := errors.Join(err, unix.Kill(n.holder.PID, unix.SIGCONT)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := n.Exec(t.Context(), "sh", "-c", "ip link set br-ex down"); err != nil {
			t.Fatal(err)
		}
		if err := n.waitForAddresses(t.Context(), GatewayBridge); err != nil {
			t.Fatal(err)
		}
		for _, family := range []string{"-4", "-6"} {
			there := func(out string) bool { return strings.Contains(out, "dev br-ex") }
			if err := n.WaitFor(t.Context(), 10*time.Second, there, "ip", family, "route", "show",
				"default"); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestDaemonsRestart kills every daemon by either signal; once started, it works within 3 s.
func TestDaemonsRestart(t *testing.T) {
	ctx := t.Context()
	n := StartNode(t, NodeConfig{})
	useLocalOVN(t, n)
	for _, name := range AllDaemons() {
		for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
			before := n.Pid(name)
			if before == 0 {
				t.Fatalf("%s does not run", name)
			}
			if err := n.Kill(ctx, name, sig); err != nil {
				t.Fatal(err)
			}
			if pid := n.Pid(name); pid != 0 {
				t.Fatalf("%s still runs as %d", name, pid)
			}
			begin := time.Now()
			if err := n.Start(ctx, name); err != nil {
				t.Fatal(err)
			}
			if pid := n.Pid(name); pid == 0 || pid == before {
				t.Errorf("%s: process %d after restart, %d before", name, pid, before)
			}
			if err := n.waitForAddresses(ctx, GatewayBridge); err != nil {
				t.Error(err)
			}
			if _, err := n.Exec(ctx, "ovn-nbctl", "--wait=hv", "--timeout=10", "sync"); err != nil {
				t.Errorf("after %s of %s: %v", unix.SignalName(sig), name, err)
			}
			t.Logf("%s after %s: served in %s", name, unix.SignalName(sig), time.Since(begin).Round(time.Millisecond))
		}
	}
	noZombie := func(states string) bool { return !strings.Contains(states, "Z") }
	if err := n.WaitFor(ctx, 5*time.Second, noZombie, "ps", "-eo", "stat="); err != nil {
		t.Errorf("the node's first process does not reap: %v", err)
	}
	if err := n.Signal("nosuch", unix.SIGTERM); err == nil {
		t.Error("signalled a daemon that is not there")
	}
	if err := n.Start(ctx, "nosuch"); err == nil {
		t.Error("started a daemon that is not there")
	}
}

// useLocalOVN points ovn-controller to the node's own databases, as the agent does.
func useLocalOVN(t *testing.T, n *Node) {
	t.Helper()
	_, err := n.Exec(t.Context(), "ovs-vsctl", "set", "Open_vSwitch", ".",
		"external_ids:ovn-remote=unix:/run/ovn/ovnsb_db.sock",
		"external_ids:ovn-encap-type=geneve", "external_ids:ovn-encap-ip=172.18.0.3",
		"external_ids:ovn-bridge-datapath-type="+n.Datapath())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.Exec(t.Context(), "ovn-nbctl", "--wait=hv", "--timeout=20", "sync"); err != nil {
		t.Fatal(err)
	}
}

func TestOtherDaemon(t *testing.T) {
	ctx := t.Context()
	n := StartNode(t, NodeConfig{Daemons: []string{}})
	script := `echo started $0 "$1"; exec sleep 1000`
	if err := n.StartDaemon(ctx, "agent", "sh", "-c", script, "x", "a b"); err != nil {
		t.Fatal(err)
	}
	logged := func(want string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		var log []byte
		err := Poll(ctx, time.Millisecond, func() (ok bool, err error) {
			log, err = os.ReadFile(n.LogFile("agent"))
			return string(log) == want, err
		})
		if err != nil {
			t.Fatalf("%v; the log is %q", err, log)
		}
	}
	logged("started x a b\n")
	first := n.Pid("agent")
	if err := n.Restart(ctx, "agent", unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if second := n.Pid("agent"); second == 0 || second == first {
		t.Errorf("process %d after restart, %d before", second, first)
	}
	logged("started x a b\nstarted x a b\n")
}

// TestExecEndsWithItsContext checks that the end of a context ends the command and its children.
func TestExecEndsWithItsContext(t *testing.T) {
	n := StartNode(t, NodeConfig{Daemons: []string{}})
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if _, err := n.Exec(ctx, "sleep", "1234"); err == nil {
		t.Fatal("sleep was not cut short")
	}
	if took := time.Since(begin); took > time.Minute {
		t.Errorf("took %s", took)
	}
	alone := func(out string) bool { return !strings.Contains(out, "sleep 1234") }
	if err := n.WaitFor(t.Context(), 5*time.Second, alone, "sh", "-c",
		"cat /proc/[0-9]*/cmdline | tr '\\0' ' '"); err != nil {
		t.Error(err)
	}
}

// TestNothingIsLeft checks that Close leaves no process and no directory. Neither does Remove by
// another process after a crash.
func TestNothingIsLeft(t *testing.T) {
	for name, end := range map[string]func(*Lab) error{
		"close":  (*Lab).Close,
		"remove": func(l *Lab) error { return Remove(l.Name()) },
		"lifeline": func(l *Lab) error { // what the kernel does when this process dies
			for _, c := range l.lifelines {
				c.Close()
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			for _, h := range l.Hosts() {
				if err := Poll(ctx, time.Millisecond, func() (bool, error) { return !h.Running(), nil }); err != nil {
					return err
				}
			}
			return Remove(l.Name())
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := Start(t, Config{})
			n := l.Add(t, NodeConfig{Daemons: []string{OVSDB}})
			again, err := Open(l.Name())
			if err != nil {
				t.Fatal(err)
			}
			if out, err := again.Node("node-a").Exec(t.Context(), "ovs-vsctl", "--bare", "get", "Open_vSwitch", ".",
				"_uuid"); err != nil {
				t.Errorf("the opened lab: %q, %v", out, err)
			}
			if err := end(l); err != nil {
				t.Fatal(err)
			}
			if n.Running() || l.Host(underlayName).Running() {
				t.Error("still running")
			}
			if _, err := os.Stat(l.Dir()); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("directory is left: %v", err)
			}
			mounts, err := os.ReadFile("/proc/self/mounts")
			if err != nil || strings.Contains(string(mounts), l.Dir()) {
				t.Errorf("mounts are left on the machine: %v", err)
			}
		})
	}
}
