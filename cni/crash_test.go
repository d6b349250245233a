package cni_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"hairpin/lab"
)

// TestAgentIsKilled kills the agent at several points of an ADD. The kubelet gives up on that
// sandbox and tries again with a new one: it works, and nothing of the old one remains. If the
// plugin still waits, its own ADD works.
func TestAgentIsKilled(t *testing.T) { engines(t, agentIsKilled) }

func agentIsKilled(t *testing.T, engine string) {
	w, n := singleWith(t, engine)
	resident := w.sandbox(n, "resident") // existing pods stay
	serve(t, resident.path())
	resident.add()
	linked := func(*sandbox) error {
		if len(links(t, n)) < 2 {
			return errors.New("no link")
		}
		return nil
	}
	for _, c := range []struct {
		point  string
		frozen string               // the daemon that is stopped, so that the ADD waits there
		there  func(*sandbox) error // reports whether the ADD is there
	}{
		{"link made, row not written", lab.OVSDB, linked},
		{"row written, port not opened", lab.VSwitchd, func(s *sandbox) error { return hasRow(t, n, s) }},
		{"port opened, OVN does not know it", lab.Northd, func(s *sandbox) error { return openedPort(t, n, s) }},
		{"port in OVN, flows not installed", lab.Controller, func(s *sandbox) error { return openedPort(t, n, s) }},
	} {
		for _, waits := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, plugin waits %v", c.point, waits), func(t *testing.T) {
				w := &world{t: t, lab: w.lab, binary: w.binary, dir: w.dir, engine: w.engine}
				s := w.sandbox(n, "web")
				serve(t, s.path())
				freeze(t, n, c.frozen)
				ctx, kill9 := context.WithCancel(t.Context())
				defer kill9()
				added := make(chan outcome, 1)
				go func() { added <- s.callUntil(ctx, "ADD") }()
				eventually(t, 20*time.Second, "ADD is at that point", func() error { return c.there(s) })
				kill(t, n, agent)
				if !waits {
					kill9()
					<-added
				}
				thaw(t, n, c.frozen)
				w.start(n)
				if waits {
					must(t, (<-added).err)
					s.reachable()
				}
				next := w.sandbox(n, "web")
				serve(t, next.path())
				next.add()
				next.reachable()
				resident.w.t = t
				resident.reachable()
				if !waits {
					s.del() // as a runtime does with a failed sandbox; nothing of the new one may be removed
				}
				consistent(t, n, resident, next)
				next.reachable()
				next.del()
				s.del()
				consistent(t, n, resident)
			})
		}
	}
}

// hasRow reports whether the sandbox has an Interface row.
func hasRow(t testing.TB, n *lab.Node, s *sandbox) error {
	for _, r := range interfaces(t, n) {
		if r.ExternalIDs["sandbox"] == s.id {
			return nil
		}
	}
	return errors.New("no row of sandbox " + s.id)
}

// TestAgentIsAway runs commands while the agent is restarted and while there is none.
func TestAgentIsAway(t *testing.T) {
	t.Parallel() // it waits most of the time
	w, n := single(t)
	first, second := w.sandbox(n, "first"), w.sandbox(n, "second")
	serve(t, second.path())
	first.add()
	kill(t, n, agent)
	w.plugin(n, "STATUS", netconf(n), nil).refused(t, 50, "not ready", "cni.sock")

	ended := make(chan outcome, 2)
	go func() { ended <- first.call("DEL") }()
	go func() { ended <- second.call("ADD") }()
	acceptAndClose(t, n, 2)
	w.start(n)
	must(t, (<-ended).err)
	must(t, (<-ended).err)
	second.reachable()
	consistent(t, n, second)
	before := second.ips

	// Released addresses are reused late also across a restart: the last one allocated is recorded.
	second.del()
	must(t, n.Restart(t.Context(), agent, 15))
	third := w.sandbox(n, "third")
	third.add()
	if want := before[0].Next(); third.ips[0] != want {
		t.Errorf("after %s and a restart, the next address is %s, not %s", before[0], third.ips[0], want)
	}

	kill(t, n, agent)
	begin := time.Now()
	third.call("DEL").refused(t, 11, "agent")
	if took := time.Since(begin); took < 8*time.Second || took > 20*time.Second {
		t.Errorf("DEL without an agent gave up after %v", took)
	}
	w.start(n)
	third.del()
}

// TestReboot ends everything on a node except its disk: Open vSwitch's database still has the
// earlier pods.
func TestReboot(t *testing.T) { engines(t, reboot) }

func reboot(t *testing.T, engine string) {
	w, n := singleWith(t, engine)
	var old []*sandbox
	for i := range 3 {
		s := w.sandbox(n, fmt.Sprintf("before-%d", i))
		s.add()
		old = append(old, s)
	}
	kill(t, n, agent)
	for _, d := range lab.AllDaemons() {
		kill(t, n, d)
	}
	for _, s := range old {
		s.vanish()
	}
	sh(t, n, "rm -rf /run/hairpin /run/ovn/* /var/lib/ovn/*") // OVN's databases are made again, Open vSwitch's stays
	eventually(t, 10*time.Second, "the kernel has removed the links", func() error {
		if left := links(t, n); left != nil {
			return fmt.Errorf("links %v", left)
		}
		return nil
	})
	for _, d := range lab.AllDaemons() {
		must(t, n.Start(t.Context(), d))
	}
	// Services still send to the addresses that the API reports.
	reported := func(pod string, ips ...netip.Addr) {
		w.manifest(pod+".yaml", fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {namespace: default, name: %[1]s, uid: uid-%[1]s}
spec: {nodeName: node-a}
status: {podIPs: [{ip: %[2]s}, {ip: "%[3]s"}]}
`, pod, ips[0], ips[1]))
	}
	following := []netip.Addr{old[2].ips[0].Next(), old[2].ips[1].Next()}
	reported("before-1", old[1].ips...)
	reported("before-3", following...)
	w.start(n)
	w.ready(n)
	consistent(t, n)
	next := w.sandbox(n, "before-0") // the kubelet starts the same pods again
	serve(t, next.path())
	next.add()
	next.reachable()
	if slices.ContainsFunc(old, func(s *sandbox) bool { return s.ips[0] == next.ips[0] }) {
		t.Errorf("the address %s is used again at once", next.ips[0])
	}
	if next.ips[0] == following[0] || next.ips[1] == following[1] {
		t.Errorf("%v has an address that the API reports of another pod", next.ips)
	}
	same := w.sandbox(n, "before-1")
	serve(t, same.path())
	same.add()
	same.reachable()
	if !slices.Equal(same.ips, old[1].ips) {
		t.Errorf("a pod that the API reports with %v has %v after a reboot", old[1].ips, same.ips)
	}
	old[0].del() // late, of the earlier sandbox
	next.reachable()
	consistent(t, n, next, same)
}

// acceptAndClose takes the agent's place: it accepts so many plugins and ends without a reply, like
// an agent that dies.
func acceptAndClose(t testing.TB, n *lab.Node, plugins int) {
	t.Helper()
	path := n.Path("/run/hairpin/cni.sock")
	must(t, os.Remove(path))
	l, err := net.Listen("unix", path)
	must(t, err)
	defer l.Close()
	must(t, l.(*net.UnixListener).SetDeadline(time.Now().Add(10*time.Second)))
	for range plugins {
		c, err := l.Accept()
		must(t, err)
		defer c.Close()
	}
}
