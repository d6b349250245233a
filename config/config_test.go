package config_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"hairpin/config"
)

var update = flag.Bool("update", false, "rewrite docs/reference/configuration.md")

// values returns, for each option, accepted values other than the default as Get returns them, and
// rejected values with a part of the error.
func values() map[string]struct {
	good []string
	bad  map[string]string
} {
	type v = struct {
		good []string
		bad  map[string]string
	}
	const notNumber, notSubnet = "is not a number from", "is not a subnet"
	subnet := func(v4 bool, good string, tooSmall string) v {
		other := map[bool]string{true: "fd00::/16", false: "10.0.0.0/8"}[v4]
		return v{[]string{good}, map[string]string{"": notSubnet, "10.0.0.1/8": notSubnet,
			"::ffff:10.0.0.0/104": notSubnet, other: "is not an IPv", tooSmall: "is too small"}}
	}
	addresses := v{[]string{"127.0.0.1:1", "0.0.0.0:9999,[::]:9999", "[fe80::1%eth0]:65535"},
		map[string]string{"10256": "is not an address with a port",
			"127.0.0.1": "is not an address with a port", ":10256": "is not an address with a port",
			"0.0.0.0:0": "is not an address with a port", "[::ffff:127.0.0.1]:1": "is not an address with a port"}}
	return map[string]v{
		"default mtu": {[]string{"576", "65535", "8900"},
			map[string]string{"575": notNumber, "65536": notNumber, "": notNumber, "1400 # bytes": notNumber}},
		"default reserved-node-ports": {[]string{"", "22", "22,2379-2381,65535"}, map[string]string{
			"0": `"0" is neither a port`, "22-": `"22-" is neither a port`, "30-22": `"30-22" is neither a port`,
			"ssh": `"ssh" is neither a port`, "65536": "is neither a port",
		}},
		"default external-ip-ranges": {[]string{"none", "203.0.113.0/24", "203.0.113.0/24,2001:db8::/32"},
			map[string]string{"203.0.113.1/24": "is not a subnet", "all": "is not a subnet"}},
		"default load-balancer-ranges": {[]string{"none", "203.0.113.0/24", "203.0.113.0/24,2001:db8::/32"},
			map[string]string{"203.0.113.1/24": "is not a subnet", "all": "is not a subnet"}},
		"default encap-port": {[]string{"1", "65535"},
			map[string]string{"0": "is not a port number", "65536": "is not a port number",
				"-1": "is not a port number"}},
		"default cluster-subnets": {
			[]string{"10.0.0.0/8/24", "fd00::/48/64", "10.128.0.0/14/23,fd01::/48/64,10.0.0.0/14/24"},
			map[string]string{
				"": `"" is not a subnet`, "10.0.0.0": `"10.0.0.0" is not a subnet`,
				"10.0.0.1/8/24": `"10.0.0.1/8" is not a subnet`,
				"10.0.0.0/8/x":  `"x" is not a prefix length`, "10.0.0.0/8/8": "must be smaller than /8",
				"10.0.0.0/8/31": "more than two addresses",
				"fd00::/64":     "must be smaller than /64", "10.0.0.0/8/24/1": "is not a subnet",
				"10.0.0.0/8/24,":   "is not a subnet",
				"240.16.0.0/12/24": "240.16.0.0/12 overlaps 240.0.0.0/4", "0.0.0.0/0/24": "overlaps 0.0.0.0/32",
			},
		},
		"default healthz-bind-address":            addresses,
		"default metrics-bind-address":            addresses,
		"default controller-healthz-bind-address": addresses,
		"default controller-metrics-bind-address": addresses,

		"default metrics-secure-bind-address":            addresses,
		"default controller-metrics-secure-bind-address": addresses,
		"default metrics-cert":                           {[]string{"/etc/x"}, nil},
		"default metrics-key":                            {[]string{"/etc/x"}, nil},

		"default conntrack-max-per-core": {[]string{"32768"},
			map[string]string{"": notNumber, "-1": notNumber}},
		"default conntrack-pods-max": {[]string{"0", "500000"},
			map[string]string{"": notNumber, "-1": notNumber}},
		"default conntrack-min": {[]string{"1000"}, map[string]string{"x": notNumber}},
		"default conntrack-tcp-timeout-established": {[]string{"24h0m0s", "1m30s"},
			map[string]string{"": "is not a time", "5": "is not a time", "-1s": "is not a time",
				"10ms": "is not a time"}},
		"default conntrack-tcp-timeout-close-wait": {[]string{"1h0m0s"}, map[string]string{"x": "is not a time"}},
		"default conntrack-tcp-be-liberal": {[]string{"true"},
			map[string]string{"": "is neither true nor false"}},

		"default load-balancer-class": {[]string{"example.net/edge"}, nil},
		"default load-balancer-default": {[]string{"true"},
			map[string]string{"": "is neither true nor false", "yes": "is neither true nor false"}},

		"default node": {[]string{"node-a"}, nil},
		"default repair": {[]string{"false"},
			map[string]string{"": "is neither true nor false", "yes": "is neither true nor false"}},
		"default run-dir":     {[]string{"/tmp/x"}, map[string]string{"": "is empty"}},
		"default ovs-run-dir": {[]string{"/tmp/x"}, map[string]string{"": "is empty"}},
		"default ovn-run-dir": {[]string{"/tmp/x"}, map[string]string{"": "is empty"}},
		"logging level": {[]string{"debug", "warn", "error"},
			map[string]string{"": "is not one of", "Info": "is not one of", "5": "is not one of"}},

		"clustermanager v4-transit-subnet": subnet(true, "10.128.0.0/16", "10.128.0.0/17"),
		"clustermanager v6-transit-subnet": subnet(false, "fd01::/112", "fd01::/113"),

		"kubernetes kubeconfig": {[]string{"/etc/x # y"}, nil},
		"kubernetes manifests":  {[]string{"/etc/manifests"}, nil},
		"kubernetes service-cidrs": {[]string{"10.0.0.0/8", "fd00::/112,10.96.0.0/12"},
			map[string]string{"": notSubnet, "10.96.0.0": notSubnet, "10.96.0.0/12,": notSubnet,
				"10.96.0.0/16,240.0.0.0/16": "240.0.0.0/16 overlaps 240.0.0.0/4", "fe80::/112": "overlaps fe80::/10"}},

		"ovnkubernetesfeature egressip-reachability-total-timeout": {[]string{"0", "0.3", "5"}, map[string]string{
			"": "not a number of seconds", "0.1": "not a number of seconds", "-1": "not a number", "1s": "not a number",
			"NaN": "not a number", "1e9": "not a number"}},
		"ovnkubernetesfeature egressip-reachability-interval": {[]string{"100ms", "5s"},
			map[string]string{"": "is not a time", "99ms": "is not a time", "1": "is not a time"}},
		"ovnkubernetesfeature egressip-node-healthcheck-port": {[]string{"9107"},
			map[string]string{"": "not a number", "65536": "not a number", "-1": "not a number"}},
		"ovnkubernetesfeature egressip-node-healthcheck-cert": {[]string{"/etc/x"}, nil},
		"ovnkubernetesfeature egressip-node-healthcheck-key":  {[]string{"/etc/x"}, nil},
		"ovnkubernetesfeature egressip-node-healthcheck-ca":   {[]string{"/etc/x"}, nil},

		"gateway mode": {[]string{"local", "detached"},
			map[string]string{"": "is not one of", "disabled": "is not one of", "Shared": "is not one of"}},
		"gateway advertise-address": {[]string{"10.44.0.9", "fd44::1", "10.44.0.9,fd44::1"}, map[string]string{
			"x": `"x" is not an address`, "10.44.0.0/32": "is not an address",
			"10.0.0.1,10.0.0.2": "10.0.0.2 is a second IPv4 address"}},
		"gateway interface": {[]string{"breth0"}, map[string]string{"": "is empty"}},
		"gateway next-hop": {[]string{"172.18.0.1", "fe80::1", "172.18.0.1,fc00::1"}, map[string]string{
			"gw": `"gw" is not an address`, "10.0.0.1,10.0.0.2": "10.0.0.2 is a second IPv4 address",
			"fe80::1%eth0": "is not an address", "::ffff:10.0.0.1": "is not an address"}},
		"gateway nodeport": {[]string{"false"},
			map[string]string{"": "is neither true nor false", "yes": "is neither true nor false"}},
		"gateway take-over": {[]string{"true"},
			map[string]string{"": "is neither true nor false", "yes": "is neither true nor false"}},
		"gateway uplink": {[]string{"eth1"}, nil},
		"gateway nodeport-addresses": {[]string{"primary", "10.0.0.0/8,fd00::/8", "primary,10.0.0.0/8"},
			map[string]string{"first": notSubnet, "10.0.0.1/8": notSubnet}},
		"default service-engine": {[]string{"ovn"},
			map[string]string{"": "is not one of", "flows": "is not one of"}},
		"gateway node-local": {[]string{"dgp"},
			map[string]string{"": "is not one of", "DGP": "is not one of"}},
		"gateway v4-node-local-subnet": {[]string{"169.254.16.0/29"},
			map[string]string{"fd6b::/64": "is not an IPv4 subnet", "169.254.16.0/30": "too small"}},
		"gateway v6-node-local-subnet": {[]string{"fd77::/125"},
			map[string]string{"169.254.16.0/29": "is not an IPv6 subnet", "fd77::/126": "too small"}},
		"gateway nodeport-path": {[]string{"redirect"},
			map[string]string{"": "is not one of", "ebpf": "is not one of"}},
		"gateway v4-masquerade-subnet": subnet(true, "169.254.0.0/17", "169.254.169.0/30"),
		"gateway v6-masquerade-subnet": subnet(false, "fd69::/112", "fd69::/126"),
		"gateway v4-join-subnet":       subnet(true, "10.128.0.0/16", "10.128.0.0/17"),
		"gateway v6-join-subnet":       subnet(false, "fd01::/112", "fd01::/113"),
	}
}

