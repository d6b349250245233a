package cni_test

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"hairpin/lab"
)

// TestHealth: STATUS and the agent's status report that no pod can be added, and which pods have
// lost their interface. An interface that is set down is set up again.
func TestHealth(t *testing.T) {
	w, n := single(t)
	pods := residents(t, w, n, "one", "two")
	says := func(what string) {
		t.Helper()
		eventually(t, 20*time.Second, "the agent says: "+what, func() error {
			out, err := n.Exec(t.Context(), "sh", "-c", "hairpin status && exit 0; hairpin status | grep ^problem")
			if err == nil && strings.Contains(out, what) {
				return nil
			}
			return errors.Join(errors.New(out), err)
		})
	}
	healthy := func() {
		t.Helper()
		eventually(t, 20*time.Second, "the node is healthy",
			func() error { _, err := n.Exec(t.Context(), "hairpin", "status"); return err })
	}
	sh(t, n, "ip link set "+pods[0].host+" down")
	eventually(t, 10*time.Second, "the interface is up again",
		func() error { return get(n.Netns(), "udp", pods[0].ips[0], port) })
	sh(t, n, "ip link del "+pods[1].host)
	says("Pod/default/two has no network: its interface " + pods[1].host + " was deleted")
	pods[1].del()
	healthy()

	sh(t, n,
		"mkdir /tmp/small; mount -t tmpfs -o size=600k tmpfs /tmp/small; cp -a /etc/openvswitch/. /tmp/small/; "+
			"mount --bind /tmp/small /etc/openvswitch")
	must(t, n.Restart(t.Context(), lab.OVSDB, syscall.SIGTERM))
	eventually(t, 20*time.Second, "the node serves pods",
		func() error { return w.plugin(n, "STATUS", netconf(n), nil).err })
	sh(t, n, "head -c 2M /dev/zero >/etc/openvswitch/fill || true")
	var last outcome
	eventually(t, 40*time.Second, "an ADD fails for the full disk", func() error {
		// A request in progress may still end with something else.
		if last = w.sandbox(n, "late").call("ADD"); last.err == nil ||
			!strings.Contains(last.err.Error(), "write failed") {
			return fmt.Errorf("it ended with %v", last.err)
		}
		return nil
	})
	last.refused(t, 11, "write failed")
	w.plugin(n, "STATUS", netconf(n), nil).refused(t, 50, "the database of Open vSwitch cannot be written")
	says("none can be added: the database of Open vSwitch cannot be written")
	sh(t, n, "rm /etc/openvswitch/fill")
	must(t, w.plugin(n, "STATUS", netconf(n), nil).err)
	healthy()
	late := w.sandbox(n, "late")
	late.add()
	if probe := sh(t, n, "ovs-vsctl get Open_vSwitch . external_ids"); strings.Contains(probe, "hairpin-probe") {
		t.Errorf("left over: %s", probe)
	}
}
