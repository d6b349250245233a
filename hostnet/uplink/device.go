package uplink

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hairpin/netdev"
	"hairpin/ovsdb"
)

// chooseDevice returns the device that is to become the uplink, or why there is none.
func (m *machine) chooseDevice() (netlink.Link, error) {
	name := m.config.Device
	if name == "" {
		var err error
		if name, err = m.defaultDevice(); err != nil {
			return nil, err
		}
	}
	l, err := link(name)
	switch {
	case err != nil:
		return nil, err
	case l == nil:
		return nil, fmt.Errorf("there is no device %s", name)
	}
	if why := m.unfit(l); why != "" {
		return nil, fmt.Errorf("device %s cannot be added to a bridge: %s", name, why)
	}
	return l, nil
}

// defaultDevice returns the device of the best default route: for IPv4, or else for IPv6. If that
// is the bridge, because its row was lost, it returns the device with the bridge's MAC.
func (m *machine) defaultDevice() (string, error) {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := netdev.List(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, &netlink.Route{}, netlink.RT_FILTER_DST) // Dst nil: default
		})
		if err != nil {
			return "", fmt.Errorf("default route: %w", err)
		}
		list = slices.DeleteFunc(list,
			func(r netlink.Route) bool { return r.Type != unix.RTN_UNICAST || netdev.Destination(&r).Bits() != 0 })
		slices.SortStableFunc(list, func(a, b netlink.Route) int { return a.Priority - b.Priority })
		if len(list) == 0 {
			continue
		}
		index := list[0].LinkIndex
		for _, hop := range list[0].MultiPath {
			if index != 0 && hop.LinkIndex != index {
				return "", errors.New("the default route has several devices: name one ([gateway] uplink)")
			}
			index = hop.LinkIndex
		}
		l, err := netlink.LinkByIndex(index)
		if err != nil {
			return "", fmt.Errorf("device of the default route: %w", err)
		}
		if l.Attrs().Name == m.config.Bridge {
			return deviceWithMAC(l)
		}
		return l.Attrs().Name, nil
	}
	return "", errors.New("there is no default route that names a device: name one ([gateway] uplink)")
}

// deviceWithMAC returns the other device with the MAC of a link.
func deviceWithMAC(l netlink.Link) (string, error) {
	links, err := netdev.List(netlink.LinkList)
	if err != nil {
		return "", fmt.Errorf("links: %w", err)
	}
	for _, o := range links {
		if o.Attrs().Index != l.Attrs().Index && o.Attrs().HardwareAddr.String() == l.Attrs().HardwareAddr.String() {
			return o.Attrs().Name, nil
		}
	}
	return "", fmt.Errorf("the default route is on %s already, and no device has its address", l.Attrs().Name)
}

// unfit returns why a device cannot be a bridge's port; empty if it can.
func (m *machine) unfit(l netlink.Link) string {
	a := l.Attrs()
	if a.MasterIndex != 0 {
		master, err := netlink.LinkByIndex(a.MasterIndex)
		if err != nil {
			return "it belongs to another device"
		}
		return fmt.Sprintf("it belongs to %s, a %s", master.Attrs().Name, master.Type())
	}
	for i := range ovsdb.Rows[ovsdb.Interface](m.view) {
		if i.Name == a.Name {
			return "it is a port of Open vSwitch already"
		}
	}
	if l.Type() == "openvswitch" || a.Name == m.config.Bridge {
		return "it is a bridge itself"
	}
	if a.EncapType != "ether" || len(a.HardwareAddr) != 6 {
		return fmt.Sprintf("it is no Ethernet device but %q", a.EncapType)
	}
	if _, err := os.Stat(filepath.Join("/sys/class/net", a.Name, "phy80211")); err == nil {
		return "a wireless station cannot be bridged"
	}
	return ""
}

