package cluster_test

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"hairpin/cluster"
)

func FuzzParseMAC(f *testing.F) {
	f.Add("0a:58:0a:f4:01:03")
	f.Add("0A:58:0a:F4:01:0x")
	f.Fuzz(func(t *testing.T, s string) {
		m, err := cluster.ParseMAC(s)
		if err != nil {
			if m != (cluster.MAC{}) {
				t.Errorf("%q: %v, and yet %s", s, err, m)
			}
			return
		}
		if m.String() != strings.ToLower(s) {
			t.Errorf("%q is read as %s", s, m)
		}
	})
}

// FuzzNodeAnnotations: parsing any content terminates, and accepted values parse to the same values
// again.
func FuzzNodeAnnotations(f *testing.F) {
	n := wantGood()
	f.Add("7", cluster.HostCIDRsAnnotation(n.HostAddresses), cluster.GatewayAnnotation(n.Gateway))
	f.Add("x", `["1.2.3.4/33"]`, `{"default":{"next-hops":[null]}}`)
	f.Add("-1", `[null]`, `{"default":null}`)
	f.Fuzz(func(t *testing.T, id, hosts, gateway string) {
		s := store(node("n", annotated(cluster.AnnotationNodeID, id), annotated(cluster.AnnotationHostCIDRs, hosts),
			annotated(cluster.AnnotationGateway, gateway))).Snapshot()
		n := s.Node("n")
		if n.ID < 0 || n.ID > 32767 {
			t.Errorf("number %d", n.ID)
		}
		again := store(node("n", annotated(cluster.AnnotationHostCIDRs, cluster.HostCIDRsAnnotation(n.HostAddresses)),
			annotated(cluster.AnnotationGateway, cluster.GatewayAnnotation(n.Gateway)))).Snapshot()
		if len(again.Problems) > 0 {
			t.Errorf("what was written is bad: %v", again.Problems)
		}
		m := again.Node("n")
		if !reflect.DeepEqual(n.HostAddresses, m.HostAddresses) || !reflect.DeepEqual(n.Gateway, m.Gateway) {
			t.Errorf("%+v came back as %+v", n, m)
		}
	})
}

// FuzzHostLinks: accepted links of a node parse to the same links again, and no link occurs twice.
func FuzzHostLinks(f *testing.F) {
	f.Add(`[{"name":"eth1","index":3,"mac-address":"02:00:00:00:00:01","ip-addresses":["10.9.0.3/24"],"routes":[{"to":"10.10.0.0/16","via":"10.9.0.1"}]}]`)
	f.Add(`[null,{"name":"a/b"},{"name":"x","index":-1,"vrf-table":99999999999}]`)
	f.Fuzz(func(t *testing.T, text string) {
		n := store(node("n", annotated(cluster.AnnotationHostLinks, text))).Snapshot().Node("n")
		names := map[string]bool{}
		for _, l := range n.Links {
			if names[l.Name] {
				t.Errorf("%s is there twice", l.Name)
			}
			names[l.Name] = true
		}
		if n.Links == nil {
			return
		}
		again := store(node("n", annotated(cluster.AnnotationHostLinks,
			cluster.HostLinksAnnotation(n.Links)))).Snapshot()
		if len(again.Problems) > 0 {
			t.Errorf("what was written is bad: %v", again.Problems)
		}
		if m := again.Node("n"); len(m.Links) != len(n.Links) {
			t.Errorf("%+v came back as %+v", n.Links, m.Links)
		}
	})
}

// FuzzHostPorts: accepted ports of a node parse to the same ports again.
func FuzzHostPorts(f *testing.F) {
	f.Add(`{"checked":["80","8000-8099"],"used":[{"ip":"172.18.0.3","protocol":"TCP","port":80},{"ip":"::1","protocol":"UDP","port":1,"pod":"a/b"}]}`)
	f.Add(`{"checked":["0"],"used":[{"ip":"fe80::1%x","protocol":"TCP","port":80},{"ip":"","protocol":"ICMP","port":70000}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		n := store(node("n", annotated(cluster.AnnotationHostPorts, text))).Snapshot().Node("n")
		again := store(node("n", annotated(cluster.AnnotationHostPorts,
			cluster.HostPortsAnnotation(n.HostPorts)))).Snapshot()
		if m := again.Node("n"); len(again.Problems) > 0 || !reflect.DeepEqual(m.HostPorts, n.HostPorts) {
			t.Errorf("%+v came back as %+v, %v", n.HostPorts, m.HostPorts, again.Problems)
		}
	})
}

// FuzzHostRules: accepted rules of a node parse to the same rules again.
func FuzzHostRules(f *testing.F) {
	f.Add(`[{"pref":100,"iif":"br-ex","lookup":100,"routes":[{"to":"10.9.0.0/24","via":"10.10.2.100","dev":"eth2"}]}]`)
	f.Add(`[{"pref":5210,"ipv6":true,"not":true,"fwmark":51820,"fwmask":4294967295,"lookup":254,"length":1},{"iif":"a/b"},{"refuse":true}]`)
	f.Fuzz(func(t *testing.T, text string) {
		n := store(node("n", annotated(cluster.AnnotationHostRules, text))).Snapshot().Node("n")
		again := store(node("n", annotated(cluster.AnnotationHostRules,
			cluster.HostRulesAnnotation(n.Rules)))).Snapshot()
		if m := again.Node("n"); len(again.Problems) > 0 || !reflect.DeepEqual(m.Rules, n.Rules) {
			t.Errorf("%+v came back as %+v, %v", n.Rules, m.Rules, again.Problems)
		}
		for _, r := range n.Rules {
			_ = r.String()
			r.Matches(netip.MustParseAddr("10.244.1.3"), netip.MustParseAddr("192.0.2.9"), 4, "lo")
		}
	})
}
