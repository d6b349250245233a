package cluster_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"hairpin/cluster"
)

func TestOwner(t *testing.T) {
	for text, o := range map[string]cluster.Owner{
		"":                    {},
		"Node/node-a":         {Kind: "Node", Name: "node-a"},
		"Service/default/web": {Kind: "Service", Namespace: "default", Name: "web"},
	} {
		if got := o.String(); got != text {
			t.Errorf("%+v is written %q", o, got)
		}
		if got := cluster.ParseOwner(text); got != o {
			t.Errorf("%q is read as %+v", text, got)
		}
	}
	for _, bad := range []string{"web", "a/b/c/d"} {
		if got := cluster.ParseOwner(bad); got != (cluster.Owner{}) {
			t.Errorf("%q is read as %+v", bad, got)
		}
	}
	sorted := []cluster.Owner{{Kind: "Node", Name: "z"}, {Kind: "Pod", Namespace: "a", Name: "z"},
		{Kind: "Pod", Namespace: "b", Name: "a"}, {Kind: "Pod", Namespace: "b", Name: "b"}}
	if !slices.IsSortedFunc(sorted, cluster.Owner.Compare) {
		t.Error("owners are ordered otherwise than by kind, namespace, name")
	}
}

func TestProblem(t *testing.T) {
	p := cluster.Problem{Owner: cluster.Owner{Kind: "Node", Name: "a"}, Message: "is odd"}
	if p.Error() != "Node/a: is odd" {
		t.Error(p.Error())
	}
}

func TestMAC(t *testing.T) {
	m, err := cluster.ParseMAC("0A:58:0a:F4:01:03")
	if err != nil || m.String() != "0a:58:0a:f4:01:03" {
		t.Errorf("%s, %v", m, err)
	}
	for _, bad := range []string{"", "0a:58:0a:f4:01", "0a:58:0a:f4:01:03:", "0a-58-0a-f4-01-03", "0a:58:0a:f4:01: 3",
		"0a:58:0a:f4:01:0x", "+a:58:0a:f4:01:03"} {
		if m, err := cluster.ParseMAC(bad); err == nil || m != (cluster.MAC{}) ||
			!strings.Contains(err.Error(), "not a MAC address") {
			t.Errorf("%q is read as %s, %v", bad, m, err)
		}
	}
	for addr, mac := range map[string]string{"10.244.1.3": "0a:58:0a:f4:01:03",
		"fd00:10:244::1:3": "0a:58:00:01:00:03"} {
		if got := cluster.MACFor(netip.MustParseAddr(addr)).String(); got != mac {
			t.Errorf("%s has %s", addr, got)
		}
	}
	if got := cluster.MACFor(netip.Addr{}); got != (cluster.MAC{}) {
		t.Errorf("no address has %s", got)
	}
}

func TestConfig(t *testing.T) {
	c := cluster.DefaultConfig()
	if got := c.ClusterSubnet(cluster.IPv6); got.CIDR.String() != "fd00:10:244::/48" || got.HostLength != 64 {
		t.Errorf("pods are %v", got)
	}
	c.ClusterSubnets = c.ClusterSubnets[1:]
	if got := c.ClusterSubnet(cluster.IPv4); got != (cluster.ClusterSubnet{}) {
		t.Errorf("pods are %v", got)
	}
	if got := cluster.PrefixOf(c.Gateway.MasqueradeSubnets, cluster.IPv4).String(); got != "169.254.169.0/29" {
		t.Errorf("masquerade subnet is %s", got)
	}
	if got := cluster.PrefixOf(nil, cluster.IPv4); got.IsValid() {
		t.Errorf("no subnet is %s", got)
	}
}

func TestNth(t *testing.T) {
	for _, c := range []struct {
		subnet string
		n      int
		want   string
	}{
		{"169.254.169.0/29", 4, "169.254.169.4"},
		{"169.254.169.6/29", 7, "169.254.169.7"},
		{"169.254.169.0/29", 8, ""},
		{"100.64.0.0/16", 256, "100.64.1.0"},
		{"100.64.0.0/16", 65535, "100.64.255.255"},
		{"100.64.0.0/16", 65536, ""},
		{"0.0.0.0/0", 1 << 31, "128.0.0.0"},
		{"fd97::/64", 32768, "fd97::8000"},
		{"fd97::ff00/120", 255, "fd97::ffff"},
		{"fd97::ff00/120", 256, ""},
		{"255.255.255.255/32", 1, ""},
		{"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128", 1, ""},
		{"10.0.0.0/8", 0, "10.0.0.0"},
	} {
		got, err := cluster.Nth(netip.MustParsePrefix(c.subnet), c.n)
		if c.want == "" {
			if err == nil || !strings.Contains(err.Error(), "has no address number") {
				t.Errorf("number %d of %s is %s, %v", c.n, c.subnet, got, err)
			}
		} else if err != nil || got.String() != c.want {
			t.Errorf("number %d of %s is %s, %v", c.n, c.subnet, got, err)
		}
	}
}

func TestFamily(t *testing.T) {
	if cluster.FamilyOf(netip.MustParseAddr("::ffff:1.2.3.4")) != cluster.IPv6 ||
		cluster.FamilyOf(netip.MustParseAddr("1.2.3.4")) != cluster.IPv4 {
		t.Error("families are wrong")
	}
}
