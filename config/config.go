// Package config has the administrator's configuration: Load reads a file of INI format, and each
// Option is also a flag. The sections and keys are those of OVN-Kubernetes where it has the option.
//
// Conversion and MetalLB convert the configuration of other network plugins.
package config

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"gopkg.in/ini.v1"

	"hairpin/cluster"
)

// Config is the administrator's configuration: the part for the cluster, and the part for this
// process only.
type Config struct {
	Cluster cluster.Config
	Process Process
}

// Option is one setting: a key of a section of the configuration file, and a flag.
type Option struct {
	Section, Key string
	Usage        string
	set          func(*Config, string) error
	get          func(*Config) string
}

// Flag returns the name of the option's flag: the key, with the prefix "gateway-" in section
// [gateway].
func (o Option) Flag() string {
	if o.Section == "gateway" {
		return "gateway-" + o.Key
	}
	return o.Key
}

// Default returns the option's value if it is not set.
func (o Option) Default() string {
	return o.Get(DefaultConfig())
}

// Set sets the option. The error names section, key and value.
func (o Option) Set(c *Config, value string) error {
	if err := o.set(c, strings.TrimSpace(value)); err != nil {
		return fmt.Errorf("[%s] %s: %w", o.Section, o.Key, err)
	}
	return nil
}

// Get returns the option's value in a configuration, in the syntax of Set.
func (o Option) Get(c Config) string { return o.get(&c) }

// DefaultConfig returns the defaults of all options.
func DefaultConfig() Config {
	ofCluster := cluster.DefaultConfig()
	ofCluster.Conntrack.Cores, ofCluster.Conntrack.Min = runtime.NumCPU(), 131072 // kube-proxy's minimum
	return Config{
		Cluster: ofCluster,
		Process: Process{
			RunDir:                  "/run/hairpin",
			OVSRunDir:               "/run/openvswitch",
			OVNRunDir:               "/run/ovn",
			LogLevel:                "info",
			Repair:                  true,
			Egress:                  EgressProbing{Timeout: time.Second, Interval: 200 * time.Millisecond},
			Healthz:                 addrPorts("0.0.0.0:10256", "[::]:10256"),
			Metrics:                 addrPorts("127.0.0.1:10249", "[::1]:10249"),
			SecureMetrics:           addrPorts("0.0.0.0:10251", "[::]:10251"),
			ControllerSecureMetrics: addrPorts("0.0.0.0:10252", "[::]:10252"),
			ControllerHealthz:       addrPorts("127.0.0.1:10253", "[::1]:10253"),
		},
	}
}

// Options lists all options, in the order of the generated documents.
func Options() []Option {
	return slices.Concat(defaultOptions(), serviceOptions(), conntrackOptions(), endpointOptions(), kubernetesOptions(),
		gatewayOptions(), egressOptions())
}

func defaultOptions() []Option {
	return []Option{
		number("default", "mtu", "MTU of pods in bytes", func(c *Config) *int { return &c.Cluster.MTU }, 576, 65535),
		{"default", "encap-port", "UDP port of Geneve tunnels",
			func(c *Config, v string) error {
				n, err := strconv.ParseUint(v, 10, 16)
				if err != nil || n == 0 {
					return fmt.Errorf("%q is not a port number (1 to 65535)", v)
				}
				c.Cluster.EncapPort = uint16(n)
				return nil
			},
			func(c *Config) string { return strconv.Itoa(int(c.Cluster.EncapPort)) }},
		{"default", "cluster-subnets",
			"comma-separated pod address ranges, each with the prefix length of a node's range, such " +
				"as 10.244.0.0/16/24",
			setClusterSubnets, getClusterSubnets},
		text("default", "node", "name of this Node; empty = the host name",
			func(c *Config) *string { return &c.Process.Node }),
		requiredText("default", "run-dir", "directory of the agent's sockets",
			func(c *Config) *string { return &c.Process.RunDir }),
		requiredText("default", "ovs-run-dir", "directory of Open vSwitch's sockets",
			func(c *Config) *string { return &c.Process.OVSRunDir }),
		requiredText("default", "ovn-run-dir", "directory of the sockets of the node's OVN databases",
			func(c *Config) *string { return &c.Process.OVNRunDir }),
		boolean("default", "repair",
			"undo manual changes to flows, rules and routes; false = only report them (hairpin diff, "+
				"hairpin explain --live)",
			func(c *Config) *bool { return &c.Process.Repair }),
		oneOf("default", "service-engine",
			"service implementation, openflow (OpenFlow groups) or ovn (OVN load balancers; see docs/user/services.md)",
			func(c *Config) *string { return &c.Cluster.ServiceEngine }, cluster.EngineOpenFlow, cluster.EngineOVN),
		oneOf("logging", "level", "minimum level of log messages",
			func(c *Config) *string { return &c.Process.LogLevel }, "debug", "info", "warn", "error"),
		subnet("clustermanager", "v4-transit-subnet", "addresses of the node routers on the transit switch",
			cluster.IPv4, func(c *Config) *[]netip.Prefix { return &c.Cluster.TransitSubnets }, 16),
		subnet("clustermanager", "v6-transit-subnet", "addresses of the node routers on the transit switch",
			cluster.IPv6, func(c *Config) *[]netip.Prefix { return &c.Cluster.TransitSubnets }, 112),
	}
}

