package cni

import (
	"net/netip"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"hairpin/cluster"
	"hairpin/cni/veth"
)

// The record on a link of the kernel is parsed as it was written, however long the names are. An
// erased record is empty.
func TestRecordOnItsLink(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("links need root")
	}
	runtime.LockOSThread() // never unlocked: the thread's network namespace ends with it
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Skipf("no network namespace: %v", err)
	}
	must := func(t *rapid.T, err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		word := func(name string, most int) string {
			return strings.Repeat("x", rapid.IntRange(0, most-20).Draw(t, "longer")) +
				rapid.StringMatching(`[a-z0-9.-]{1,20}`).Draw(t, name)
		}
		a := attachment{network: word("network", 40), container: word("sandbox", 64),
			uid:  rapid.SampledFrom([]string{"", "5f6a0de4-0000-4000-8000-1d6b2b1d2f6e"}).Draw(t, "uid"),
			Pair: veth.Pair{IfName: "eth0", Host: veth.NewHostName()}}
		a.pod = cluster.Owner{Kind: "Pod", Namespace: word("namespace", 63), Name: word("name", 253)}
		a.Addresses = []netip.Prefix{netip.MustParsePrefix("10.244.1.3/24"),
			netip.MustParsePrefix("fd00:10:244:1::3/64")}[:rapid.IntRange(1, 2).Draw(t, "families")]
		a.hostPorts = rapid.SampledFrom([]string{"", `[{"hostPort":80}]`, "[" +
			strings.Repeat(`{"hostPort":80},`, maxPorts/16-1) + "{}]"}).Draw(t, "ports")
		a.MAC = cluster.MACFor(a.Addresses[0].Addr())
		must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: a.Host}, PeerName: "peer"}))
		defer func() { must(t, veth.Unplug(a.Host)) }()
		older := a
		older.container = "older"
		for _, x := range []*attachment{&older, &a, &a} {
			must(t, veth.OnHostEnd(a.Host, x.writeRecord))
		}
		read := func() string {
			ends, err := veth.HostEnds()
			must(t, err)
			return readRecord(ends[a.Host])
		}
		if got, ok := parseRecord(a.Host, read()); !ok || !reflect.DeepEqual(got, a) {
			t.Fatalf("%q: %+v, want %+v", read(), got, a)
		}
		must(t, veth.OnHostEnd(a.Host, eraseRecord))
		if got := read(); got != "" {
			t.Fatalf("after it was erased: %q", got)
		}
	})
}

// Text of other programs, of older versions or by accident gives no attachment.
func TestRecordOfOthers(t *testing.T) {
	good := "hairpin: default/web 10.244.1.3/24 hairpin eth0 uid sandbox"
	if _, ok := parseRecord("h", good); !ok {
		t.Fatal(good)
	}
	for _, text := range []string{"", "hairpin: default/web", "default/web 10.244.1.3/24 hairpin eth0 uid sandbox",
		strings.TrimSuffix(good, "sandbox"),
		strings.Replace(good, "/web", "", 1), strings.Replace(good, "10.244.1.3/24", "10.244", 1), good + " more"} {
		if a, ok := parseRecord("h", text); ok {
			t.Errorf("%q: %+v", text, a)
		}
	}
}
