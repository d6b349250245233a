// Package vsctl has Hairpin's part of Open vSwitch's database: bridges, ports, keys of
// external_ids, names of tables, and limits. It is what ovs-vsctl shows and changes.
//
// Input: a View of the database, and a Delta of desired values. Output: the Content of the View as
// values, and the operations of a transaction that makes the changes.
//
// BridgeOps are applied first, in a transaction of their own, then Ops: ports need their bridge.
//
// Invariants: it reads and writes nothing itself. Rows, keys and limits of others are kept:
// Hairpin's bridges and ports have a key in external_ids (claims.KeyBridge, claims.KeyOwner).
// Reading a View after the transactions gives what was wanted.
package vsctl

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/ovs"
	"hairpin/delta"
	"hairpin/ovsdb"
)

// Config describes which rows and keys are Hairpin's.
type Config struct {
	Bridge   string   // the gateway bridge
	Settings []string // keys in Open_vSwitch's external_ids
	PortKeys []string // keys in the external_ids of its ports' Interfaces
}

// Content is Hairpin's part of the database.
type Content struct {
	Secure   bool // the gateway bridge has fail_mode secure: without a flow it drops
	Bridges  map[string]ovs.Bridge
	Settings map[string]string
	Ports    map[string]ovs.Port
	Named    map[string]bool
	// Numbers has the OpenFlow numbers of ports, by bridge and port name, for the gateway bridge
	// and Hairpin's bridges.
	Numbers map[string]map[string]string
}

// Values in Open vSwitch's database.
const (
	secure    = "secure"
	userspace = "netdev"
)

// maxPort is OpenFlow's limit of port numbers; higher ones are reserved (OpenFlow 1.0, OFPP_MAX).
const maxPort = 0xff00

// Read returns the content of a View.
func (cfg *Config) Read(v ovsdb.View) Content {
	var c Content
	if row := ovsdb.First[ovsdb.OpenVSwitch](v); row != nil {
		for _, key := range cfg.Settings {
			if value, ok := row.ExternalIDs[key]; ok {
				put(&c.Settings, key, value)
			}
		}
	}
	for b := range ovsdb.Rows[ovsdb.Bridge](v) {
		isSecure := b.FailMode != nil && *b.FailMode == secure
		owner, ours := b.ExternalIDs[claims.KeyBridge]
		switch {
		case b.Name == cfg.Bridge:
			c.Secure, ours = isSecure, true
		case ours:
			x := ovs.Bridge{Name: b.Name, Userspace: InUserspace(b), Standalone: !isSecure,
				Owner: cluster.ParseOwner(owner)}
			x.Learned = AffinityLimit(v, b).found()
			if b.Name == claims.ServiceBridge { // the limit is the datapath's, not a bridge's
				x.Connections = ZoneLimit(v, x.Userspace).found()
			}
			put(&c.Bridges, b.Name, x)
		}
		if key := cfg.Key(b.Name); ours {
			if all, some := tableNames(v, b, key); some {
				put(&c.Named, key, all)
			}
		}
		numbers := map[string]string{}
		for _, id := range b.Ports {
			p := ovsdb.Get[ovsdb.Port](v, id)
			if p == nil {
				continue
			}
			if owner, ok := p.ExternalIDs[claims.KeyOwner]; ok {
				put(&c.Ports, p.Name, cfg.port(v, b.Name, p, owner))
			}
			if ours {
				addNumbers(numbers, v, p)
			}
		}
		if ours {
			put(&c.Numbers, b.Name, numbers)
		}
	}
	return c
}

// addNumbers adds the numbers of a port: several for a bond.
func addNumbers(numbers map[string]string, v ovsdb.View, p *ovsdb.Port) {
	for _, id := range p.Interfaces {
		i := ovsdb.Get[ovsdb.Interface](v, id)
		if i != nil && i.OFPort != nil && *i.OFPort > 0 && *i.OFPort < maxPort {
			numbers[i.Name] = strconv.Itoa(*i.OFPort)
		}
	}
}

func put[K comparable, V any](m *map[K]V, key K, value V) {
	if *m == nil {
		*m = map[K]V{}
	}
	(*m)[key] = value
}

