package config_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hairpin/config"
)

func convert(t *testing.T, mode string, files ...string) (*config.Conversion, error) {
	t.Helper()
	c, err := config.NewConversion(mode)
	if err != nil {
		return nil, err
	}
	for i, f := range files {
		if err := c.Add([]string{"a.yaml", "b.yaml"}[i], []byte(f)); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func TestConvert(t *testing.T) {
	for _, x := range []struct {
		mode    string
		files   []string
		want    string
		unknown []string
	}{
		{"detached", []string{"mtu: 1300\novsInit:\n  gatewayInterface: eth1\n  disableOVSInit: true\n"},
			"# a.yaml: ovsInit.gatewayInterface = eth1: mode detached takes no device into the bridge\n# a.yaml: " +
				"ovsInit.disableOVSInit = true: Hairpin makes its bridge itself\n" +
				"[default]\nmtu = 1300\n[gateway]\nmode = detached\n", nil},
		{"local", []string{"ovsInit: {gatewayInterface: eth1, speed: 9}\n"}, "[gateway]\nmode = local\nuplink = eth1\n",
			[]string{"a.yaml: ovsInit.speed"}},
		{"detached", []string{"mtu: 1400\n",
			"apiServer: {advertiseAddress: 10.44.0.9}\nnode: {nodeIP: 192.0.2.1, hostnameOverride: " +
				"edge}\nnetwork:\n  clusterNetwork: [10.1.0.0/16, 'fd01::/48']\n" +
				"  serviceNetwork: [10.2.0.0/16, 'fd02::/112']\n  cniPlugin: ovnk\n"},
			"# b.yaml: node.nodeIP = 192.0.2.1: Hairpin takes the Node's InternalIP\n[default]\nmtu = " +
				"1400\ncluster-subnets = 10.1.0.0/16/24,fd01::/48/64\nnode = edge\n" +
				"[kubernetes]\nservice-cidrs = 10.2.0.0/16,fd02::/112\n[gateway]\nmode = " +
				"detached\nadvertise-address = 10.44.0.9,fd02::1:0\n", []string{"b.yaml: network.cniPlugin"}},
		{"detached", []string{"node: {nodeIP: 'fd00::1', nodeIPv6: ''}\n"},
			"# a.yaml: node.nodeIP = fd00::1: Hairpin takes the Node's " +
				"InternalIP\n[default]\ncluster-subnets = fd01::/48/64\n" +
				"[kubernetes]\nservice-cidrs = fd02::/112\n[gateway]\nmode = detached\nadvertise-address = fd02::1:0\n",
			nil},
		{"shared", []string{"# mtu: 1400\n"}, "# a.yaml: sets nothing\n[gateway]\nmode = shared\n", nil},
		{"detached", []string{"dns: {baseDomain: example.com}\n"},
			"[default]\ncluster-subnets = 10.42.0.0/16/24\n[kubernetes]\nservice-cidrs = " +
				"10.43.0.0/16\n[gateway]\nmode = detached\nadvertise-address = 10.44.0.0\n", nil},
		{"detached",
			[]string{"network:\n  clusterNetwork: [{cidr: 10.1.0.0/16, hostPrefix: 24}]\n  serviceNetwork: " +
				"['10.255.0.0/16']\n"},
			"[default]\ncluster-subnets = 10.1.0.0/16/24\n[kubernetes]\nservice-cidrs = " +
				"10.255.0.0/16\n[gateway]\nmode = detached\nadvertise-address = 11.0.0.0\n", nil},
		{"detached",
			[]string{"kind: Node\nmetadata:\n  name: edge\n  annotations:\n    k8s.ovn.org/node-primary-ifaddr: " +
				"'{\"ipv4\":\"10.44.0.0/32\",\"ipv6\":\"fd00:1::5/64\"}'\n"},
			"# a.yaml: k8s.ovn.org/node-primary-ifaddr: fd00:1::5/64 is the machine's own: Hairpin finds " +
				"it\n[gateway]\nmode = detached\nadvertise-address = 10.44.0.0\n", nil},
	} {
		c, err := convert(t, x.mode, x.files...)
		if err != nil {
			t.Errorf("%q: %v", x.files, err)
			continue
		}
		if got := c.String(); got != x.want {
			t.Errorf("%q:\n%s\nwanted\n%s", x.files, got, x.want)
		}
		if !slices.Equal(c.Unknown, x.unknown) {
			t.Errorf("%q: unknown %q", x.files, c.Unknown)
		}
		file := filepath.Join(t.TempDir(), "hairpin.conf")
		if err := os.WriteFile(file, []byte(c.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := config.Load(file); err != nil {
			t.Errorf("%q: not to be read: %v", x.files, err)
		}
	}
}

func TestConvertRefuses(t *testing.T) {
	node := func(annotation string) string {
		return "kind: Node\nmetadata: {name: edge, annotations: {k8s.ovn.org/node-primary-ifaddr: '" + annotation +
			"'}}\n"
	}
	for text, words := range map[string]string{
		"mtu: many\n":                           `a.yaml: mtu: "many" is not a number from 576 to 65535`,
		"mtu: [1]\n":                            "a.yaml: mtu: is a list",
		"mtu: {}\nmtu: 1\n: :":                  "a.yaml: ",
		"colour: red\n":                         "a.yaml: is neither",
		"- 1\n":                                 "a.yaml: ",
		"apiServer: {advertiseAddress: here}\n": `a.yaml: apiServer.advertiseAddress: "here" is not an address`,
		"network: {clusterNetwork: 10.1.0.0/16}\n":        "a.yaml: network.clusterNetwork: is not a list",
		"network: {serviceNetwork: [10.1.0.0/16, 5]}\n":   `a.yaml: network.serviceNetwork[1]: "" is not a subnet`,
		"network: {clusterNetwork: [{host: 10.1.0.0}]}\n": `a.yaml: network.clusterNetwork[0]: "" is not a subnet`,
		"node: {hostnameOverride: \"a\\nb\"}\n":           `a.yaml: node.hostnameOverride: "a\nb" has a quote, a backslash or a control character`,
		"kind: Node\n":                                    "metadata.annotations[k8s.ovn.org/node-primary-ifaddr]: is missing",
		node("{"):                                         "a.yaml: Node edge: metadata.annotations[k8s.ovn.org/node-primary-ifaddr]: ",
		node(`{"ipv4":"10.0.0.1"}`):                       `"10.0.0.1" is not an address with the length of its network`,
	} {
		if _, err := convert(t, "detached", text); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%q: %v, not %q", text, err, words)
		}
	}
	if _, err := convert(t, "fast"); err == nil ||
		!strings.Contains(err.Error(), `--gateway-mode: mode: "fast" is not one of`) {
		t.Error(err)
	}
}

func FuzzConvert(f *testing.F) {
	f.Add("mtu: 1300\novsInit: {gatewayInterface: eth1}\n")
	f.Add("network: {serviceNetwork: [255.255.0.0/16]}\n")
	f.Add("network: {serviceNetwork: ['0.0.0.0/0']}\n")
	f.Add("node: {hostnameOverride: \"a\\n[b]\"}\n")
	f.Add("node: {hostnameOverride: '`a'}\n")
	f.Add("kind: Node\nmetadata: {annotations: {k8s.ovn.org/node-primary-ifaddr: '{}'}}\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := config.NewConversion("detached")
		if err != nil {
			t.Fatal(err)
		}
		if c.Add("f", []byte(text)) != nil {
			return
		}
		file := filepath.Join(t.TempDir(), "hairpin.conf")
		if err := os.WriteFile(file, []byte(c.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := config.Load(file); err != nil {
			t.Errorf("%q: cannot be read: %v\n%s", text, err, c)
		}
	})
}
