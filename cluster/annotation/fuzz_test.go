package annotation_test

import (
	"net/netip"
	"reflect"
	"testing"

	"hairpin/cluster/annotation"
)

// FuzzNodeAnnotations: parsing any content terminates, and accepted values parse to the same values
// again.
func FuzzNodeAnnotations(f *testing.F) {
	f.Add("7", `["172.18.0.3/16","172.20.0.1/16","fc00::3/64"]`, annotation.FormatGateway(gateway()))
	f.Add("x", `["1.2.3.4/33"]`, `{"default":{"next-hops":[null]}}`)
	f.Add("-1", `[null]`, `{"default":null}`)
	f.Fuzz(func(t *testing.T, id, hosts, gateway string) {
		if n, _ := annotation.ParseNodeID(id); n < 0 || n > 32767 {
			t.Errorf("number %d", n)
		}
		list, _ := annotation.ParseHostCIDRs(hosts)
		if again, wrong := annotation.ParseHostCIDRs(annotation.FormatHostCIDRs(list)); len(wrong) > 0 ||
			!reflect.DeepEqual(list, again) {
			t.Errorf("%v came back as %v: %v", list, again, wrong)
		}
		g, _ := annotation.ParseGateway(gateway)
		if again, wrong := annotation.ParseGateway(annotation.FormatGateway(g)); len(wrong) > 0 ||
			!reflect.DeepEqual(g, again) {
			t.Errorf("%+v came back as %+v: %v", g, again, wrong)
		}
	})
}

// FuzzHostLinks: accepted links of a node parse to the same links again, and no link occurs twice.
func FuzzHostLinks(f *testing.F) {
	f.Add(`[{"name":"eth1","index":3,"mac-address":"02:00:00:00:00:01","ip-addresses":["10.9.0.3/24"],"routes":[{"to":"10.10.0.0/16","via":"10.9.0.1"}]}]`)
	f.Add(`[null,{"name":"a/b"},{"name":"x","index":-1,"vrf-table":99999999999}]`)
	f.Fuzz(func(t *testing.T, text string) {
		links, _ := annotation.ParseHostLinks(text)
		names := map[string]bool{}
		for _, l := range links {
			if names[l.Name] {
				t.Errorf("%s is there twice", l.Name)
			}
			names[l.Name] = true
		}
		again, wrong := annotation.ParseHostLinks(annotation.FormatHostLinks(links))
		if len(wrong) > 0 || len(again) != len(links) {
			t.Errorf("%+v came back as %+v: %v", links, again, wrong)
		}
	})
}

// FuzzHostPorts: accepted ports of a node parse to the same ports again.
func FuzzHostPorts(f *testing.F) {
	f.Add(`{"checked":["80","8000-8099"],"used":[{"ip":"172.18.0.3","protocol":"TCP","port":80},{"ip":"::1","protocol":"UDP","port":1,"pod":"a/b"}]}`)
	f.Add(`{"checked":["0"],"used":[{"ip":"fe80::1%x","protocol":"TCP","port":80},{"ip":"","protocol":"ICMP","port":70000}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		ports, _ := annotation.ParseHostPorts(text)
		again, wrong := annotation.ParseHostPorts(annotation.FormatHostPorts(ports))
		if len(wrong) > 0 || !reflect.DeepEqual(again, ports) {
			t.Errorf("%+v came back as %+v: %v", ports, again, wrong)
		}
	})
}

// FuzzHostRules: accepted rules of a node parse to the same rules again.
func FuzzHostRules(f *testing.F) {
	f.Add(`[{"pref":100,"iif":"br-ex","lookup":100,"routes":[{"to":"10.9.0.0/24","via":"10.10.2.100","dev":"eth2"}]}]`)
	f.Add(`[{"pref":5210,"ipv6":true,"not":true,"fwmark":51820,"fwmask":4294967295,"lookup":254,"length":1},{"iif":"a/b"},{"refuse":true}]`)
	f.Fuzz(func(t *testing.T, text string) {
		rules, _ := annotation.ParseHostRules(text)
		again, wrong := annotation.ParseHostRules(annotation.FormatHostRules(rules))
		if len(wrong) > 0 || !reflect.DeepEqual(again, rules) {
			t.Errorf("%+v came back as %+v: %v", rules, again, wrong)
		}
		for _, r := range rules {
			_ = r.String()
			r.Matches(netip.MustParseAddr("10.244.1.3"), netip.MustParseAddr("192.0.2.9"), 4, "lo")
		}
	})
}