func kubernetesOptions() []Option {
	return []Option{
		text("kubernetes", "kubeconfig", "kubeconfig file; empty = the pod's service account",
			func(c *Config) *string { return &c.Process.Kubeconfig }),
		text("kubernetes", "manifests", "directory of manifests to read instead of the API",
			func(c *Config) *string { return &c.Process.Manifests }),
		{"kubernetes", "service-cidrs", "comma-separated ranges of ClusterIPs",
			setServiceCIDRs, func(c *Config) string { return join(c.Cluster.ServiceCIDRs) }},
	}
}

func gatewayOptions() []Option {
	masquerade := func(c *Config) *[]netip.Prefix { return &c.Cluster.Gateway.MasqueradeSubnets }
	nodeLocal := func(c *Config) *[]netip.Prefix { return &c.Cluster.Gateway.NodeLocalSubnets }
	joins := func(c *Config) *[]netip.Prefix { return &c.Cluster.JoinSubnets }
	return []Option{
		oneOf("gateway", "mode", "gateway mode", func(c *Config) *string { return &c.Cluster.Gateway.Mode },
			cluster.ModeNames()...),
		{"gateway", "advertise-address",
			"addresses of the gateway bridge in gateway mode detached, at most one per family",
			func(c *Config, v string) error { return setAddrs(&c.Cluster.Gateway.Advertise, v) },
			func(c *Config) string { return join(c.Cluster.Gateway.Advertise) }},
		requiredText("gateway", "interface", "name of the gateway bridge",
			func(c *Config) *string { return &c.Cluster.Gateway.Interface }),
		text("gateway", "uplink",
			"device to add to a gateway bridge that the agent creates; empty = the default route's device",
			func(c *Config) *string { return &c.Process.Uplink }),
		boolean("gateway", "take-over",
			"in gateway mode detached, delete a gateway bridge that another tool made and return its addresses "+
				"and routes to the device; does not apply to bridges of NetworkManager",
			func(c *Config) *bool { return &c.Process.TakeOver }),
		{"gateway", "next-hop",
			"default gateways; several of one family share the traffic (ECMP); empty = the host's",
			func(c *Config, v string) error { return setAddrs(&c.Cluster.Gateway.NextHops, v) },
			func(c *Config) string { return join(c.Cluster.Gateway.NextHops) }},
		boolean("gateway", "nodeport", "serve NodePorts",
			func(c *Config) *bool { return &c.Cluster.Gateway.NodePort }),
		{"gateway", "nodeport-addresses",
			"node addresses that serve NodePorts: primary (the Node's InternalIPs), ranges, or both; empty = all, " +
				"including 127.0.0.1 and ::1",
			func(c *Config, v string) error { return setNodePortAddresses(&c.Cluster.Gateway.NodePorts, v) },
			func(c *Config) string { return getNodePortAddresses(&c.Cluster.Gateway.NodePorts) }},
		oneOf("gateway", "nodeport-path",
			"path of NodePort traffic from other devices of the host, nft (the host's IP stack) or redirect (eBPF "+
				"programs that bypass the host's IP stack and firewall, where kernel and device support them)",
			func(c *Config) *string { return &c.Cluster.Gateway.NodePortPath }, cluster.PathNFT, cluster.PathRedirect),
		oneOf("gateway", "node-local",
			"path from the host to Services, policy (gateway bridge) or dgp (management port, and a distributed "+
				"gateway port for endpoints on the host itself)",
			func(c *Config) *string { return &c.Cluster.Gateway.NodeLocal }, cluster.LocalPolicy, cluster.LocalDGP),
		subnet("gateway", "v4-node-local-subnet",
			"addresses between the distributed gateway port and the host; the same on every node", cluster.IPv4,
			nodeLocal, 29),
		subnet("gateway", "v6-node-local-subnet",
			"addresses between the distributed gateway port and the host; the same on every node", cluster.IPv6,
			nodeLocal, 125),
		subnet("gateway", "v4-masquerade-subnet",
			"masquerade addresses between a host and its gateway router; the same on every node", cluster.IPv4,
			masquerade, 29),
		subnet("gateway", "v6-masquerade-subnet",
			"masquerade addresses between a host and its gateway router; the same on every node", cluster.IPv6,
			masquerade, 125),
		subnet("gateway", "v4-join-subnet", "addresses of the gateway routers on the join switch", cluster.IPv4,
			joins, 16),
		subnet("gateway", "v6-join-subnet", "addresses of the gateway routers on the join switch", cluster.IPv6,
			joins, 112),
	}
}

