package annotation_test

import (
	"net/netip"
	"reflect"
	"testing"

	"hairpin/cluster"
	"hairpin/cluster/annotation"
)

func prefixes(texts ...string) (list []netip.Prefix) {
	for _, s := range texts {
		list = append(list, netip.MustParsePrefix(s))
	}
	return list
}

func gateway() cluster.Gateway {
	return cluster.Gateway{
		Mode: "shared", Bridge: "br-ex", Uplink: "eth0", MAC: cluster.MAC{2, 0x42, 0xac, 0x12, 0, 3},
		Userspace: true, Addresses: prefixes("172.18.0.3/16", "fc00::3/64"),
		NextHops: []netip.Addr{netip.MustParseAddr("172.18.0.1"), netip.MustParseAddr("fc00::1")},
	}
}

// TestAnnotations: other nodes read the values that the agent publishes.
func TestAnnotations(t *testing.T) {
	for _, g := range []cluster.Gateway{gateway(), {}, {Mode: "shared", MTU: 9000},
		{Mode: "detached", Bridge: "br-ex", Addresses: prefixes("10.44.0.0/32")}} {
		if got, wrong := annotation.ParseGateway(annotation.FormatGateway(g)); len(wrong) > 0 ||
			!reflect.DeepEqual(got, g) {
			t.Errorf("%+v came back as %+v: %v", g, got, wrong)
		}
	}
	if got, wrong := annotation.ParseGateway(""); len(wrong) != 1 || !reflect.DeepEqual(got, cluster.Gateway{}) {
		t.Errorf("nothing was read as %+v: %v", got, wrong)
	}
	hosts := prefixes("172.18.0.3/16", "172.20.0.1/16", "fc00::3/64")
	if got, wrong := annotation.ParseHostCIDRs(annotation.FormatHostCIDRs(hosts)); len(wrong) > 0 ||
		!reflect.DeepEqual(got, hosts) {
		t.Errorf("%v came back as %v: %v", hosts, got, wrong)
	}
	if got := annotation.FormatHostCIDRs(nil); got != "[]" {
		t.Errorf("no address is written as %s", got)
	}
}