// TestOptions checks that an option accepts what Get returns, and vice versa. It also checks that
// an error names the option and leaves its value unchanged.
func TestOptions(t *testing.T) {
	all := values()
	flags := map[string]bool{}
	for _, o := range config.Options() {
		name := o.Section + " " + o.Key
		v, known := all[name]
		if !known {
			t.Errorf("[%s] %s: there are no values for it here", o.Section, o.Key)
		}
		delete(all, name)
		if flags[o.Flag()] || o.Flag() == "config-file" || o.Usage == "" {
			t.Errorf("%s: the flag %s exists already, or there is no usage", name, o.Flag())
		}
		flags[o.Flag()] = true

		c := config.DefaultConfig()
		if err := o.Set(&c, o.Default()); err != nil || !reflect.DeepEqual(c, config.DefaultConfig()) {
			t.Errorf("%s: set to its default %q: %v\n%s", name, o.Default(), err,
				cmp.Diff(fmt.Sprint(config.DefaultConfig()), fmt.Sprint(c)))
		}
		for _, good := range v.good {
			c := config.DefaultConfig()
			if err := o.Set(&c, " "+good+" "); err != nil {
				t.Errorf("%s: %v", name, err)
			} else if got := o.Get(c); got != good || reflect.DeepEqual(c, config.DefaultConfig()) {
				t.Errorf("%s: %q comes back as %q", name, good, got)
			}
		}
		for bad, part := range v.bad {
			c := config.DefaultConfig()
			err := o.Set(&c, bad)
			if err == nil || !strings.Contains(err.Error(), part) ||
				!strings.HasPrefix(err.Error(), "["+o.Section+"] "+o.Key+": ") {
				t.Errorf("%s = %q: error is %v", name, bad, err)
			}
			if !reflect.DeepEqual(c, config.DefaultConfig()) {
				t.Errorf("%s = %q was refused and had an effect", name, bad)
			}
		}
	}
	for name := range all {
		t.Errorf("%s: there is no such option", name)
	}
}

