package hostnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"hairpin/cluster"
	"hairpin/cluster/annotation"
	"hairpin/hostnet/restore"
	"hairpin/ovsdb"
	"hairpin/retry"
)

// keyNetwork is the external_ids key of the gateway bridge with the restore.Record of its device.
// From it a later agent learns what a restart of Open vSwitch lost while no agent ran.
const keyNetwork = "hairpin-network"

// bridgeNetwork records the machine's own network on the gateway bridge's device. It records
// changes by other programs, and restores once what was lost with the device itself.
type bridgeNetwork struct {
	// mu guards the fields that notifications use. Scans read record and lost without it, because
	// only scans set them; notifications change what record points to.
	mu      sync.Mutex
	record  *restore.Record // of the device when it was last complete; nil = not known
	lost    bool            // the device has lost the record's network, which is not restored yet
	isDown  bool            // the device is down, by the last notification
	wasDown bool            // it was down at some time since the last scan

	written     restore.Record // on the bridge's row
	writtenText string
	writtenAt   time.Time
	writeErr    retry.LastError // of writeRecord
}

// lifetimesInterval is the interval for writing a Record that differs in lifetimes only: router
// advertisements extend them.
const lifetimesInterval = time.Minute

// notified records a notification of the kernel. While the bridge's device is up, the kernel itself
// removes nothing. When the device is set down, the kernel removes routes and IPv6 addresses; when
// it is deleted, IPv4 addresses, too. These messages look like those of an administrator's change,
// so they are ignored (see recordIPv4).
func (n *bridgeNetwork) notified(m syscall.NetlinkMessage, bridge string, exclude []netip.Prefix) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		if len(m.Data) < unix.SizeofIfInfomsg || nameOf(m.Data) != bridge {
			return
		}
		n.isDown = nl.NativeEndian().Uint32(m.Data[8:])&unix.IFF_UP == 0 || m.Header.Type == unix.RTM_DELLINK
		n.wasDown = n.wasDown || n.isDown
	default:
		if n.record != nil && !n.isDown && !n.lost {
			n.record.Update(m, exclude)
		}
	}
}

// nameOf returns the name of the link of a message.
func nameOf(b []byte) string {
	list, err := nl.ParseRouteAttr(b[unix.SizeofIfInfomsg:])
	if err != nil {
		return ""
	}
	for _, a := range list {
		if a.Attr.Type == unix.IFLA_IFNAME {
			return nl.BytesToString(a.Value)
		}
	}
	return ""
}

// restoreOrRecord restores what was lost with the gateway bridge's device, or records the device's
// network. If the device of the uplink's port is missing, it restores nothing: the machine may have
// its network elsewhere.
func (sc *Scanner) restoreOrRecord(v ovsdb.View) {
	n, name := &sc.network, sc.config.Cluster.Gateway.Interface
	bridge := ovsdb.BridgeNamed(v, name)
	if bridge == nil || !cluster.ModeNamed(sc.config.Cluster.Gateway.Mode).Uplink {
		n.set(nil, false)
		return
	}
	const attempts = 3 // ovs-vswitchd may be changing the device
	for range attempts {
		link, err := netlink.LinkByName(name)
		if errors.As(err, new(netlink.LinkNotFoundError)) { // whatever this or an earlier agent recorded is lost
			n.set(n.record, n.record != nil || bridge.ExternalIDs[keyNetwork] != "")
			return
		}
		if err == nil {
			if n.record == nil {
				n.set(storedRecord(bridge, link, sc.ownPrefixes()), n.lost)
			}
			var lost bool
			lost, err = n.update(link, hasUplink(v, bridge), sc.ownPrefixes())
			n.set(n.record, lost)
		}
		if errors.Is(err, errChanged) {
			continue
		}
		if err != nil {
			sc.log.Warn("restore or record the network of the gateway bridge", "bridge", name, "error", err)
		}
		return
	}
	sc.Request()
}

// set sets the fields that notifications read, too.
func (n *bridgeNetwork) set(r *restore.Record, lost bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.record, n.lost = r, lost
}

// ownPrefixes returns the ranges of Hairpin's own addresses, which are not part of the machine's
// network.
func (sc *Scanner) ownPrefixes() []netip.Prefix { return UplinkConfig(sc.config).Prefixes }

// storedRecord returns the Record of a bridge's row. An earlier release recorded addresses and next
// hops only: if the device has none of a family, the recorded ones count as lost.
func storedRecord(bridge *ovsdb.Bridge, link netlink.Link, exclude []netip.Prefix) *restore.Record {
	if text := bridge.ExternalIDs[keyNetwork]; text != "" {
		if r, err := restore.Parse(text); err == nil {
			return &r
		}
		return nil
	}
	old, _ := annotation.ParseGateway(bridge.ExternalIDs[keyGateway])
	has, err := restore.Read(link, exclude)
	if err != nil || len(old.Addresses)+len(old.NextHops) == 0 {
		return nil
	}
	r := restore.Minimal(restore.DeviceOf(link).Boot,
		withoutFamiliesOf(old.Addresses, has.Prefixes(), isIPv4),
		withoutFamiliesOf(old.NextHops, has.NextHops(), netip.Addr.Is4))
	return &r
}