func (cfg *Config) port(v ovsdb.View, bridge string, p *ovsdb.Port, owner string) ovs.Port {
	out := ovs.Port{Name: p.Name, Bridge: bridge, Owner: cluster.ParseOwner(owner)}
	if len(p.Interfaces) != 1 {
		return out // a bond: equals no wanted port, so it is repaired
	}
	i := ovsdb.Get[ovsdb.Interface](v, p.Interfaces[0])
	if i == nil {
		return out
	}
	out.Type, out.Peer = i.Type, i.Options[peer]
	if a, err := netip.ParseAddr(i.Options[localEnd]); err == nil && maps.Equal(i.Options, tunnelOptions(a)) {
		out.Local = a // other options are repaired
	}
	if i.MAC != nil {
		// An invalid MAC becomes the zero value, so it is repaired.
		out.MAC, _ = cluster.ParseMAC(*i.MAC)
	}
	if i.MTURequest != nil {
		out.MTU = *i.MTURequest
	}
	for _, key := range cfg.PortKeys {
		if value, ok := i.ExternalIDs[key]; ok {
			put(&out.ExternalIDs, key, value)
		}
	}
	return out
}

// peer is the option key of a patch port.
const peer = "peer"

// localEnd is an option key of a tunnel port.
const localEnd = "local_ip"

// tunnelOptions returns the options of a tunnel port, with the checksum setting of OVN's own
// tunnels.
func tunnelOptions(local netip.Addr) map[string]string {
	return map[string]string{localEnd: local.String(), "remote_ip": "flow", "key": "flow", "csum": "true"}
}

func sorted(ports map[string]ovs.Port) []ovs.Port {
	return slices.SortedFunc(maps.Values(ports), func(a, b ovs.Port) int { return cmp.Compare(a.Name, b.Name) })
}

// KeyOps sets and removes keys of external_ids and keeps the others. Without a row it changes all
// rows.
func KeyOps(table string, row ovsdb.UUID, set map[string]string, remove []string) []ovsdb.Op {
	var changes []ovsdb.Mutation
	if len(set) > 0 {
		changes = ovsdb.SetKeys("external_ids", set)
	}
	if len(remove) > 0 {
		changes = append(changes, ovsdb.DeleteFrom("external_ids", remove))
	}
	if len(changes) == 0 {
		return nil
	}
	op := ovsdb.Mutate(table, changes...)
	if row == "" {
		return []ovsdb.Op{op.All()}
	}
	return []ovsdb.Op{op.Row(row)}
}

// Key returns the bridge of that name as in flow.Key.
func (cfg *Config) Key(bridge string) string {
	if bridge == cfg.Bridge {
		return ""
	}
	return bridge
}

// BridgeOps makes bridges, and removes unwanted ones with their content.
func BridgeOps(v ovsdb.View, d delta.Delta[string, ovs.Bridge]) (ops []ovsdb.Op) {
	for _, list := range []map[string]ovs.Bridge{d.Add, d.Change} {
		for name, b := range list {
			mode, owner := secure, map[string]string{claims.KeyBridge: b.Owner.String()}
			want := ovsdb.Bridge{Name: name, FailMode: &mode, ExternalIDs: owner}
			if b.Userspace {
				want.DatapathType = userspace
			}
			if have := ovsdb.BridgeNamed(v, name); have != nil {
				want.UUID = have.UUID
				ops = append(append(ops, ovsdb.Update(want, "fail_mode", "datapath_type")),
					KeyOps("Bridge", have.UUID, owner, nil)...)
				ops = append(ops, limitOps(v, have.UUID, have, b)...)
			} else {
				ops = append(ops, ovsdb.InsertBridge(want)...)
				ops = append(ops, limitOps(v, ovsdb.NamedUUID("bridge "+name), nil, b)...)
			}
		}
	}
	for name, b := range d.Delete {
		if have := ovsdb.BridgeNamed(v, name); have != nil {
			ops = append(ops, limitOps(v, have.UUID, have, ovs.Bridge{Name: name, Userspace: b.Userspace})...)
			ops = append(ops, ovsdb.Mutate("Open_vSwitch", ovsdb.DeleteFrom("bridges", have.UUID)).All())
		}
	}
	return ops
}

