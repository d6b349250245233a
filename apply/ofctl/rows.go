package ofctl

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"hairpin/apply/late"
	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/ovs"
	"hairpin/delta"
	"hairpin/ovsdb"
)

// rows holds the relevant content of Open vSwitch's database.
type rows struct {
	secure   bool // the gateway bridge has fail_mode secure: without a flow it drops
	ours     map[string]ovs.Bridge
	settings map[string]string
	ports    map[string]ovs.Port
	named    map[string]bool
	numbers  map[string]map[string]string // of ports of the gateway bridge and of Hairpin's, by bridge and name
}

// Values in Open vSwitch's database.
const (
	secure     = "secure"
	standalone = "standalone"
	userspace  = "netdev"
)

// maxPort is OpenFlow's limit of port numbers; higher ones are reserved (OpenFlow 1.0, OFPP_MAX).
const maxPort = 0xff00

// read extracts the relevant rows from a View.
func (cfg *Config) read(v ovsdb.View) rows {
	var r rows
	if row := ovsdb.First[ovsdb.OpenVSwitch](v); row != nil {
		for _, key := range cfg.Settings {
			if value, ok := row.ExternalIDs[key]; ok {
				put(&r.settings, key, value)
			}
		}
	}
	for b := range ovsdb.Rows[ovsdb.Bridge](v) {
		isSecure := b.FailMode != nil && *b.FailMode == secure
		owner, ours := b.ExternalIDs[claims.KeyBridge]
		switch {
		case b.Name == cfg.Bridge:
			r.secure, ours = isSecure, true
		case ours:
			x := ovs.Bridge{Name: b.Name, Userspace: b.DatapathType == userspace, Standalone: !isSecure,
				Owner: cluster.ParseOwner(owner)}
			x.Learned = flowLimit(v, b).found()
			if b.Name == claims.ServiceBridge { // the limit is the datapath's, not a bridge's
				x.Connections = zoneLimit(v, x.Userspace).found()
			}
			put(&r.ours, b.Name, x)
		}
		if key := cfg.key(b.Name); ours {
			if all, some := tableNames(v, b, key); some {
				put(&r.named, key, all)
			}
		}
		numbers := map[string]string{}
		for _, id := range b.Ports {
			p := ovsdb.Get[ovsdb.Port](v, id)
			if p == nil {
				continue
			}
			if owner, ok := p.ExternalIDs[claims.KeyOwner]; ok {
				put(&r.ports, p.Name, cfg.port(v, b.Name, p, owner))
			}
			if ours {
				number(numbers, v, p)
			}
		}
		if ours {
			put(&r.numbers, b.Name, numbers)
		}
	}
	return r
}