// hasUplink reports whether the device of the bridge's uplink port exists.
func hasUplink(v ovsdb.View, bridge *ovsdb.Bridge) bool {
	name := uplinkOf(v, bridge)
	if name == "" {
		return false
	}
	_, err := netlink.LinkByName(name)
	return err == nil
}

// errChanged means that the device changed meanwhile.
var errChanged = errors.New("the device changed")

// update compares a device with the Record, restores what was lost, and makes a new Record. It
// reports whether something is still to be restored. What could not be restored is an error, and is
// not tried again.
func (n *bridgeNetwork) update(link netlink.Link, hasUplink bool, exclude []netip.Prefix) (lost bool, err error) {
	device, up := restore.DeviceOf(link), link.Attrs().Flags&net.FlagUp != 0
	old, wasDown := n.copyRecord(up)
	if old != nil && device.SameMachine(old.Device) {
		switch replaced := device != old.Device; {
		case replaced && hasUplink:
			_, err = old.Restore(link)
		case replaced:
			return true, nil
		case !up: // IPv6 addresses and routes are restored when it is up again
			return true, n.recordIPv4(link, exclude)
		case wasDown:
			_, err = old.WithoutIPv4Addresses().Restore(link)
		}
	}
	now, readErr := restore.Read(link, exclude)
	if readErr != nil {
		return n.lost, errors.Join(err, readErr)
	}
	after, linkErr := netlink.LinkByIndex(link.Attrs().Index)
	if linkErr != nil || restore.DeviceOf(after) != device || after.Attrs().Flags&net.FlagUp == 0 && up {
		n.mu.Lock()
		n.wasDown = true // the kernel may have removed again what was restored
		n.mu.Unlock()
		return true, errChanged
	}
	n.set(&now, n.lost)
	return false, err
}

// copyRecord returns a copy of the Record that notifications do not change, and whether the device
// was down since the last scan. It resets the latter to the current state.
func (n *bridgeNetwork) copyRecord(up bool) (r *restore.Record, wasDown bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	wasDown, n.wasDown = n.wasDown, !up
	if n.record == nil {
		return nil, wasDown
	}
	return new(*n.record), wasDown // notifications replace its lists
}

// recordIPv4 records the IPv4 addresses of a device that is down. The kernel keeps them until the
// device is deleted, so a difference is an administrator's change.
func (n *bridgeNetwork) recordIPv4(link netlink.Link, exclude []netip.Prefix) error {
	now, err := restore.Read(link, exclude)
	if err != nil {
		return err
	}
	if after, err := netlink.LinkByIndex(now.Index); err != nil || restore.DeviceOf(after) != now.Device {
		return errChanged // the kernel may have removed them
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.record.ReplaceIPv4Addresses(&now)
	return nil
}

// resync updates the state of the device after notifications were lost.
func (n *bridgeNetwork) resync(bridge string) {
	link, err := netlink.LinkByName(bridge)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wasDown = true // it may have been
	n.isDown = err != nil || link.Attrs().Flags&net.FlagUp == 0
}

// missing returns the Record of what was lost and is not restored yet; nil = nothing.
func (n *bridgeNetwork) missing() *restore.Record {
	if !n.lost {
		return nil
	}
	return n.record
}

// writeRecord writes the Record to the bridge's row, if the row has another one.
func (sc *Scanner) writeRecord(ctx context.Context) error {
	n, name := &sc.network, sc.config.Cluster.Gateway.Interface
	bridge := ovsdb.BridgeNamed(sc.ovs.View(), name)
	n.mu.Lock()
	record, lost := n.record, n.lost
	if record != nil {
		record = new(*record) // notifications change the original
	}
	n.mu.Unlock()
	if bridge == nil || record == nil || lost {
		return nil
	}
	if text := bridge.ExternalIDs[keyNetwork]; text == n.writtenText && text != "" &&
		record.SameExceptLifetimes(&n.written) {
		const rounding = 1 // second
		if record.SameLifetimes(&n.written, rounding) || time.Since(n.writtenAt) < lifetimesInterval {
			return nil
		}
	}
	text := record.String()
	ctx, cancel := context.WithTimeout(ctx, rowTime)
	defer cancel()
	if err := setExternalID(ctx, sc.ovs, bridge, keyNetwork, text); err != nil {
		return fmt.Errorf("bridge %s: external_ids:%s: %w", name, keyNetwork, err)
	}
	n.written, n.writtenText, n.writtenAt = *record, text, time.Now()
	return nil
}

// ForgetNetwork removes the records of the machine's network from the gateway bridge's row.
func ForgetNetwork(ctx context.Context, ovs *ovsdb.Client, config cluster.Config) error {
	b := ovsdb.BridgeNamed(ovs.View(), config.Gateway.Interface)
	if b == nil {
		return nil
	}
	_, err := ovs.Transact(ctx, ovsdb.Mutate("Bridge",
		ovsdb.DeleteFrom("external_ids", []string{keyNetwork, keyGateway})).Row(b.UUID))
	if err != nil {
		return fmt.Errorf("bridge %s: external_ids: %w", b.Name, err)
	}
	return nil
}
