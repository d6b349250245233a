package match

import (
	"net/netip"
	"strings"
	"testing"

	"hairpin/cluster"
	"hairpin/datapath/nb"
	"hairpin/walk/packet"
)

func tcp(from, to string) packet.Packet {
	dst := netip.MustParseAddrPort(to)
	return packet.Packet{Protocol: cluster.TCP, Src: netip.MustParseAddr(from), Dst: dst.Addr(), DstPort: dst.Port()}
}

func TestMatch(t *testing.T) {
	sets := map[string]*nb.AddressSet{"a1": {Name: "a1",
		Addresses: []netip.Prefix{netip.MustParsePrefix("10.244.1.3/32"), netip.MustParsePrefix("10.245.0.0/16"),
			netip.MustParsePrefix("fd00::1/128")}}}
	v4, v6 := tcp("10.244.1.3", "172.18.0.4:80"), tcp("fd00::1", "[fc00::4]:80")
	for _, c := range []struct {
		match  string
		v4, v6 bool
	}{
		{"1", true, true},
		{"ip", true, true},
		{"ip4", true, false},
		{"!ip4", false, true},
		{`inport == "rtos-n1"`, true, true},
		{`inport != "rtos-n1"`, false, false},
		{`outport == "rtoj-x" && ip4`, true, false},
		{`inport == "rtos-n1" && ip4.dst == 172.18.0.4 /* n1 */`, true, false},
		{`inport=="rtos-n1"&&ip6.dst==fc00::4`, false, true},
		{"ip4.src == 10.244.0.0/16", true, false},
		{"ip4.src != 10.244.0.0/16", false, false},
		{"ip4.src != 10.244.9.0/24", true, false},
		{"ip4.src == $a1", true, false},
		{"ip6.src == $a1", false, true},
		{"ip4.dst == $a1 || ip6.dst == $a1", false, false},
		{"(ip4.src == $a1 || ip6.src == $a1) && (ip4.dst == 172.18.0.0/16 || ip6.dst == fc00::/16)", true, true},
		{"ip4.src == 10.244.0.0/16 && ip4.dst != $a1", true, false},
		{"ip4.dst == {1.2.3.4, 172.18.0.4}", true, false},
		{"ip4.dst == 172.18.0.4 && icmp4.type == 8", false, false},
		{"icmp6.type != 128", false, false},
		{"ip4.dst == {1.2.3.4 5.6.7.8}", false, false},
		{"!(ip4.dst == 172.18.0.4 || ip6)", false, false},
		{"!(ip4.dst == 172.18.0.5)", true, false},
		{"!(ip4.dst == 172.18.0.4 && ip4.src == 1.2.3.4)", true, false},
		{"!(ip4.dst == 172.18.0.5 || ip6.dst == fc00::4)", false, false},
		{"!!(ip4.dst == 172.18.0.4)", true, false},
		{"!(ip4.dst != {1.2.3.4, 172.18.0.4})", true, false},
		{"ip4.src == 0.0.0.0/0", true, false},
		{"flags.skip_snat_for_lb == 0", true, false},
		{"ip6 && flags.skip_snat_for_lb == 1", false, true},
		{"udp.dst == 80", false, false}, // the packets are TCP
		{"sctp.dst == 80", false, false},
	} {
		e, err := Parse(c.match, sets)
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		if got := e.Holds(&Facts{Packet: &v4, In: "rtos-n1", Out: "rtoj-x"}); got != c.v4 {
			t.Errorf("%s: IPv4 %v", c.match, got)
		}
		if got := e.Holds(&Facts{Packet: &v6, In: "rtos-n1", Out: "rtoj-x", Skip: true}); got != c.v6 {
			t.Errorf("%s: IPv6 %v", c.match, got)
		}
	}
}

func TestMatchUnknown(t *testing.T) {
	for match, want := range map[string]string{
		"":                              "ends too early",
		"ip4.dst ==":                    "ends too early",
		"ip4.dst < 1.2.3.4":             `"<" after "ip4.dst" is not known`,
		"dccp.dst == 80":                "dccp.dst == 80 is not known",
		"tcp":                           "ends too early",
		"udp.dst == 65536":              "udp.dst == 65536 is not known",
		"udp.dst != 68":                 "udp.dst != is not known",
		"tcp.dst != 80":                 "tcp.dst != is not known",
		"sctp.src != 80":                "sctp.src != is not known",
		"!(sctp.src == 80)":             "sctp.src != is not known",
		"ip4.dst == $gone":              "there is no address set gone",
		"ip4.dst == fd00::1":            "not of one family",
		"ip4.dst == one":                "is not known",
		"inport == rtos":                "is not known",
		`inport == "rtos`:               "a string does not end",
		"ip4 && ip6 || ip":              "need parentheses",
		"(ip4":                          "a parenthesis is not closed",
		"ip4 ip6":                       `"ip6" is not expected`,
		"ip4 /* comment":                "a comment does not end",
		"ip4 & ip6":                     `"&" is not known`,
		"ip4.dst == {1.2.3.4":           "ends too early",
		"is_chassis_resident(\"cr-x\")": "is not known",
	} {
		if _, err := Parse(match, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v does not say %q", match, err, want)
		}
	}
}

func FuzzMatch(f *testing.F) {
	for _, s := range []string{`inport == "rtos-n1" && ip4.dst == 172.18.0.3 /* n1 */`,
		"(ip4.src == $a || ip6.src == $a) && !ip4", "ip4.dst == {1.2.3.4, 5.6.7.8/9}", `outport != "x"`} {
		f.Add(s)
	}
	sets := map[string]*nb.AddressSet{"a": {Name: "a"}}
	p := tcp("10.244.1.3", "172.18.0.4:80")
	f.Fuzz(func(t *testing.T, s string) {
		e, err := Parse(s, sets)
		if err != nil {
			return
		}
		// What is understood is also understood when it is negated twice, and means the same.
		// Negated once, it holds for no packet for which it held. For a packet of the other family,
		// neither does.
		m := &Facts{Packet: &p, In: "a", Out: "b"}
		twice, err := Parse("!(!("+s+"))", sets)
		if err != nil {
			t.Fatalf("%q is understood, negated twice it is not: %v", s, err)
		}
		if e.Holds(m) != twice.Holds(m) {
			t.Errorf("%q is %v, negated twice %v", s, e.Holds(m), twice.Holds(m))
		}
		switch n, err := Parse("!("+s+")", sets); {
		case err != nil && !strings.Contains(err.Error(), "!= is not known"): // of ports
			t.Errorf("%q is understood, negated it is not: %v", s, err)
		case err == nil && e.Holds(m) && n.Holds(m):
			t.Errorf("%q and its opposite hold", s)
		}
	})
}
