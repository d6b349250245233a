package run

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/ovsdb"
)

// In mode detached nobody has to prepare anything: the gateway bridge is made here, without an uplink, and on the
// userspace datapath the way that tunnels take between Open vSwitch and the host (plan/encap.go).

// userspaceDatapath is the datapath type of bridges that need no kernel module.
const userspaceDatapath = "netdev"

// keyDatapath is the setting by which ovn-controller makes br-int.
const keyDatapath = "ovn-bridge-datapath-type"

// datapathType is the type of the bridges to make: the one of br-int, where somebody has said it, else the kernel's, where
// the kernel has it.
func datapathType(v ovsdb.View) string {
	if row := ovsdb.First[ovsdb.OpenVSwitch](v); row != nil && row.ExternalIDs[keyDatapath] != "" {
		return row.ExternalIDs[keyDatapath]
	}
	if _, err := netlink.GenlFamilyGet("ovs_datapath"); err == nil {
		return "system"
	}
	return userspaceDatapath
}

// detach makes what mode detached needs and is not there.
func (a *agent) detach(ctx context.Context) error {
	v := a.ovs.View()
	g := &a.config.Cluster.Gateway
	if len(g.Advertise) == 0 {
		return errors.New("[gateway] advertise-address: is empty, but mode detached needs one per family")
	}
	datapath := datapathType(v)
	bridges := []newBridge{{name: g.Interface, mac: cluster.MACFor(g.Advertise[0])}}
	if datapath == userspaceDatapath {
		if err := pairLinks(claims.EncapHost, claims.EncapPort); err != nil {
			return err
		}
		bridges = append(bridges, newBridge{name: claims.EncapBridge, port: claims.EncapPort})
	}
	var ops []ovsdb.Op
	for _, b := range bridges {
		ops = append(ops, b.ops(v, datapath, a.node)...)
	}
	if len(ops) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, answer)
	defer cancel()
	ops = append(ops, ovsdb.Mutate("Open_vSwitch", ovsdb.Add("next_cfg", 1)).All())
	if _, err := a.ovs.Transact(ctx, ops...); err != nil {
		return fmt.Errorf("make the bridges of mode detached: %w", err)
	}
	a.log.Info("made bridges", "mode", g.Mode, "datapath", datapath, "bridge", g.Interface)
	return nil
}

// newBridge is a bridge to make.
type newBridge struct {
	name string
	mac  cluster.MAC // zero = Open vSwitch's choice
	port string      // a link that is plugged in; empty = none
}

// ops are the operations that make it, none when there is one of that name.
func (b *newBridge) ops(v ovsdb.View, datapath, node string) []ovsdb.Op {
	for row := range ovsdb.Rows[ovsdb.Bridge](v) {
		if row.Name == b.name {
			return nil
		}
	}
	mode := "standalone"
	ours := map[string]string{claims.KeyOwner: cluster.Owner{Kind: "Node", Name: node}.String()}
	row := ovsdb.Bridge{
		UUID: ovsdb.NamedUUID("bridge " + b.name), Name: b.name, DatapathType: datapath, FailMode: &mode, ExternalIDs: ours,
	}
	if b.mac != (cluster.MAC{}) {
		row.OtherConfig = map[string]string{"hwaddr": b.mac.String()}
	}
	var ops []ovsdb.Op
	for name, kind := range map[string]string{b.name: "internal", b.port: ""} {
		if name == "" {
			continue
		}
		i := ovsdb.Interface{UUID: ovsdb.NamedUUID("interface " + name), Name: name, Type: kind}
		p := ovsdb.Port{UUID: ovsdb.NamedUUID("port " + name), Name: name, Interfaces: []ovsdb.UUID{i.UUID}}
		row.Ports = append(row.Ports, p.UUID)
		ops = append(ops, ovsdb.Insert(i), ovsdb.Insert(p))
	}
	return append(ops, ovsdb.Insert(row), ovsdb.Mutate("Open_vSwitch", ovsdb.InsertInto("bridges", row.UUID)).All())
}

// pairLinks makes a veth pair. Whatever is there already stays.
func pairLinks(a, b string) error {
	err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: a}, PeerName: b})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("make links %s and %s: %w", a, b, err)
	}
	return nil
}

// detached is what is found of the gateway in mode detached: the bridge's own addresses are those of the configuration.
func detached(g cluster.Gateway, config cluster.Config) cluster.Gateway {
	g.Addresses, g.NextHops = nil, nil
	for _, a := range config.Gateway.Advertise {
		g.Addresses = append(g.Addresses, netip.PrefixFrom(a, a.BitLen()))
	}
	return g
}

// detachedPrefixes are the addresses that only mode detached has on the host.
func detachedPrefixes(config cluster.Config) []netip.Prefix {
	list := []netip.Prefix{netip.MustParsePrefix(claims.EncapSubnet4), netip.MustParsePrefix(claims.EncapSubnet6)}
	for _, a := range config.Gateway.Advertise {
		list = append(list, netip.PrefixFrom(a, a.BitLen()))
	}
	return list
}

// tunnelBridge is the bridge that tunnels leave by, on the userspace datapath, where that is not the gateway bridge.
func tunnelBridge(config cluster.Config) string {
	if config.Gateway.Mode == cluster.ModeDetached {
		return claims.EncapBridge
	}
	return ""
}
