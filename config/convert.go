package config

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"sigs.k8s.io/yaml"

	"hairpin/cluster"
)

// Conversion is a configuration converted from files of MicroShift or a Node of OVN-Kubernetes.
type Conversion struct {
	Config  Config
	Unknown []string // unknown keys, as in "FILE: key"

	flags  map[string]bool // of the options that were set
	notes  []string        // on keys without an option of Hairpin
	file   string          // the file that Add converts
	fields map[string]any  // its fields that are not converted yet, by path
}

// NewConversion returns a Conversion for a gateway mode.
func NewConversion(mode string) (*Conversion, error) {
	c := &Conversion{Config: DefaultConfig(), flags: map[string]bool{}, file: "--gateway-mode"}
	return c, c.set("mode", "gateway-mode", mode)
}

// Add converts a file of YAML: MicroShift's ovn.yaml or config.yaml, or a Node of OVN-Kubernetes.
// An error names file and field.
func (c *Conversion) Add(file string, text []byte) error {
	var all map[string]any
	if err := yaml.Unmarshal(text, &all); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	c.file, c.fields = file, map[string]any{}
	if all["kind"] == "Node" {
		return c.node(all)
	}
	flatten(c.fields, "", all)
	has := func(key string) bool { _, ok := all[key]; return ok }
	var err error
	switch {
	case len(all) == 0: // comments only, as MicroShift's examples are
		c.note("sets nothing")
	case has("apiServer") || has("network") || has("node") || has("dns"):
		err = c.microshift()
	case has("mtu") || has("ovsInit"):
		err = c.ovn()
	default:
		return fmt.Errorf("%s: is neither MicroShift's ovn.yaml or config.yaml nor a Node: it has none of the keys "+
			"mtu, ovsInit, apiServer, network, node, dns, kind: Node", file)
	}
	for _, path := range slices.Sorted(maps.Keys(c.fields)) {
		c.Unknown = append(c.Unknown, file+": "+path)
	}
	return err
}

// flatten adds the fields of nested maps to a map by path, such as "network.clusterNetwork".
func flatten(to map[string]any, prefix string, from map[string]any) {
	for key, value := range from {
		if inner, ok := value.(map[string]any); ok {
			flatten(to, prefix+key+".", inner)
		} else {
			to[prefix+key] = value
		}
	}
}

// set sets an option to the value of a field. The syntax of configuration files has a meaning for
// quotes and backslashes, and ends a value at the end of its line.
func (c *Conversion) set(field, flag, value string) error {
	value = strings.TrimSpace(value)
	if strings.ContainsAny(value, "\"'`\\") || strings.ContainsFunc(value, unicode.IsControl) {
		return fmt.Errorf("%s: %s: %q has a quote, a backslash or a control character", c.file, field, value)
	}
	for _, o := range Options() {
		if o.Flag() != flag {
			continue
		}
		if err := o.set(&c.Config, value); err != nil {
			return fmt.Errorf("%s: %s: %w", c.file, field, err)
		}
		c.flags[flag] = true
	}
	return nil
}

func (c *Conversion) note(format string, args ...any) {
	c.notes = append(c.notes, c.file+": "+fmt.Sprintf(format, args...))
}

// text removes a field from c.fields and returns its value as text. The second result is false if
// the field is missing or empty.
func (c *Conversion) text(path string) (string, bool, error) {
	x := c.fields[path]
	delete(c.fields, path)
	switch x := x.(type) {
	case nil:
		return "", false, nil
	case string:
		return x, x != "", nil
	case float64:
		return strconv.FormatFloat(x, 'f', -1, 64), true, nil
	case bool:
		return strconv.FormatBool(x), true, nil
	}
	return "", false, fmt.Errorf("%s: %s: is a list", c.file, path)
}

// ovn converts /etc/microshift/ovn.yaml.
func (c *Conversion) ovn() error {
	mtu, has, err := c.text("mtu")
	if err == nil && has && mtu != "0" {
		err = c.set("mtu", "mtu", mtu)
	}
	if err != nil {
		return err
	}
	const uplink = "ovsInit.gatewayInterface"
	mode := c.Config.Cluster.Gateway.Mode
	for _, x := range []struct{ path, note string }{
		{uplink, "mode " + mode + " takes no device into the bridge"},
		{"ovsInit.externalGatewayInterface", "there is one gateway bridge"},
		{"ovsInit.disableOVSInit", "Hairpin makes its bridge itself"},
	} {
		value, has, err := c.text(x.path)
		switch {
		case err != nil:
			return err
		case !has:
		case x.path == uplink && cluster.ModeNamed(mode).Uplink:
			if err := c.set(uplink, "gateway-uplink", value); err != nil {
				return err
			}
		default:
			c.note("%s = %s: %s", x.path, value, x.note)
		}
	}
	return nil
}

// microshiftDefaults has MicroShift's default ranges for a node with an IPv4 address, and with an
// IPv6 address: see updateComputedValues in MicroShift's pkg/config/config.go.
var microshiftDefaults = map[string][2]string{"network.clusterNetwork": {"10.42.0.0/16", "fd01::/48"},
	"network.serviceNetwork": {"10.43.0.0/16", "fd02::/112"}}

