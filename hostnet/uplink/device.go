package uplink

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hairpin/ovsdb"
)

// choose gives the device that is to become the uplink, or says why there is none.
func (m *machine) choose() (netlink.Link, error) {
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
		return nil, fmt.Errorf("device %s cannot be taken into a bridge: %s", name, why)
	}
	return l, nil
}

// defaultDevice gives the device of the default route: of the best one for IPv4, or else for IPv6. When that is the
// bridge, whose row was lost, it is the device with the bridge's address.
func (m *machine) defaultDevice() (string, error) {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := netlink.RouteListFiltered(family, &netlink.Route{}, netlink.RT_FILTER_DST) // Dst nil: default
		if err != nil {
			return "", fmt.Errorf("default route: %w", err)
		}
		list = slices.DeleteFunc(list, func(r netlink.Route) bool { return r.Type != unix.RTN_UNICAST || destination(&r).Bits() != 0 })
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
			return sibling(l)
		}
		return l.Attrs().Name, nil
	}
	return "", errors.New("there is no default route whose device could be taken ([gateway] uplink names one)")
}

// sibling returns the device with the same MAC.
func sibling(l netlink.Link) (string, error) {
	links, err := netlink.LinkList()
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

// unfit says why a device cannot be a bridge's port; empty when it can.
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

// setUp sets the bridge's device up. It takes packets whose replies still go by the other device: loose checks of the
// reverse path.
func setUp(l netlink.Link) (string, error) {
	name := l.Attrs().Name
	if l.Attrs().Flags&unix.IFF_UP != 0 {
		return "", nil
	}
	if err := writeSysctl("net/ipv4/conf/"+name+"/rp_filter", "2"); err != nil {
		return "", err
	}
	if err := netlink.LinkSetUp(l); err != nil {
		return "", fmt.Errorf("ip link set %s up: %w", name, err)
	}
	return "ip link set " + name + " up", nil
}

func (m *machine) userspace() bool { return m.bridge.DatapathType == "netdev" }

// offloads are commands of ETHTOOL, each to set and to get a feature which a userspace switch must not have on its port: it
// reads frames as they are, and so a checksum must be there and no frame may be longer than the MTU.
func offloads() map[uint32]uint32 {
	return map[uint32]uint32{
		unix.ETHTOOL_STXCSUM: unix.ETHTOOL_GTXCSUM,
		unix.ETHTOOL_SGRO:    unix.ETHTOOL_GGRO,
	}
}

// prepare makes the device a port: up, and on the userspace datapath with unmodified frames (no offloads).
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
	var did []string
	for set, get := range offloads() {
		on, err := ethtool(name, get, 0)
		if err != nil || on == 0 {
			continue // the driver does not have it
		}
		if _, err := ethtool(name, set, 0); err == nil {
			if now, _ := ethtool(name, get, 0); now == 0 {
				did = append(did, fmt.Sprintf("ethtool -K %s: command %#x off", name, set))
			}
		}
	}
	return words(did), nil
}

// silence keeps the kernel from IPv6 of its own on the device: on the userspace datapath it sees the frames, too.
func (m *machine) silence() (string, error) {
	if !m.userspace() {
		return "", nil
	}
	return m.disableIPv6("1")
}

// restore gives the device back what it was.
func (m *machine) restore() (string, error) {
	name := m.device.Attrs().Name
	if !m.had.IPv6Off {
		if what, err := m.disableIPv6("0"); err != nil || what != "" {
			return what, err
		}
	}
	var did []string
	for _, path := range slices.Sorted(maps.Keys(m.had.Sysctls)) {
		if !slices.Contains(m.config.Sysctls, path) {
			continue // not recorded here
		}
		if now, err := os.ReadFile(filepath.Join("/proc/sys", path)); err == nil && strings.TrimSpace(string(now)) != m.had.Sysctls[path] {
			if err := writeSysctl(path, m.had.Sysctls[path]); err != nil {
				return "", err
			}
			did = append(did, "sysctl -w "+path+"="+m.had.Sysctls[path])
		}
	}
	for set, get := range offloads() {
		if now, err := ethtool(name, get, 0); err == nil && now == 0 && slices.Contains(m.had.Offloads, set) {
			if _, err := ethtool(name, set, 1); err == nil {
				if now, _ := ethtool(name, get, 0); now != 0 {
					did = append(did, fmt.Sprintf("ethtool -K %s: command %#x on", name, set))
				}
			}
		}
	}
	return words(did), nil
}

// notPromiscuous takes off a flag that Open vSwitch sets on its ports, and after a restart believes to have been set before.
func (m *machine) notPromiscuous() (string, error) {
	name := m.device.Attrs().Name
	if m.had.Promisc || m.device.Attrs().RawFlags&unix.IFF_PROMISC == 0 {
		return "", nil
	}
	if err := netlink.SetPromiscOff(m.device); err != nil {
		return "", fmt.Errorf("ip link set %s promisc off: %w", name, err)
	}
	return "ip link set " + name + " promisc off", nil
}

func (m *machine) disableIPv6(value string) (string, error) {
	path := "net/ipv6/conf/" + m.device.Attrs().Name + "/disable_ipv6"
	now, err := os.ReadFile(filepath.Join("/proc/sys", path))
	if errors.Is(err, os.ErrNotExist) || err == nil && strings.TrimSpace(string(now)) == value {
		return "", nil // or without IPv6
	}
	if err != nil {
		return "", fmt.Errorf("sysctl %s: %w", path, err)
	}
	return "sysctl -w " + path + "=" + value, writeSysctl(path, value)
}

// remember notes what a device is that is about to be taken.
func (m *machine) remember(l netlink.Link) (had memory, err error) {
	name := l.Attrs().Name
	had.Sysctls = map[string]string{}
	for _, path := range m.config.Sysctls {
		if value, err := os.ReadFile(filepath.Join("/proc/sys", path)); err == nil {
			had.Sysctls[path] = strings.TrimSpace(string(value))
		}
	}
	had.Promisc = l.Attrs().RawFlags&unix.IFF_PROMISC != 0
	if off, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + name + "/disable_ipv6"); err == nil {
		had.IPv6Off = strings.TrimSpace(string(off)) == "1"
	}
	for set, get := range offloads() {
		if on, err := ethtool(name, get, 0); err == nil && on != 0 {
			had.Offloads = append(had.Offloads, set)
		}
	}
	slices.Sort(had.Offloads)
	list, err := addresses(l, nil)
	for _, a := range list {
		if a.Flags&unix.IFA_F_PERMANENT == 0 {
			had.Addresses = append(had.Addresses, lifetime{prefix(&a), a.ValidLft, a.PreferedLft})
		}
	}
	return had, err
}

func writeSysctl(path, value string) error {
	if err := os.WriteFile(filepath.Join("/proc/sys", path), []byte(value), 0); err != nil {
		return fmt.Errorf("sysctl %s: %w", path, err)
	}
	return nil
}

// ethtool gives a device a command that has one number (struct ethtool_value), and gives the number that is there then.
func ethtool(name string, command, value uint32) (uint32, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("ethtool %s: %w", name, err)
	}
	defer func() { _ = unix.Close(fd) }()
	data := struct{ command, value uint32 }{command, value}
	request := struct { // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&data)}
	copy(request.name[:unix.IFNAMSIZ-1], name)
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); errno != 0 {
		return 0, fmt.Errorf("ethtool %s: %w", name, errno)
	}
	return data.value, nil
}
