package kernel_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netlink"

	"hairpin/apply/inside"
	"hairpin/apply/inside/insidetest"
	"hairpin/apply/kernel"
	"hairpin/datapath/host"
)

// TestSysctlsGivenBack checks that unwanted sysctls get their former values, also by another
// Target, and also all at once.
func TestSysctlsGivenBack(t *testing.T) {
	ns, file := insidetest.NetNS(t), filepath.Join(t.TempDir(), "run", "sysctls.json")
	const forward, localnet = "net/ipv4/ip_forward", "net/ipv4/conf/lo/route_localnet"
	var want host.State
	reach := func(what string, values ...string) {
		t.Helper()
		want = host.State{Sysctls: map[string]host.Sysctl{}}
		for i, path := range []string{forward, localnet} {
			if values[i] != "" {
				want.Sysctls[path] = host.Sysctl{Path: path, Value: values[i]}
			}
		}
		target, err := kernel.New(kernel.Config{NetNS: ns, Wanted: func() host.State { return want }, Former: file})
		if err != nil {
			t.Fatal(err)
		}
		defer target.Close()
		for i := range 2 {
			have, err := target.Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			d := host.Diff(want, have)
			if i == 1 && !d.Empty() {
				t.Errorf("%s: left\n%s", what, d)
			}
			if err := target.Apply(t.Context(), d); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
	is := func(what, want string) {
		t.Helper()
		var got []string
		if err := inside.Do(ns, func() error {
			for _, path := range []string{forward, localnet} {
				text, err := os.ReadFile("/proc/sys/" + path)
				if err != nil {
					return err
				}
				got = append(got, strings.TrimSpace(string(text)))
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v, want %s", what, got, want)
		}
	}
	if err := inside.Do(ns, func() error { return os.WriteFile("/proc/sys/"+forward, []byte("0"), 0) }); err != nil {
		t.Fatal(err)
	}
	is("at first", "0 0")
	reach("both", "1", "1")
	is("both", "1 1")
	reach("another value", "1", "0")
	reach("one", "1", "")
	is("one is wanted no more", "1 0")
	reach("none", "", "")
	is("none is wanted", "0 0")
	reach("both again", "1", "1")
	is("both again", "1 1")
	if err := inside.Do(ns, func() error { return kernel.RestoreSysctls(file) }); err != nil {
		t.Fatal(err)
	}
	is("given back", "0 0")
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the file is left: %v", err)
	}
	reach("both", "1", "1")
	if err := os.WriteFile(file, []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	reach("the file is broken", "1", "")
	is("what cannot be known stays", "1 1")
}

// TestSysctlsOfAnotherLink checks that a new link with an old name gets its own former value back.
func TestSysctlsOfAnotherLink(t *testing.T) {
	ns, file := insidetest.NetNS(t), filepath.Join(t.TempDir(), "sysctls.json")
	const path = "net/ipv4/conf/d0/rp_filter"
	var wanted atomic.Pointer[host.State] // the Target's listener reads it
	wanted.Store(&host.State{})
	target, err := kernel.New(kernel.Config{NetNS: ns, Wanted: func() host.State { return *wanted.Load() },
		Former: file})
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	reach := func(value string) {
		t.Helper()
		want := host.State{Sysctls: map[string]host.Sysctl{}}
		if value != "" {
			want.Sysctls[path] = host.Sysctl{Path: path, Value: value}
		}
		wanted.Store(&want)
		have, err := target.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := target.Apply(t.Context(), host.Diff(want, have)); err != nil {
			t.Fatal(err)
		}
	}
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "d0"}, PeerName: "d1"}
	add := func(value string) {
		t.Helper()
		if err := inside.Do(ns, func() error {
			return errors.Join(netlink.LinkAdd(link), os.WriteFile("/proc/sys/"+path, []byte(value), 0))
		}); err != nil {
			t.Fatal(err)
		}
	}
	add("0")
	reach("2")
	if err := inside.Do(ns, func() error { return netlink.LinkDel(link) }); err != nil {
		t.Fatal(err)
	}
	reach("")
	add("1")
	reach("2")
	reach("")
	if err := inside.Do(ns, func() error {
		text, err := os.ReadFile("/proc/sys/" + path)
		if got := strings.TrimSpace(string(text)); err == nil && got != "1" {
			err = fmt.Errorf("%s is %s, and was 1", path, got)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}
