package agent_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hairpin/lab"
	"hairpin/lab/attack"
)

// TestExtraAddresses: a pod reaches its neighbor from an extra address while its annotation
// requests the address and its Namespace's allows it.
func TestExtraAddresses(t *testing.T) {
	t.Parallel()
	l := startDemo(t)
	a := l.Node("node-a")
	manifest := func(name, text string) {
		t.Helper()
		file := filepath.Join(l.Dir(), "manifests", name+".yaml")
		if err := os.WriteFile(file+".new", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".new", file); err != nil {
			t.Fatal(err)
		}
	}
	pods, err := os.ReadFile(filepath.Join(l.Dir(), "manifests", "pods.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	ask := func(address string) {
		manifest("pods", strings.Replace(string(pods), "  name: pod-a2\n",
			"  name: pod-a2\n  annotations: {k8s.ovn.org/extra-addresses: \""+address+"\"}\n", 1))
	}
	allow := func(ranges string) {
		manifest("space",
			"apiVersion: v1\nkind: Namespace\nmetadata: {name: default, annotations: "+
				"{k8s.ovn.org/extra-address-ranges: \""+ranges+"\"}}\n")
	}
	var from, to lab.Place
	for _, p := range a.Pods() {
		switch p.Name() {
		case "pod-a1":
			to = p
		case "pod-a2":
			from = p
		}
	}
	mac, err := attack.MAC(from, "eth0")
	if err != nil {
		t.Fatal(err)
	}
	next, err := attack.MAC(to, "eth0")
	if err != nil {
		t.Fatal(err)
	}
	ear, err := attack.ListenUDP(to, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer ear.Close()
	arrives := func(src string) bool {
		mark := []byte("from " + src + " " + time.Now().String())
		frame := attack.Frame(mac, next,
			attack.UDP(netip.AddrPortFrom(netip.MustParseAddr(src), 40000),
				netip.AddrPortFrom(netip.MustParseAddr("10.244.1.3"), ear.Port), mark))
		for range 3 {
			if err := attack.Send(from, "eth0", frame); err != nil {
				t.Fatal(err)
			}
		}
		return ear.Hear(t.Context(), 500*time.Millisecond,
			func(b []byte) bool { return strings.Contains(string(b), string(mark)) }) != nil
	}
	const extra, other = "10.244.1.200", "10.244.1.201"
	for _, step := range []struct {
		what         string
		do           func()
		want, secure bool
	}{
		{"nobody asks", func() {}, false, false},
		{"asked for, not allowed", func() { ask(extra) }, false, false},
		{"asked for and allowed", func() { allow("10.244.1.192/27") }, true, true},
		{"asked for, not allowed any more", func() { allow("192.0.2.0/24") }, false, false},
	} {
		step.do()
		eventually(t, 20*time.Second, step.what, func() (bool, string) {
			out := sh(t, a, "ovs-ofctl --no-stats dump-flows br-svc table=0")
			return strings.Contains(out, "nw_src="+extra+" ") == step.secure, out
		})
		waitServes(t, a)
		if !arrives("10.244.1.4") {
			t.Errorf("%s: nothing arrives from the pod's own address", step.what)
		}
		if got := arrives(extra); got != step.want {
			t.Errorf("%s: from %s arrives: %v, want %v", step.what, extra, got, step.want)
		}
		if arrives(other) {
			t.Errorf("%s: from %s something arrives", step.what, other)
		}
	}
	if list := strings.Join(mustReport(t, a).Problems, "\n"); !strings.Contains(list, extra+
		" is not within annotation") {
		t.Errorf("the report does not say what is refused:\n%s", list)
	}
}
