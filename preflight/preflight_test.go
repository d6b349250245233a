package preflight_test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hairpin/lab"
	"hairpin/preflight"
)

// look runs the command on a node. It returns the findings by object, and the exit code.
func look(t *testing.T, n *lab.Node, flags string) (found map[string]preflight.Finding, code string) {
	t.Helper()
	out, err := n.Exec(t.Context(), "sh", "-c", "hairpin preflight -o json "+flags+" > /tmp/found; echo $?")
	if err != nil {
		t.Fatal(err)
	}
	text, err := n.Exec(t.Context(), "cat", "/tmp/found")
	if err != nil {
		t.Fatal(err)
	}
	var list []preflight.Finding
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		t.Fatalf("exit code %s: %v in %q", out, err, text)
	}
	found = map[string]preflight.Finding{}
	for _, f := range list {
		found[f.Object] = f
	}
	return found, strings.TrimSpace(out)
}

func sh(t *testing.T, n *lab.Node, script string) {
	t.Helper()
	if _, err := n.Exec(t.Context(), "sh", "-ec", script); err != nil {
		t.Fatal(err)
	}
}

// machine returns a machine with an ordinary network and the program hairpin.
func machine(t *testing.T) (*lab.Lab, *lab.Node) {
	t.Helper()
	hairpin := filepath.Join(t.TempDir(), "hairpin")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", hairpin,
		"hairpin/cmd/hairpin").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	l := lab.Start(t, lab.Config{Name: fmt.Sprintf("pre%d", os.Getpid())})
	return l, l.Add(t, lab.NodeConfig{Plain: true, Binds: map[string]string{"/usr/local/bin/hairpin": hairpin}})
}

// TestMachines checks that an ordinary machine has no problems, and that every remainder of other
// networks is found.
func TestMachines(t *testing.T) {
	_, n := machine(t)
	found, code := look(t, n, "")
	if code != "0" {
		t.Errorf("an ordinary machine: exit code %s, %+v", code, found)
	}
	for object, f := range found {
		if f.Severity != preflight.Info {
			t.Errorf("an ordinary machine has %s: %+v", object, f)
		}
	}

	for file, text := range map[string]string{
		"/etc/cni/net.d/01-first.conflist":                                 "{}",
		"/etc/cni/net.d/10-flannel.conflist":                               "{}",
		"/etc/cni/net.d/05-hairpin.conflist":                               "{}",
		"/etc/NetworkManager/system-connections/ovs-if-br-ex.nmconnection": "[connection]\nid=ovs-if-br-ex\n",
		"/etc/NetworkManager/system-connections/Wired.nmconnection":        "[connection]\nid=Wired\n",
		"/etc/microshift/ovn.yaml":                                         "ovsInit: {gatewayInterface: eth1}\nmtu: 1300\n",
	} {
		sh(t, n, "mkdir -p "+filepath.Dir(file))
		if err := n.WriteFile(file, text); err != nil {
			t.Fatal(err)
		}
	}
	sh(t, n, `
ip link add flannel.1 type veth peer name other
ip link add kube-ipvs0 type veth peer name another
ip link set dev eth0 mtu 1430
ip link set dev other up; ip link set dev flannel.1 up
ip route add 10.244.5.0/24 dev flannel.1
ip route add blackhole 10.244.6.0/26
ip route add 10.244.7.0/24 nexthop dev other nexthop dev flannel.1
nft add table ip kube-proxy; nft add chain ip kube-proxy services
nft add table ip filter; nft 'add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }'
nft add table inet flannel-ipv4; nft 'add chain inet flannel-ipv4 postrtg { type nat hook postrouting priority 100; }'
nft add table inet firewalld; nft 'add chain inet firewalld filter_INPUT { type filter hook input priority 10; }'
`)
	if err := n.Start(t.Context(), lab.OVSDB); err != nil {
		t.Fatal(err)
	}
	sh(t, n,
		"ovs-vsctl --no-wait init; ovs-vsctl --no-wait set Open_vSwitch . external_ids:ovn-remote=ssl:10.0.0.1:6642 "+
			"-- add-br br-ex -- add-port br-ex eth0")
	if err := n.Do(func() error {
		s, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "0.0.0.0:10256")
		if err == nil {
			t.Cleanup(func() { _ = s.Close() })
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}

	want := map[string]preflight.Severity{
		"/etc/cni/net.d/01-first.conflist":                                 preflight.Stops,
		"/etc/cni/net.d/10-flannel.conflist":                               preflight.Warning,
		"/etc/NetworkManager/system-connections/ovs-if-br-ex.nmconnection": preflight.Warning,
		"/etc/microshift/ovn.yaml":                                         preflight.Info,
		"link flannel.1":                                                   preflight.Stops,
		"link kube-ipvs0":                                                  preflight.Stops,
		"route 10.244.5.0/24 dev flannel.1":                                preflight.Stops,
		"route 10.244.6.0/26 without a link":                               preflight.Stops,
		"route 10.244.7.0/24 dev other":                                    preflight.Stops,
		"nft table ip kube-proxy":                                          preflight.Stops,
		"nft chain ip filter FORWARD":                                      preflight.Warning,
		"nft table inet flannel-ipv4":                                      preflight.Warning,
		"Open vSwitch":                                                     preflight.Stops,
		"firewalld":                                                        preflight.Warning,
		"Open_vSwitch external_ids:ovn-remote=ssl:10.0.0.1:6642":           preflight.Stops,
		"bridge br-ex with eth0":                                           preflight.Info,
		"link eth0":                                                        preflight.Stops,
		"tcp [::]:10256":                                                   preflight.Stops,
		"tcp 0.0.0.0:10256":                                                preflight.Stops,
	}
	found, code = look(t, n, "")
	if code != "1" {
		t.Errorf("exit code %s, not 1", code)
	}
	for object, severity := range want {
		if f, ok := found[object]; !ok || f.Severity != severity || f.Message == "" {
			t.Errorf("%s: found %+v, want %s", object, f, severity)
		}
	}
	for object, f := range found {
		if _, ok := want[object]; !ok && f.Severity != preflight.Info {
			t.Errorf("found besides: %+v", f)
		}
	}
	if out, err := n.Exec(t.Context(), "sh", "-c", found["/etc/microshift/ovn.yaml"].Remedy); err != nil ||
		!strings.Contains(out, "[default]\nmtu = 1300\n") {
		t.Errorf("%q: %q, %v", found["/etc/microshift/ovn.yaml"].Remedy, out, err)
	}
	found, _ = look(t, n, "--gateway-mode detached")
	if f := found["bridge br-ex with eth0"]; f.Severity != preflight.Stops {
		t.Errorf("in mode detached: %+v", f)
	}
	out, err := n.Exec(t.Context(), "sh", "-c", "hairpin preflight || true")
	if lines := strings.Split(out, "\n"); err != nil || !slices.ContainsFunc(lines, func(l string) bool {
		return strings.HasPrefix(l, "stops") && strings.Contains(l, "flannel is here")
	}) {
		t.Errorf("%v\n%s", err, out)
	}
	t.Log(out)
}