func text(section, key, usage string, field func(*Config) *string) Option {
	return Option{section, key, usage,
		func(c *Config, v string) error { *field(c) = v; return nil },
		func(c *Config) string { return *field(c) }}
}

// requiredText returns an option for a text that cannot be empty.
func requiredText(section, key, usage string, field func(*Config) *string) Option {
	o := text(section, key, usage, field)
	o.set = func(c *Config, v string) error {
		if v == "" {
			return errors.New("is empty")
		}
		*field(c) = v
		return nil
	}
	return o
}

func boolean(section, key, usage string, field func(*Config) *bool) Option {
	return Option{section, key, usage,
		func(c *Config, v string) error {
			on, err := strconv.ParseBool(v)
			if err != nil {
				return fmt.Errorf("%q is neither true nor false", v)
			}
			*field(c) = on
			return nil
		},
		func(c *Config) string { return strconv.FormatBool(*field(c)) }}
}

func oneOf(section, key, usage string, field func(*Config) *string, values ...string) Option {
	return Option{section, key, usage + ": " + strings.Join(values, ", "),
		func(c *Config, v string) error {
			if !slices.Contains(values, v) {
				return fmt.Errorf("%q is not one of %s", v, strings.Join(values, ", "))
			}
			*field(c) = v
			return nil
		},
		func(c *Config) string { return *field(c) }}
}

func number(section, key, usage string, field func(*Config) *int, lowest, highest int) Option {
	return Option{section, key, usage,
		func(c *Config, v string) error {
			n, err := strconv.Atoi(v)
			if err != nil || n < lowest || n > highest {
				return fmt.Errorf("%q is not a number from %d to %d", v, lowest, highest)
			}
			*field(c) = n
			return nil
		},
		func(c *Config) string { return strconv.Itoa(*field(c)) }}
}

