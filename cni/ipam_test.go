package cni

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"hairpin/cni/veth"
	"hairpin/ovsdb"
)

// small returns a random subnet of which all addresses can be listed.
func small(t *rapid.T) netip.Prefix {
	if rapid.Bool().Draw(t, "IPv4") {
		a := rapid.SampledFrom([]string{"10.244.1.0", "0.0.0.0", "255.255.255.0", "192.168.7.128"}).Draw(t, "subnet")
		return netip.PrefixFrom(netip.MustParseAddr(a), rapid.IntRange(25, 29).Draw(t, "bits")).Masked()
	}
	a := rapid.SampledFrom([]string{"fd00:10:244:1::", "::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ff00"}).Draw(t,
		"subnet")
	return netip.PrefixFrom(netip.MustParseAddr(a), rapid.IntRange(121, 126).Draw(t, "bits")).Masked()
}

// usableAddresses lists the addresses that pods may have according to the documentation: not the
// network's, the router's, the management port's, nor IPv4's broadcast.
func usableAddresses(subnet netip.Prefix) []netip.Addr {
	var all []netip.Addr
	for a := subnet.Addr(); subnet.Contains(a); a = a.Next() {
		all = append(all, a)
	}
	if subnet.Addr().Is4() {
		all = all[:len(all)-1]
	}
	return all[min(3, len(all)):]
}

// For any used addresses and last one, the next address is usable and free. It is the first such
// one after last, around the subnet. There is none only if all are in use.
func TestNextAddress(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		subnet := small(t)
		all := usableAddresses(subnet)
		used := map[netip.Addr]bool{}
		for _, a := range all {
			used[a] = rapid.IntRange(0, 3).Draw(t, "used") > 0
		}
		var last netip.Addr // none, one of the subnet, or one of another subnet
		switch rapid.IntRange(0, 2).Draw(t, "last") {
		case 1:
			last = rapid.SampledFrom(all).Draw(t, "address")
		case 2:
			last = netip.MustParseAddr("10.244.77.9")
		}
		got, err := nextAddress(subnet, last, used)
		i := slices.Index(all, last) + 1
		var want netip.Addr
		for _, a := range append(slices.Clone(all[i:]), all[:i]...) {
			if !used[a] {
				want = a
				break
			}
		}
		if got != want || errors.Is(err, errFull) == want.IsValid() {
			t.Fatalf("%s after %s: %s (%v), want %s", subnet, last, got, err, want)
		}
	})
}

// Pods come and go: no two have the same address, and a released address is not reused while others
// are free.
func TestAddressesRest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		subnet := small(t)
		all := usableAddresses(subnet)
		used := map[netip.Addr]bool{}
		var last netip.Addr
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			if rapid.Bool().Draw(t, "come") {
				a, err := nextAddress(subnet, last, used)
				if err != nil {
					if len(used) < len(all) {
						t.Fatalf("%d of %d are in use: %v", len(used), len(all), err)
					}
					continue
				}
				if used[a] || !slices.Contains(all, a) {
					t.Fatalf("%s is in use, or not usable", a)
				}
				if a == last && len(used)+1 < len(all) {
					t.Fatalf("%s again, with %d others free", a, len(all)-len(used)-1)
				}
				used[a], last = true, a
			} else if len(used) > 0 {
				a := rapid.SampledFrom(slices.SortedFunc(maps.Keys(used), netip.Addr.Compare)).Draw(t, "go")
				delete(used, a)
			}
		}
	})
}

func TestArgs(t *testing.T) {
	for args, want := range map[string]podArgs{
		"K8S_POD_NAMESPACE=a;K8S_POD_NAME=b":                                                {"a", "b", ""},
		"IgnoreUnknown=1;K8S_POD_NAMESPACE=a;K8S_POD_NAME=b;K8S_POD_UID=c;K8S_POD_INFRA=d;": {"a", "b", "c"},
	} {
		if got, err := parseArgs(args); err != nil || got != want {
			t.Errorf("%q: %+v, %v", args, got, err)
		}
	}
	for _, args := range []string{"", "K8S_POD_NAME=b", "K8S_POD_NAMESPACE=a", "K8S_POD_NAMESPACE=;K8S_POD_NAME=b",
		";;=;", "k8s_pod_namespace=a;k8s_pod_name=b"} {
		if _, err := parseArgs(args); err == nil || err.Code != 4 {
			t.Errorf("%q: error %v, want code 4", args, err)
		}
	}
}

// The attachment written on a row is parsed from it.
func TestAttachmentOnItsRow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[a-z0-9.-]{1,20}`)
		a := attachment{uid: word.Draw(t, "uid"), network: word.Draw(t, "network"), container: word.Draw(t, "sandbox"),
			Pair: veth.Pair{IfName: word.Draw(t, "ifName"), Host: veth.NewHostName()}}
		a.pod.Kind, a.pod.Namespace, a.pod.Name = "Pod", word.Draw(t, "namespace"), word.Draw(t, "name")
		for i := range rapid.IntRange(1, 2).Draw(t, "families") {
			subnet := []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24"),
				netip.MustParsePrefix("fd00:10:244:1::/64")}[i]
			ip, err := nextAddress(subnet, netip.Addr{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			a.Addresses = append(a.Addresses, netip.PrefixFrom(ip, subnet.Bits()))
		}
		a.MAC = [6]byte(rapid.SliceOfN(rapid.Byte(), 6, 6).Draw(t, "mac"))
		got := parseAttachment(&ovsdb.Interface{Name: a.Host, ExternalIDs: a.ids()})
		if got.pod != a.pod || got.uid != a.uid || got.network != a.network || got.key() != a.key() ||
			got.Host != a.Host || got.MAC != a.MAC || !slices.Equal(got.Addresses, a.Addresses) {
			t.Fatalf("%+v, want %+v", got, a)
		}
	})
}

// A row with damaged external_ids can still be removed, but gives no pod.
func TestDamagedRow(t *testing.T) {
	whole := map[string]string{keyName: "web", keyNamespace: "default", keySandbox: "abc", keyIfName: "eth0",
		keyMAC: "0a:58:0a:f4:01:03", keyAddresses: "10.244.1.3/24"}
	if a := parseAttachment(&ovsdb.Interface{Name: "x", ExternalIDs: whole}); len(a.Addresses) != 1 {
		t.Fatalf("%+v", a)
	}
	for key, value := range map[string]string{keyName: "", keyMAC: "0a", keyAddresses: "10.244.1.3"} {
		ids := maps.Clone(whole)
		ids[key] = value
		if a := parseAttachment(&ovsdb.Interface{Name: "x", ExternalIDs: ids}); len(a.Addresses) != 0 ||
			a.key() != "abc/eth0" {
			t.Errorf("without %s: %+v", key, a)
		}
	}
}

// FuzzArgs: for any arguments of a runtime, there is a pod or an error.
func FuzzArgs(f *testing.F) {
	f.Add("IgnoreUnknown=1;K8S_POD_NAMESPACE=a;K8S_POD_NAME=b")
	f.Fuzz(func(t *testing.T, args string) {
		if p, err := parseArgs(args); err == nil && (p.name == "" || p.namespace == "") {
			t.Errorf("%q: %+v", args, p)
		}
	})
}