// TestClusterSubnetsWithoutLength checks that a node's range is a /24 or a /64 by default.
func TestClusterSubnetsWithoutLength(t *testing.T) {
	for _, o := range config.Options() {
		if o.Key == "cluster-subnets" {
			c := config.DefaultConfig()
			if err := o.Set(&c, "10.0.0.0/8, fd00::/48"); err != nil || o.Get(c) != "10.0.0.0/8/24,fd00::/48/64" {
				t.Errorf("got %q, %v", o.Get(c), err)
			}
		}
	}
}

func TestLoad(t *testing.T) {
	load := func(text string) (config.Config, error) {
		path := filepath.Join(t.TempDir(), "hairpin.conf")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return config.Load(path)
	}
	c, err := load("# a comment\n[default]\nmtu = 1300\n\n[gateway]\n; " +
		"another\ninterface=breth0\nv4-masquerade-subnet=169.254.0.0/17\n[default]\nnode=\"node-a\"\n[logging]\n")
	if err != nil {
		t.Fatal(err)
	}
	want := config.DefaultConfig()
	want.Cluster.MTU, want.Cluster.Gateway.Interface, want.Process.Node = 1300, "breth0", "node-a"
	for _, o := range config.Options() {
		if o.Key == "v4-masquerade-subnet" {
			if err := o.Set(&want, "169.254.0.0/17"); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got  %+v\nwant %+v", c, want)
	}
	for text, part := range map[string]string{
		"[gateway]\ninterfaces=br-ex": "[gateway] interfaces is not an option",
		"[gateways]\n":                "[gateways] is not a section",
		"[Gateway]\nmode=shared":      "[Gateway] is not a section",
		"mtu=1400":                    "[DEFAULT] mtu is not an option",
		"[default]\nmtu=1\n":          `[default] mtu: "1" is not a number from 576 to 65535`,
		"[default]\nmtu=1400\n[logging]\nlevel=info\n[default]\nmtu=1400": "[default] mtu is set 2 times",
		"[default]\nmtu": "key-value delimiter not found: mtu",
		"[default":       "unclosed section",
	} {
		if _, err := load(text); err == nil || !strings.Contains(err.Error(), part) ||
			!strings.Contains(err.Error(), "hairpin.conf") && !strings.Contains(part, "section") {
			t.Errorf("%q: error is %v", text, err)
		}
	}
	if _, err := config.Load("/no/such/file"); err == nil || !strings.Contains(err.Error(), "/no/such/file") {
		t.Errorf("of a file that is not there the error is %v", err)
	}
	if c, err := config.Load(""); err != nil || !reflect.DeepEqual(c, config.DefaultConfig()) {
		t.Errorf("without a file: %v", err)
	}
}

const document = "../docs/reference/configuration.md"

// endpoints is the document's section about the addresses that processes listen on.
const endpoints = `
## Health and metrics

If an address is in use, the process tries again every second, and ` + "`hairpin status`" + ` reports it.
The process works without it.

| path | 200 when | for |
|---|---|---|
| ` + "`/livez`" + ` | the main loop is not stuck; nothing outside the process matters | the kubelet's liveness probe |
| ` + "`/readyz`" + ` | every component was in sync once, and the agent keeps it in sync | the kubelet's readiness probe |
| ` + "`/healthz`" + ` | the agent keeps the data plane in sync, and the Node is not being deleted (KEP-3836) | load balancers, like kube-proxy's |
| ` + "`/metrics`" + ` | always | Prometheus: [metrics.md](metrics.md) |

A component may be out of sync for 10 s, for example while a daemon restarts. The answers are JSON;
a 503 includes its reason. An agent that starts while the API is down answers ` + "`/livez`" + ` with 200 and
` + "`/readyz`" + ` with 503. Its ` + "`/healthz`" + ` reports the state that the previous agent left.

Every process serves the same paths on its socket in ` + "`run-dir`" + ` (` + "`agent.sock`, `controller.sock`" + `).
Two controllers may share a node: the one that has the address answers for both. The command
` + "`hairpin probe livez --controller`" + ` selects one by its ` + "`run-dir`" + `. A controller exits when its
main loop hangs.

## Metrics by TLS

At ` + "`metrics-secure-bind-address`" + ` a request for ` + "`/metrics`" + ` needs a bearer token of Kubernetes whose
user may ` + "`get`" + ` the non-resource URL ` + "`/metrics`" + `. The process asks the API server, by TokenReview
and SubjectAccessReview, as kube-rbac-proxy does.

| answer | when |
|---|---|
| 200 | the token is valid and its user has the permission. The result is used for a minute, and for ten minutes while the API server does not answer |
| 401 | no token, or one that the API server does not accept |
| 403 | the user has no permission |
| 429 | the client has sent more than five tokens that were not accepted, and sends more than one each second |
| 503 | the API server does not answer, or more than eight requests are being answered |

HTTP/1.1 only. The certificate is self-signed and made at the start, or that of ` + "`metrics-cert`" + ` and
` + "`metrics-key`" + `, whose files can be renewed at any time. An agent that reads manifests instead of the
API does not listen there.
`

// TestConfigurationDocument: docs/reference/configuration.md is generated from the options (`go
// test ./config -run ConfigurationDocument -update`).
func TestConfigurationDocument(t *testing.T) {
	var b strings.Builder
	b.WriteString(`# Configuration

This page lists every option. Each is a key in a section of the configuration file
(` + "`--config-file`" + `, INI) and a flag; a flag overrides the file. Sections and keys match
OVN-Kubernetes where it has the option. An unknown section, key or flag is an error that names it.

` + "```ini\n[gateway]\ninterface = br-ex\nv4-masquerade-subnet = 169.254.0.0/17\n```\n")
	var sections []string
	for _, o := range config.Options() {
		if !slices.Contains(sections, o.Section) {
			sections = append(sections, o.Section)
		}
	}
	for _, s := range sections {
		fmt.Fprintf(&b, "\n## [%s]\n\n| key | flag | default | meaning |\n|---|---|---|---|\n", s)
		for _, o := range config.Options() {
			if o.Section == s {
				value := ""
				if o.Default() != "" {
					value = "`" + o.Default() + "`"
				}
				fmt.Fprintf(&b, "| `%s` | `--%s` | %s | %s |\n", o.Key, o.Flag(), value, o.Usage)
			}
		}
	}
	b.WriteString(endpoints)
	b.WriteString("\n<!-- Made by `go test ./config -run ConfigurationDocument -update`. -->\n")
	if *update {
		if err := os.WriteFile(document, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(text), "\n"), strings.Split(b.String(), "\n")); diff != "" {
		t.Errorf("%s is out of date:\n%s", document, diff)
	}
}