// setUp sets the bridge's device up. With loose reverse path filtering it accepts packets even
// while their replies leave by the other device.
func setUp(l netlink.Link) (string, error) {
	name := l.Attrs().Name
	if l.Attrs().Flags&unix.IFF_UP != 0 {
		return "", nil
	}
	if err := netdev.SetSysctl("net/ipv4/conf/"+name+"/rp_filter", "2"); err != nil {
		return "", err
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return "", fmt.Errorf("ip link set %s up: %w", name, err)
	}
	return "ip link set " + name + " up", nil
}

func (m *machine) userspace() bool { return m.bridge.DatapathType == UserspaceDatapath }

// offload is a feature of a device that has ETHTOOL commands of its own.
type offload struct{ set, get uint32 }

// offloads lists the features that the port of a userspace switch without TSO must not have: frames
// must have their checksums, and none may be longer than the MTU.
func offloads() []offload {
	return []offload{{unix.ETHTOOL_STXCSUM, unix.ETHTOOL_GTXCSUM}, {unix.ETHTOOL_SGRO, unix.ETHTOOL_GGRO}}
}

// setOffload turns an offload on or off, if the driver supports that.
func (m *machine) setOffload(o offload, want bool) (did []string) {
	name, value, text := m.device.Attrs().Name, uint32(0), "off"
	if want {
		value, text = 1, "on"
	}
	if on, err := netdev.Ethtool(name, o.get, 0); err != nil || (on != 0) == want {
		return nil
	}
	if _, err := netdev.Ethtool(name, o.set, value); err != nil {
		return nil
	}
	if on, err := netdev.Ethtool(name, o.get, 0); err != nil || (on != 0) != want {
		return nil
	}
	return []string{fmt.Sprintf("ethtool -K %s: command %#x %s", name, o.set, text)}
}

// restoreOffloads turns on the offloads that were on before.
func (m *machine) restoreOffloads() (did []string) {
	for _, o := range offloads() {
		if slices.Contains(m.former.Offloads, o.set) {
			did = append(did, m.setOffload(o, true)...)
		}
	}
	return did
}

// prepare prepares the device to be a port. It sets the device up and, on the userspace datapath
// without TSO, turns off offloads, which modify frames. With TSO they stay; it turns on those that
// an Open vSwitch without TSO needed off.
func (m *machine) prepare() (string, error) {
	name := m.device.Attrs().Name
	if m.device.Attrs().Flags&unix.IFF_UP == 0 {
		if err := netlink.LinkSetUp(m.device); err != nil {
			return "", fmt.Errorf("ip link set %s up: %w", name, err)
		}
		return "ip link set " + name + " up", nil
	}
	if !m.userspace() {
		return "", nil
	}
	if TSO(m.view) {
		return joinSteps(m.restoreOffloads()), nil
	}
	var did []string
	for _, o := range offloads() {
		did = append(did, m.setOffload(o, false)...)
	}
	return joinSteps(did), nil
}

// sctp is the feature of devices that compute SCTP checksums.
const sctp = "tx-checksum-sctp"

// unsupported returns the features of devices that ovs-vswitchd does not support with TSO. If a
// device computes SCTP checksums, ovs-vswitchd (4.0.0) leaves that of a packet it changed to the
// device, and does not request it. Merged UDP datagrams it drops.
func unsupported() []string { return []string{sctp, "rx-udp-gro-forwarding", "rx-gro-list"} }

// disableUnsupported turns off the unsupported features, before ovs-vswitchd opens the device and
// reads them.
func (m *machine) disableUnsupported() (string, error) {
	if !m.userspace() || !TSO(m.view) {
		return "", nil
	}
	return joinSteps(m.setFeatures(unsupported(), false)), nil
}