// number records the numbers of a port: several for a bond.
func number(numbers map[string]string, v ovsdb.View, p *ovsdb.Port) {
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
	if a, err := netip.ParseAddr(i.Options[localEnd]); err == nil && maps.Equal(i.Options, tunnels(a)) {
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

// localEnd is the option key of a tunnel port. tunnels returns its options, with the checksum
// setting of OVN's own tunnels.
const localEnd = "local_ip"

func tunnels(local netip.Addr) map[string]string {
	return map[string]string{localEnd: local.String(), "remote_ip": "flow", "key": "flow", "csum": "true"}
}

// applyBridges makes bridges, and removes unwanted ones with their content. It waits until
// ovs-vswitchd has made them, because ports and flows need them.
func (t *Target) applyBridges(ctx context.Context, d delta.Delta[string, ovs.Bridge]) error {
	v := t.db.View()
	var ops []ovsdb.Op
	row := func(name string) *ovsdb.Bridge {
		return ovsdb.Find(v, func(b *ovsdb.Bridge) bool { return b.Name == name })
	}
	for _, list := range []map[string]ovs.Bridge{d.Add, d.Change} {
		for name, b := range list {
			mode, owner := secure, map[string]string{claims.KeyBridge: b.Owner.String()}
			want := ovsdb.Bridge{Name: name, FailMode: &mode, ExternalIDs: owner}
			if b.Userspace {
				want.DatapathType = userspace
			}
			if have := row(name); have != nil {
				want.UUID = have.UUID
				ops = append(append(ops, ovsdb.Update(want, "fail_mode", "datapath_type")),
					keyOps("Bridge", have.UUID, owner, nil)...)
				ops = append(ops, limitOps(v, have.UUID, have, b)...)
			} else {
				ops = append(ops, ovsdb.InsertBridge(want)...)
				ops = append(ops, limitOps(v, ovsdb.NamedUUID("bridge "+name), nil, b)...)
			}
		}
	}
	for name, b := range d.Delete {
		if have := row(name); have != nil {
			ops = append(ops, limitOps(v, have.UUID, have, ovs.Bridge{Name: name, Userspace: b.Userspace})...)
			ops = append(ops, ovsdb.Mutate("Open_vSwitch", ovsdb.DeleteFrom("bridges", have.UUID)).All())
		}
	}
	if len(ops) == 0 {
		return nil
	}
	late.For(ctx, server)
	if _, err := t.db.Transact(ctx, append(ops,
		ovsdb.Mutate("Open_vSwitch", ovsdb.Add("next_cfg", 1)).All())...); err != nil {
		return fmt.Errorf("bridges of Open vSwitch: %w", err)
	}
	late.For(ctx, vswitchd)
	if err := t.carriedOut(ctx); err != nil {
		return fmt.Errorf("wait until ovs-vswitchd has its bridges: %w", err)
	}
	return nil
}

// carriedOut waits until ovs-vswitchd has processed the database's current content.
func (t *Target) carriedOut(ctx context.Context) error {
	next := 0
	return t.db.WaitFor(ctx, func(v ovsdb.View) bool {
		row := ovsdb.First[ovsdb.OpenVSwitch](v)
		if row != nil && next == 0 {
			next = row.NextCfg
		}
		return row != nil && row.CurCfg >= next
	})
}

// applyRows changes settings, ports and names of tables in one transaction. It returns the missing
// bridges, for each port that needs one.
func (t *Target) applyRows(ctx context.Context, d ovs.Delta) (missing []string, err error) {
	v := t.db.View()
	ops := settingOps(d)
	for _, p := range slices.Concat(sorted(d.Ports.Add), sorted(d.Ports.Change)) {
		more, ok := t.cfg.portOps(v, p)
		if !ok {
			missing = append(missing, p.Bridge)
		}
		ops = append(ops, more...)
	}
	ops = append(ops, t.cfg.nameOps(v, d.Named)...)
	for _, p := range sorted(d.Ports.Delete) {
		ops = append(ops, removal(v, p.Name)...)
	}
	if len(ops) == 0 {
		return missing, nil
	}
	// Incrementing next_cfg wakes ovs-vswitchd even if the rest needs no action of it; ovs-vsctl
	// does the same.
	ops = append(ops, ovsdb.Mutate("Open_vSwitch", ovsdb.Add("next_cfg", 1)).All())
	late.For(ctx, server)
	if _, err = t.db.Transact(ctx, ops...); err != nil {
		return missing, fmt.Errorf("write to Open vSwitch: %w", err)
	}
	return missing, nil
}

// RemovePorts removes ports from their bridges, and waits until ovs-vswitchd has removed their
// devices, too.
func (t *Target) RemovePorts(ctx context.Context, names []string) error {
	var ops []ovsdb.Op
	for _, name := range names {
		ops = append(ops, removal(t.db.View(), name)...)
	}
	late.For(ctx, server)
	ops = append(ops, ovsdb.Mutate("Open_vSwitch", ovsdb.Add("next_cfg", 1)).All())
	if _, err := t.db.Transact(ctx, ops...); err != nil {
		return fmt.Errorf("remove ports: %w", err)
	}
	late.For(ctx, vswitchd)
	if err := t.carriedOut(ctx); err != nil {
		return fmt.Errorf("wait until ovs-vswitchd has removed ports: %w", err)
	}
	return nil
}

func sorted(ports map[string]ovs.Port) []ovs.Port {
	return slices.SortedFunc(maps.Values(ports), func(a, b ovs.Port) int { return cmp.Compare(a.Name, b.Name) })
}

func settingOps(d ovs.Delta) []ovsdb.Op {
	set := maps.Clone(d.Settings.Add)
	if set == nil {
		set = map[string]string{}
	}
	maps.Copy(set, d.Settings.Change)
	return keyOps("Open_vSwitch", "", set, slices.Sorted(maps.Keys(d.Settings.Delete)))
}

// keyOps sets and removes keys of external_ids and keeps the others. Without a row it changes all
// rows.
func keyOps(table string, row ovsdb.UUID, set map[string]string, remove []string) []ovsdb.Op {
	keys := slices.Concat(slices.Sorted(maps.Keys(set)), remove)
	if len(keys) == 0 {
		return nil
	}
	changes := []ovsdb.Mutation{ovsdb.DeleteFrom("external_ids", keys)}
	if len(set) > 0 {
		changes = append(changes, ovsdb.InsertInto("external_ids", set))
	}
	op := ovsdb.Mutate(table, changes...)
	if row == "" {
		return []ovsdb.Op{op.All()}
	}
	return []ovsdb.Op{op.Row(row)}
}

// portOps makes a port, or changes the existing one of that name. It returns false if the bridge is
// missing.
func (cfg *Config) portOps(v ovsdb.View, p ovs.Port) (ops []ovsdb.Op, ok bool) {
	bridge := ovsdb.Find(v, func(b *ovsdb.Bridge) bool { return b.Name == p.Bridge })
	if bridge == nil {
		return nil, false
	}
	owner := map[string]string{claims.KeyOwner: p.Owner.String()}
	port := ovsdb.Find(v, func(row *ovsdb.Port) bool { return row.Name == p.Name })
	if port == nil || len(port.Interfaces) != 1 || ovsdb.Get[ovsdb.Interface](v, port.Interfaces[0]) == nil {
		if port != nil {
			ops = removal(v, p.Name)
		}
		i := ovsdb.Interface{Name: p.Name, Type: p.Type, Options: options(p), ExternalIDs: p.ExternalIDs}
		i.MAC, i.MTURequest = columns(p)
		made, more := ovsdb.InsertPort(i, owner)
		return append(append(ops, more...), ovsdb.Mutate("Bridge", ovsdb.InsertInto("ports", made)).Row(bridge.UUID)),
			true
	}
	// Until the port has a number on the new bridge, flows must not use its number on the old one.
	if !slices.Contains(bridge.Ports, port.UUID) {
		ops = append(removal(v, p.Name), ovsdb.Mutate("Bridge", ovsdb.InsertInto("ports", port.UUID)).Row(bridge.UUID),
			ovsdb.Update(ovsdb.Interface{UUID: port.Interfaces[0]}, "ofport"))
	}
	ops = append(ops, keyOps("Port", port.UUID, owner, nil)...)
	i := ovsdb.Interface{UUID: port.Interfaces[0], Type: p.Type}
	change := []string{"type"}
	if i.Options = options(p); i.Options != nil {
		change = append(change, "options")
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
	return append(ops, keyOps("Interface", i.UUID, p.ExternalIDs, unwanted)...), true
}

func options(p ovs.Port) map[string]string {
	switch {
	case p.Local.IsValid():
		return tunnels(p.Local)
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

// removal removes a port from its bridge. The database then deletes the unreferenced row.
func removal(v ovsdb.View, name string) []ovsdb.Op {
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
