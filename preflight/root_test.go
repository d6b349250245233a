package preflight_test

import (
	"testing"

	"hairpin/lab"
	"hairpin/preflight"
)

// TestRoot checks that a container reads the machine's files, that symbolic links resolve within
// the machine, and that files are reported by the machine's names.
func TestRoot(t *testing.T) {
	_, n := machine(t)
	sh(t, n,
		`mkdir -p /host/etc/cni/net.d /host/else/system-connections /host/var/run/openvswitch /host/etc/microshift /etc/cni/net.d
touch /host/etc/cni/net.d/01-first.conflist /etc/cni/net.d/02-ours.conflist
ln -s /else /host/etc/NetworkManager; ln -s /var/run /host/run; ln -s /etc/passwd /host/etc/microshift/ovn.yaml
printf '[connection]\nid=br-ex\n' > /host/else/system-connections/br-ex.nmconnection`)
	if err := n.Start(t.Context(), lab.OVSDB); err != nil {
		t.Fatal(err)
	}
	sh(t, n,
		"ovs-vsctl --no-wait init; mount --bind /run/openvswitch /host/var/run/openvswitch; mount -t tmpfs "+
			"none /run/openvswitch")
	found, code := look(t, n, "--root /host")
	if code != "1" {
		t.Errorf("exit code %s: %+v", code, found)
	}
	for _, object := range []string{"/etc/cni/net.d/01-first.conflist",
		"/etc/NetworkManager/system-connections/br-ex.nmconnection", "Open vSwitch"} {
		if found[object].Message == "" {
			t.Errorf("not found: %s", object)
		}
	}
	// the link's target is not in the machine
	for _, object := range []string{"/etc/cni/net.d/02-ours.conflist", "/etc/microshift/ovn.yaml"} {
		if f, ok := found[object]; ok {
			t.Errorf("found: %+v", f)
		}
	}
	if found, _ = look(t, n, ""); found["/etc/cni/net.d/02-ours.conflist"].Severity != preflight.Stops ||
		found["Open vSwitch"].Message != "" {
		t.Errorf("without --root: %+v", found)
	}
	if text, code := fix(t, n, "--root /host"); code != "2" {
		t.Errorf("--fix: exit code %s: %s", code, text)
	}
}