// Ops changes settings, ports and names of tables. It returns the missing bridges, for each port
// that needs one.
func (cfg *Config) Ops(v ovsdb.View, d ovs.Delta) (ops []ovsdb.Op, missing []string) {
	set := maps.Clone(d.Settings.Add)
	if set == nil {
		set = map[string]string{}
	}
	maps.Copy(set, d.Settings.Change)
	ops = KeyOps("Open_vSwitch", "", set, slices.Sorted(maps.Keys(d.Settings.Delete)))
	for _, p := range slices.Concat(sorted(d.Ports.Add), sorted(d.Ports.Change)) {
		more, ok := cfg.portOps(v, p)
		if !ok {
			missing = append(missing, p.Bridge)
		}
		ops = append(ops, more...)
	}
	ops = append(ops, cfg.nameOps(v, d.Named)...)
	for _, p := range sorted(d.Ports.Delete) {
		ops = append(ops, RemovePort(v, p.Name)...)
	}
	return ops, missing
}

// portOps makes a port, or changes the existing one of that name. It returns false if the bridge is
// missing.
func (cfg *Config) portOps(v ovsdb.View, p ovs.Port) (ops []ovsdb.Op, ok bool) {
	bridge := ovsdb.BridgeNamed(v, p.Bridge)
	if bridge == nil {
		return nil, false
	}
	owner := map[string]string{claims.KeyOwner: p.Owner.String()}
	port := ovsdb.Find(v, func(row *ovsdb.Port) bool { return row.Name == p.Name })
	if port == nil || len(port.Interfaces) != 1 || ovsdb.Get[ovsdb.Interface](v, port.Interfaces[0]) == nil {
		if port != nil {
			ops = RemovePort(v, p.Name)
		}
		i := ovsdb.Interface{Name: p.Name, Type: p.Type, Options: options(p), ExternalIDs: p.ExternalIDs}
		i.MAC, i.MTURequest = columns(p)
		made, more := ovsdb.InsertPort(i, owner)
		return append(append(ops, more...), ovsdb.Mutate("Bridge", ovsdb.InsertInto("ports", made)).Row(bridge.UUID)),
			true
	}
	// Until the port has a number on the new bridge, flows must not use its number on the old one.
	if !slices.Contains(bridge.Ports, port.UUID) {
		ops = append(RemovePort(v, p.Name),
			ovsdb.Mutate("Bridge", ovsdb.InsertInto("ports", port.UUID)).Row(bridge.UUID),
			ovsdb.Update(ovsdb.Interface{UUID: port.Interfaces[0]}, "ofport"))
	}
	ops = append(ops, KeyOps("Port", port.UUID, owner, nil)...)
	i := ovsdb.Interface{UUID: port.Interfaces[0], Type: p.Type}
	change := []string{"type"}
	if i.Options = options(p); i.Options != nil {
		change = append(change, "options")
	} else {
		ops = append(ops, ovsdb.Mutate("Interface", ovsdb.DeleteFrom("options", []string{peer, localEnd})).Row(i.UUID))
	}
	if i.MAC, i.MTURequest = columns(p); i.MAC != nil {
		change = append(change, "mac")
	}
	if i.MTURequest != nil {
		change = append(change, "mtu_request")
	}
	ops = append(ops, ovsdb.Update(i, change...))
	unwanted := slices.DeleteFunc(slices.Clone(cfg.PortKeys),
		func(key string) bool { _, wanted := p.ExternalIDs[key]; return wanted })
	return append(ops, KeyOps("Interface", i.UUID, p.ExternalIDs, unwanted)...), true
}

func options(p ovs.Port) map[string]string {
	switch {
	case p.Local.IsValid():
		return tunnelOptions(p.Local)
	case p.Peer != "":
		return map[string]string{peer: p.Peer}
	}
	return nil
}

// columns returns the values of mac and mtu_request, nil for those that the port does not specify.
func columns(p ovs.Port) (mac *string, mtu *int) {
	if p.MAC != (cluster.MAC{}) {
		s := p.MAC.String()
		mac = &s
	}
	if p.MTU != 0 {
		mtu = &p.MTU
	}
	return mac, mtu
}

// RemovePort removes a port from its bridge. The database then deletes the unreferenced row.
func RemovePort(v ovsdb.View, name string) []ovsdb.Op {
	var ops []ovsdb.Op
	port := ovsdb.Find(v, func(p *ovsdb.Port) bool { return p.Name == name })
	if port == nil {
		return nil
	}
	for b := range ovsdb.Rows[ovsdb.Bridge](v) {
		if slices.Contains(b.Ports, port.UUID) {
			ops = append(ops, ovsdb.Mutate("Bridge", ovsdb.DeleteFrom("ports", port.UUID)).Row(b.UUID))
		}
	}
	return ops
}
