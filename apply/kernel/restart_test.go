package kernel_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"hairpin/apply"
	"hairpin/apply/inside"
	"hairpin/apply/kernel"
	"hairpin/claims"
	"hairpin/lab"
)

// TestSwitchRestarts checks that everything on a device is restored after the device was recreated:
// by a restart of a userspace Open vSwitch with cleanup, or by a recreated port. (When it is only
// killed, Open vSwitch 3.5 leaves its devices with everything on them.)
func TestSwitchRestarts(t *testing.T) {
	n := lab.StartNode(t, lab.NodeConfig{Daemons: []string{lab.OVSDB, lab.VSwitchd}, Datapath: "netdev"})
	exec := func(args ...string) {
		t.Helper()
		if _, err := n.Exec(t.Context(), args...); err != nil {
			t.Fatal(err)
		}
	}
	exec("ovs-vsctl", "add-br", claims.IntegrationBridge, "--", "set", "bridge", claims.IntegrationBridge,
		"datapath_type=netdev",
		"--", "add-port", claims.IntegrationBridge, claims.ManagementPort, "--", "set", "interface",
		claims.ManagementPort, "type=internal", "mtu_request=1400")
	s := &system{ns: n.Netns()}
	s.ip(t, strings.Split(machines, "\n")...)
	want := example(t)
	delete(want.Sysctls, "net/ipv4/conf/eth0.10/rp_filter")
	for k := range want.Addresses {
		if k.Link == "eth0.10" {
			delete(want.Addresses, k)
		}
	}
	s.wants(want)
	target := s.target(t)
	until(t, s, target)
	for range 3 {
		before := s.index(t, claims.ManagementPort)
		exec("ovs-appctl", "exit", "--cleanup")
		for deadline := time.Now().Add(5 * time.Second); s.index(t, claims.ManagementPort) != 0 ||
			n.Pid(lab.VSwitchd) != 0; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("ovs-vswitchd does not end, or leaves its devices")
			}
		}
		if err := n.Start(t.Context(), lab.VSwitchd); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		until(t, s, target)
		t.Logf("%v after Open vSwitch serves again, all is there", time.Since(start).Round(100*time.Microsecond))
		if now := s.index(t, claims.ManagementPort); now == before {
			t.Errorf("the management port was link %d and is %d", before, now)
		}
	}
	quiet(t, target)
	exec("ovs-vsctl", "del-port", claims.ManagementPort)
	exec("ovs-vsctl", "add-port", claims.IntegrationBridge, claims.ManagementPort,
		"--", "set", "interface", claims.ManagementPort, "type=internal")
	told(t, target, "a port made anew")
	until(t, s, target)
}

// index returns the index of a link, 0 if it is missing.
func (s *system) index(t testing.TB, link string) (index int) {
	t.Helper()
	err := inside.Do(s.ns, func() error {
		l, err := netlink.LinkByName(link)
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			return nil
		}
		if err == nil {
			index = l.Attrs().Index
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return index
}

// until reconciles as Pass does, until nothing is missing.
func until(t *testing.T, s *system, target *kernel.Target) {
	t.Helper()
	for deadline := time.Now().Add(5 * time.Second); ; {
		d := s.left(t, target)
		if d.Empty() {
			return
		}
		err := target.Apply(t.Context(), d)
		if waits := (*apply.Waiting)(nil); err != nil && !errors.As(err, &waits) {
			t.Logf("tried again after: %v", err)
		}
		select {
		case <-target.Changed():
		case <-time.After(time.Until(deadline)):
			t.Fatalf("left over:\n%s", s.left(t, target))
		}
	}
}