// subnet returns an option for the subnet of family f in a list with at most one per family. A
// prefix longer than longest has too few addresses.
func subnet(section, key, usage string, f cluster.Family, field func(*Config) *[]netip.Prefix, longest int) Option {
	return Option{section, key, fmt.Sprintf("%s: an %s subnet, /%d or larger", usage, f, longest),
		func(c *Config, v string) error {
			p, err := parsePrefix(v)
			if err != nil {
				return err
			}
			if cluster.FamilyOf(p.Addr()) != f {
				return fmt.Errorf("%s is not an %s subnet", p, f)
			}
			if p.Bits() > longest {
				return fmt.Errorf("%s is too small: /%d or larger", p, longest)
			}
			list := slices.DeleteFunc(slices.Clone(*field(c)),
				func(q netip.Prefix) bool { return cluster.FamilyOf(q.Addr()) == f })
			list = append(list, p)
			slices.SortFunc(list, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
			*field(c) = list
			return nil
		},
		func(c *Config) string {
			if p := cluster.PrefixOf(*field(c), f); p.IsValid() {
				return p.String()
			}
			return ""
		}}
}

// splitList splits a list that may be empty, at commas and spaces.
func splitList(v string) []string {
	return strings.FieldsFunc(v, func(r rune) bool { return r == ',' || r == ' ' })
}

func parsePrefix(v string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(strings.TrimSpace(v))
	if err != nil || p != p.Masked() || p.Addr().Is4In6() {
		return p, fmt.Errorf("%q is not a subnet such as 10.96.0.0/16", v)
	}
	return p, nil
}

func setPrefixes(dst *[]netip.Prefix, v string) error {
	var list []netip.Prefix
	for _, t := range strings.Split(v, ",") {
		p, err := parsePrefix(t)
		if err != nil {
			return err
		}
		list = append(list, p)
	}
	*dst = list
	return nil
}

// setAddrs reads at most one address per family.
func setAddrs(dst *[]netip.Addr, v string) error {
	var list []netip.Addr
	for _, t := range splitList(v) {
		a, err := netip.ParseAddr(t)
		if err != nil || a.Zone() != "" || a.Is4In6() {
			return fmt.Errorf("%q is not an address", t)
		}
		if slices.ContainsFunc(list, func(b netip.Addr) bool { return cluster.FamilyOf(a) == cluster.FamilyOf(b) }) {
			return fmt.Errorf("%s is a second %s address", a, cluster.FamilyOf(a))
		}
		list = append(list, a)
	}
	*dst = list
	return nil
}

func setServiceCIDRs(c *Config, v string) error {
	var list []netip.Prefix
	if err := setPrefixes(&list, v); err != nil {
		return err
	}
	for _, p := range list {
		if err := cluster.CheckRange(p); err != nil {
			return err
		}
	}
	c.Cluster.ServiceCIDRs = list
	return nil
}

func setClusterSubnets(c *Config, v string) error {
	var list []cluster.ClusterSubnet
	for _, t := range strings.Split(v, ",") {
		t = strings.TrimSpace(t)
		subnet, length := t, ""
		if strings.Count(t, "/") > 1 {
			at := strings.LastIndexByte(t, '/')
			subnet, length = t[:at], t[at+1:]
		}
		p, err := parsePrefix(subnet)
		if err != nil {
			return err
		}
		nodeBits := 24 // OVN-Kubernetes' defaults
		if p.Addr().Is6() {
			nodeBits = 64
		}
		if subnet != t {
			if nodeBits, err = strconv.Atoi(length); err != nil {
				return fmt.Errorf("%q: %q is not a prefix length", t, length)
			}
		}
		if nodeBits <= p.Bits() || nodeBits >= p.Addr().BitLen()-1 {
			return fmt.Errorf("%q: a node's range must be smaller than /%d and hold more than two addresses", t,
				p.Bits())
		}
		if err := cluster.CheckRange(p); err != nil {
			return err
		}
		list = append(list, cluster.ClusterSubnet{CIDR: p, HostLength: nodeBits})
	}
	c.Cluster.ClusterSubnets = list
	return nil
}

func getClusterSubnets(c *Config) string {
	var out []string
	for _, s := range c.Cluster.ClusterSubnets {
		out = append(out, fmt.Sprintf("%s/%d", s.CIDR, s.HostLength))
	}
	return strings.Join(out, ",")
}

func join[T fmt.Stringer](list []T) string {
	out := make([]string, 0, len(list))
	for _, v := range list {
		out = append(out, v.String())
	}
	return strings.Join(out, ",")
}

// Load reads a configuration file over the defaults. An unknown section or key, or a duplicate key,
// is an error that names it: a misspelled option must not be ignored silently.
func Load(path string) (Config, error) {
	c := DefaultConfig()
	if path == "" {
		return c, nil
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return c, fmt.Errorf("read configuration: %w", err)
	}
	// With shadows, a key has all its values, so that duplicates can be rejected.
	file, err := ini.LoadSources(ini.LoadOptions{IgnoreInlineComment: true, AllowShadows: true,
		AllowDuplicateShadowValues: true}, raw)
	if err != nil {
		return c, fmt.Errorf("read configuration %s: %w", path, err)
	}
	options := Options()
	for _, s := range file.Sections() {
		// The section without a name always exists.
		if s.Name() != ini.DefaultSection &&
			!slices.ContainsFunc(options, func(o Option) bool { return o.Section == s.Name() }) {
			return c, fmt.Errorf("%s: [%s] is not a section", path, s.Name())
		}
		for _, k := range s.Keys() {
			i := slices.IndexFunc(options, func(o Option) bool { return o.Section == s.Name() && o.Key == k.Name() })
			if i < 0 {
				return c, fmt.Errorf("%s: [%s] %s is not an option", path, s.Name(), k.Name())
			}
			if n := len(k.ValueWithShadows()); n > 1 {
				return c, fmt.Errorf("%s: [%s] %s is set %d times", path, s.Name(), k.Name(), n)
			}
			if err := options[i].Set(&c, k.Value()); err != nil {
				return c, fmt.Errorf("%s: %w", path, err)
			}
		}
	}
	return c, nil
}
