package uplink

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"hairpin/apply"
	"hairpin/ovsdb"
)

// makeBridge makes the bridge, without the uplink.
func (m *machine) makeBridge(ctx context.Context) (string, error) {
	name := m.config.Bridge
	if l, err := link(name); err != nil {
		return "", err
	} else if l != nil && l.Type() != "openvswitch" &&
		l.Type() != "tuntap" { // tuntap: left by a userspace Open vSwitch
		return "", fmt.Errorf("the machine has a device %s, a %s, which is not Open vSwitch's", name, l.Type())
	}
	device, err := m.chooseDevice()
	if err != nil {
		return "", err
	}
	former, err := m.readSettings(device)
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(former)
	if err != nil {
		return "", err
	}
	standalone, datapath := "standalone", DatapathType(m.view)
	_, err = m.db.Transact(ctx, ovsdb.InsertBridge(ovsdb.Bridge{
		Name: name, DatapathType: datapath, FailMode: &standalone,
		OtherConfig: map[string]string{"hwaddr": device.Attrs().HardwareAddr.String()},
		ExternalIDs: map[string]string{KeyUplink: device.Attrs().Name, keyFormer: string(text)},
	})...)
	if err != nil {
		return "", fmt.Errorf("make bridge %s: %w", name, err)
	}
	return fmt.Sprintf("ovs-vsctl add-br %s -- set Bridge %s datapath_type=%s other_config:hwaddr=%s", name, name, datapath,
			device.Attrs().HardwareAddr),
		m.db.WaitFor(ctx, func(v ovsdb.View) bool { return ovsdb.BridgeNamed(v, name) != nil })
}

// setMAC sets the bridge's MAC to the device's, which the neighbors know.
func (m *machine) setMAC(ctx context.Context) (string, error) {
	mac := m.device.Attrs().HardwareAddr.String()
	if old := m.bridge.OtherConfig["hwaddr"]; old != mac {
		_, err := m.db.Transact(ctx, ovsdb.Mutate("Bridge",
			ovsdb.SetKeys("other_config", map[string]string{"hwaddr": mac})...).Row(m.bridge.UUID))
		if err != nil {
			return "", fmt.Errorf("address of bridge %s: %w", m.bridge.Name, err)
		}
		return fmt.Sprintf("ovs-vsctl set Bridge %s other_config:hwaddr=%s", m.bridge.Name, mac),
			m.db.WaitFor(ctx, func(v ovsdb.View) bool {
				b := ovsdb.Get[ovsdb.Bridge](v, m.bridge.UUID)
				return b == nil || b.OtherConfig["hwaddr"] == mac
			})
	}
	if m.internal.Attrs().HardwareAddr.String() != mac {
		return "", &apply.Waiting{Devices: []string{m.bridge.Name}} // Open vSwitch is about to set it
	}
	return "", nil
}

// addPort makes the device a port of the bridge. From then on its packets arrive on the bridge.
func (m *machine) addPort(ctx context.Context) (string, error) {
	name := m.device.Attrs().Name
	if m.port != nil {
		switch {
		case m.port.Error != nil:
			return "", fmt.Errorf("port %s of bridge %s: %s", name, m.bridge.Name, *m.port.Error)
		case m.port.OFPort == nil || *m.port.OFPort < 1:
			return "", &apply.Waiting{Devices: []string{name}}
		}
		return "", nil
	}
	if why := m.unfit(m.device); why != "" {
		return "", fmt.Errorf("device %s cannot be added to bridge %s: %s", name, m.bridge.Name, why)
	}
	port, ops := ovsdb.InsertPort(ovsdb.Interface{Name: name}, nil)
	_, err := m.db.Transact(ctx, append(ops,
		ovsdb.Mutate("Bridge", ovsdb.InsertInto("ports", port)).Row(m.bridge.UUID),
		ovsdb.Mutate("Open_vSwitch", ovsdb.Add("next_cfg", 1)).All())...)
	if err != nil {
		return "", fmt.Errorf("add port %s to bridge %s: %w", name, m.bridge.Name, err)
	}
	// The next steps must follow at once: Open vSwitch has the device after a short time.
	return fmt.Sprintf("ovs-vsctl add-port %s %s", m.bridge.Name, name), m.db.WaitFor(ctx, func(v ovsdb.View) bool {
		return ovsdb.Get[ovsdb.Bridge](v, m.bridge.UUID) == nil || hasOFPort(v, name)
	})
}

// hasOFPort reports whether ovs-vswitchd has opened an interface, or has failed to.
func hasOFPort(v ovsdb.View, name string) bool {
	return ovsdb.Find(v,
		func(i *ovsdb.Interface) bool { return i.Name == name && (i.OFPort != nil || i.Error != nil) }) != nil
}

// deletePort removes the device from the bridge and waits until Open vSwitch has released it.
func (m *machine) deletePort(ctx context.Context) (string, error) {
	if m.port == nil {
		return "", nil
	}
	name := m.port.Name
	p := ovsdb.Find(m.view, func(p *ovsdb.Port) bool { return p.Name == name })
	if p == nil {
		return "", nil
	}
	err := m.commit(ctx, ovsdb.Mutate("Bridge", ovsdb.DeleteFrom("ports", p.UUID)).Row(m.bridge.UUID))
	if err != nil {
		return "", fmt.Errorf("remove port %s from bridge %s: %w", name, m.bridge.Name, err)
	}
	return fmt.Sprintf("ovs-vsctl del-port %s %s", m.bridge.Name, name), nil
}

// deleteBridge deletes the bridge, with its device and everything on it.
func (m *machine) deleteBridge(ctx context.Context) (string, error) {
	if err := m.commit(ctx, ovsdb.Mutate("Open_vSwitch",
		ovsdb.DeleteFrom("bridges", m.bridge.UUID)).All()); err != nil {
		return "", fmt.Errorf("delete bridge %s: %w", m.bridge.Name, err)
	}
	return "ovs-vsctl del-br " + m.bridge.Name, nil
}

// commit makes changes and waits until ovs-vswitchd has applied them. Without changes it waits
// until ovs-vswitchd replies.
func (m *machine) commit(ctx context.Context, ops ...ovsdb.Op) error {
	row := ovsdb.First[ovsdb.OpenVSwitch](m.view)
	if row == nil {
		return fmt.Errorf("the database of Open vSwitch was not initialised (ovs-vsctl init)")
	}
	if _, err := m.db.Transact(ctx, append(ops,
		ovsdb.Mutate("Open_vSwitch", ovsdb.Add("next_cfg", 1)).Row(row.UUID))...); err != nil {
		return err
	}
	next := row.NextCfg + 1
	if err := m.db.WaitFor(ctx, func(v ovsdb.View) bool {
		now := ovsdb.First[ovsdb.OpenVSwitch](v)
		return now != nil && now.CurCfg >= next
	}); err != nil {
		return fmt.Errorf("wait for ovs-vswitchd: %w", err)
	}
	return nil
}

// Uplinks returns the bridges that Hairpin made, with their devices.
func Uplinks(v ovsdb.View) map[string]string {
	list := map[string]string{}
	for b := range ovsdb.Rows[ovsdb.Bridge](v) {
		if device := strings.TrimSpace(b.ExternalIDs[KeyUplink]); device != "" {
			list[b.Name] = device
		}
	}
	return list
}