// setFeatures sets features, if the driver supports them.
func (m *machine) setFeatures(features []string, want bool) (did []string) {
	name := m.device.Attrs().Name
	for _, feature := range features {
		if on, err := netdev.Feature(name, feature); err != nil || on == want {
			continue
		}
		if err := netdev.SetFeatures(name, map[string]bool{feature: want}); err != nil {
			continue
		}
		if on, err := netdev.Feature(name, feature); err == nil && on == want {
			did = append(did, fmt.Sprintf("ethtool -K %s %s %s", name, feature,
				map[bool]string{true: "on", false: "off"}[want]))
		}
	}
	return did
}

// disableKernelIPv6 disables the kernel's IPv6 on the device: on the userspace datapath the kernel
// receives the frames, too.
func (m *machine) disableKernelIPv6() (string, error) {
	if !m.userspace() {
		return "", nil
	}
	return m.disableIPv6("1")
}

// restore restores the recorded settings of the device.
func (m *machine) restore() (string, error) {
	if !m.former.IPv6Off {
		if what, err := m.disableIPv6("0"); err != nil || what != "" {
			return what, err
		}
	}
	var did []string
	for _, path := range slices.Sorted(maps.Keys(m.former.Sysctls)) {
		if !slices.Contains(m.config.Sysctls, path) {
			continue // the row may have been changed by another program
		}
		if now, err := netdev.Sysctl(path); err == nil && now != m.former.Sysctls[path] {
			if err := netdev.SetSysctl(path, m.former.Sysctls[path]); err != nil {
				return "", err
			}
			did = append(did, "sysctl -w "+path+"="+m.former.Sysctls[path])
		}
	}
	did = append(did, m.restoreOffloads()...)
	return joinSteps(append(did, m.setFeatures(m.former.Features, true)...)), nil
}

// clearPromiscuous removes the flag that Open vSwitch sets on its ports. After a restart, Open
// vSwitch leaves it: it assumes that the flag was set before.
func (m *machine) clearPromiscuous() (string, error) {
	name := m.device.Attrs().Name
	if m.former.Promisc || m.device.Attrs().RawFlags&unix.IFF_PROMISC == 0 {
		return "", nil
	}
	if err := netlink.SetPromiscOff(m.device); err != nil {
		return "", fmt.Errorf("ip link set %s promisc off: %w", name, err)
	}
	return "ip link set " + name + " promisc off", nil
}

func (m *machine) disableIPv6(value string) (string, error) {
	path := "net/ipv6/conf/" + m.device.Attrs().Name + "/disable_ipv6"
	now, err := netdev.Sysctl(path)
	if errors.Is(err, os.ErrNotExist) || err == nil && now == value {
		return "", nil // or the kernel has no IPv6
	}
	if err != nil {
		return "", err
	}
	return "sysctl -w " + path + "=" + value, netdev.SetSysctl(path, value)
}

// readSettings reads the settings of a device that is about to be a port.
func (m *machine) readSettings(l netlink.Link) (now settings, err error) {
	name := l.Attrs().Name
	now.Sysctls = map[string]string{}
	for _, path := range m.config.Sysctls {
		if value, err := netdev.Sysctl(path); err == nil {
			now.Sysctls[path] = value
		}
	}
	now.Promisc = l.Attrs().RawFlags&unix.IFF_PROMISC != 0
	off, _ := netdev.Sysctl("net/ipv6/conf/" + name + "/disable_ipv6") // missing without IPv6
	now.IPv6Off = off == "1"
	for _, o := range offloads() {
		if on, err := netdev.Ethtool(name, o.get, 0); err == nil && on != 0 {
			now.Offloads = append(now.Offloads, o.set)
		}
	}
	for _, feature := range unsupported() {
		if on, _ := netdev.Feature(name, feature); on { // false if the device cannot list features
			now.Features = append(now.Features, feature)
		}
	}
	list, err := addresses(l, nil)
	for _, a := range list {
		if a.Flags&unix.IFA_F_PERMANENT == 0 {
			now.Addresses = append(now.Addresses, lifetime{prefix(&a), a.ValidLft, a.PreferedLft})
		}
	}
	return now, err
}