// microshift converts the network settings in /etc/microshift/config.yaml.
func (c *Conversion) microshift() error {
	node, has, err := c.text("node.nodeIP")
	if err != nil {
		return err
	}
	ip, _ := netip.ParseAddr(node)
	if has {
		c.note("node.nodeIP = %s: Hairpin takes the Node's InternalIP", node)
	}
	pods, err := c.ranges("network.clusterNetwork", ip.Is6())
	if err != nil {
		return err
	}
	services, err := c.ranges("network.serviceNetwork", ip.Is6())
	if err != nil {
		return err
	}
	advertise, has, err := c.text("apiServer.advertiseAddress")
	if err != nil {
		return err
	}
	if !has { // MicroShift advertises the first address after the Service range
		advertise = addrAfter(services[0]).String()
	}
	if len(services) > 1 { // MicroShift always adds one of the second family to its bridge
		advertise += "," + addrAfter(services[1]).String()
	}
	name, named, err := c.text("node.hostnameOverride")
	if err != nil {
		return err
	}
	err = errors.Join(c.set("network.clusterNetwork", "cluster-subnets", join(pods)),
		c.set("network.serviceNetwork", "service-cidrs", join(services)),
		c.set("apiServer.advertiseAddress", "gateway-advertise-address", advertise))
	if named {
		err = errors.Join(err, c.set("node.hostnameOverride", "node", name))
	}
	maps.DeleteFunc(c.fields, func(path string, _ any) bool { // settings of other programs
		return !strings.HasPrefix(path, "network.")
	})
	return err
}

// ranges removes a list of ranges from c.fields and returns it. Each item is a text or a map with
// cidr. Without a list, ranges returns MicroShift's default.
func (c *Conversion) ranges(path string, ip6 bool) (list []netip.Prefix, err error) {
	x := c.fields[path]
	delete(c.fields, path)
	all, ok := x.([]any)
	if x == nil || ok && len(all) == 0 {
		all, ok = []any{microshiftDefaults[path][0]}, true
		if ip6 {
			all[0] = microshiftDefaults[path][1]
		}
	}
	if !ok {
		return nil, fmt.Errorf("%s: %s: is not a list", c.file, path)
	}
	for i, item := range all {
		text, _ := item.(string)
		if m, ok := item.(map[string]any); ok {
			text, _ = m["cidr"].(string)
		}
		p, err := parsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %s[%d]: %w", c.file, path, i, err)
		}
		list = append(list, p)
	}
	return list, nil
}

// addrAfter returns the first address after a range, which is invalid after the last range.
func addrAfter(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for bit := p.Bits(); bit < 8*len(b); bit++ { // to the last address of the range
		b[bit/8] |= 1 << (7 - bit%8)
	}
	last, _ := netip.AddrFromSlice(b)
	return last.Next()
}

// keyPrimary is the annotation of a Node with the addresses of OVN-Kubernetes' gateway bridge.
const keyPrimary = "k8s.ovn.org/node-primary-ifaddr"

// node converts the addresses of a Node's gateway bridge. Those of gateway mode detached have the
// longest prefix; the others belong to the machine.
func (c *Conversion) node(object map[string]any) error {
	meta, _ := object["metadata"].(map[string]any)
	annotations, _ := meta["annotations"].(map[string]any)
	text, _ := annotations[keyPrimary].(string)
	field := fmt.Sprintf("Node %v: metadata.annotations[%s]", meta["name"], keyPrimary)
	if text == "" {
		return fmt.Errorf("%s: %s: is missing", c.file, field)
	}
	var bridge struct{ IPv4, IPv6 string }
	if err := yaml.UnmarshalStrict([]byte(text), &bridge); err != nil {
		return fmt.Errorf("%s: %s: %w", c.file, field, err)
	}
	var advertise []string
	for _, a := range []string{bridge.IPv4, bridge.IPv6} {
		if a == "" {
			continue
		}
		p, err := netip.ParsePrefix(a)
		if err != nil {
			return fmt.Errorf("%s: %s: %q is not an address with the length of its network", c.file, field, a)
		}
		if p.IsSingleIP() {
			advertise = append(advertise, p.Addr().String())
		} else {
			c.note("%s: %s is the machine's own: Hairpin finds it", keyPrimary, p)
		}
	}
	if len(advertise) == 0 {
		return nil
	}
	return c.set(field, "gateway-advertise-address", strings.Join(advertise, ","))
}

// String returns the configuration file. Comments in it report the keys without an option.
func (c *Conversion) String() string {
	var b strings.Builder
	for _, n := range c.notes { // a line break in a value would end the comment
		fmt.Fprintf(&b, "# %s\n", strings.Map(func(r rune) rune {
			if r < ' ' {
				return '?'
			}
			return r
		}, n))
	}
	var sections []string
	lines := map[string]string{}
	for _, o := range Options() {
		if !c.flags[o.Flag()] {
			continue
		}
		if lines[o.Section] == "" {
			sections = append(sections, o.Section)
		}
		lines[o.Section] += fmt.Sprintf("%s = %s\n", o.Key, o.Get(c.Config))
	}
	for _, s := range sections {
		fmt.Fprintf(&b, "[%s]\n%s", s, lines[s])
	}
	return b.String()
}
