package hostnet

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"hairpin/cluster"
	"hairpin/hostnet/restore"
	"hairpin/ovsdb"
)

// keyNetwork is the external_ids key of the gateway bridge with the restore.Record of its device: a
// later agent knows by it what a restart of Open vSwitch lost while none ran.
const keyNetwork = "hairpin-network"

// bridgeNetwork follows what the gateway bridge's device has of the machine's own network. It
// belongs to the machine: what others add or remove is only noted. What was lost with the device
// itself is restored once.
type bridgeNetwork struct {
	mu      sync.Mutex
	record  *restore.Record // of the device when it was last whole; nil = not known
	lost    bool            // the device does not have it any more, and it is not restored yet
	isDown  bool            // the device, by the last notification
	wasDown bool            // the device, at some time since the last look

	failed string // what could not be restored

	written     restore.Record // on the bridge's row
	writtenText string
	writtenAt   time.Time
	unwritten   string // why it is not
}

// lifetimesAfter is how often a Record is written that differs in lifetimes only: router
// advertisements extend them.
const lifetimesAfter = time.Minute

// note records a notification of the kernel. While the bridge's device is up, the kernel itself
// removes nothing. When the device is set down, the kernel removes routes and IPv6 addresses; when
// it is deleted, IPv4 addresses, too. The messages of both are like those of an administrator's
// change, so they are not noted (see takeIPv4).
func (n *bridgeNetwork) note(m syscall.NetlinkMessage, bridge string, not []netip.Prefix) {
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
			n.record.Note(m, not)
		}
	}
}

// nameOf returns the name of the link that a message is about.
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

// followNetwork restores what was lost with the gateway bridge's device, and else records what the
// device has. Without a device behind the uplink's port it restores nothing: the machine may have
// its network elsewhere.
func (l *Looker) followNetwork(v ovsdb.View) {
	n, name := &l.network, l.config.Cluster.Gateway.Interface
	bridge := ovsdb.Find(v, func(b *ovsdb.Bridge) bool { return b.Name == name })
	if bridge == nil || !cluster.ModeNamed(l.config.Cluster.Gateway.Mode).Uplink {
		n.set(nil, false)
		return
	}
	const attempts = 3 // Open vSwitch may be changing the device
	for range attempts {
		link, err := netlink.LinkByName(name)
		if errors.As(err, new(netlink.LinkNotFoundError)) {
			n.set(n.record, n.record != nil || bridge.ExternalIDs[keyNetwork] != "")
			return
		}
		if err == nil {
			if n.record == nil {
				n.set(recorded(bridge, link, l.prefixes()), n.lost)
			}
			var lost bool
			lost, err = n.followDevice(link, hasUplink(v, bridge), l.prefixes())
			n.set(n.record, lost)
		}
		if n.failed != "" {
			l.log.Warn("what Open vSwitch lost was not restored as a whole", "bridge", name, "error", n.failed)
			n.failed = ""
		}
		switch {
		case errors.Is(err, errChanged):
			continue
		case err != nil:
			l.log.Warn("network of the gateway bridge", "bridge", name, "error", err)
		}
		return
	}
	l.Want()
}

// set changes what notifications read, too.
func (n *bridgeNetwork) set(r *restore.Record, lost bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.record, n.lost = r, lost
}

// prefixes are the ranges whose addresses are not the machine's.
func (l *Looker) prefixes() []netip.Prefix { return UplinkConfig(l.config).Prefixes }

// recorded returns the Record of a bridge's row. A release before it has noted addresses and next
// hops only: of a family that the device has nothing of, they are taken for lost.
func recorded(bridge *ovsdb.Bridge, link netlink.Link, not []netip.Prefix) *restore.Record {
	if text := bridge.ExternalIDs[keyNetwork]; text != "" {
		if r, err := restore.Parse(text); err == nil {
			return &r
		}
		return nil
	}
	old := cluster.ParseGateway(bridge.ExternalIDs[keyGateway])
	has, err := restore.Of(link, not)
	if err != nil || len(old.Addresses)+len(old.NextHops) == 0 {
		return nil
	}
	addresses, hops := has.Prefixes(), has.NextHops()
	r := restore.Plain(restore.DeviceOf(link).Boot,
		slices.DeleteFunc(old.Addresses, func(a netip.Prefix) bool {
			return slices.ContainsFunc(addresses, func(b netip.Prefix) bool { return a.Addr().Is4() == b.Addr().Is4() })
		}),
		slices.DeleteFunc(old.NextHops, func(a netip.Addr) bool {
			return slices.ContainsFunc(hops, func(b netip.Addr) bool { return a.Is4() == b.Is4() })
		}))
	return &r
}

// hasUplink reports whether the machine has the device of the bridge's port.
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

// followDevice compares a device with the Record, restores what was lost with the device, and takes
// the new Record. It reports whether something lost is still to be restored.
func (n *bridgeNetwork) followDevice(link netlink.Link, uplink bool, not []netip.Prefix) (lost bool, err error) {
	device, up := restore.DeviceOf(link), link.Attrs().Flags&net.FlagUp != 0
	old, down := n.begin(up)
	if old != nil && device.SameMachine(old.Device) {
		switch anew := device != old.Device; {
		case anew && !uplink:
			return true, nil
		case !anew && !up:
			return true, n.takeIPv4(link, not) // the agent sets it up
		case !anew && down:
			old = old.WithoutIPv4Addresses()
			fallthrough
		case anew:
			if _, err := old.Restore(link); err != nil {
				n.failed = err.Error()
			}
		}
	}
	now, err := restore.Of(link, not)
	if err != nil {
		return n.lost, err
	}
	after, err := netlink.LinkByIndex(link.Attrs().Index)
	if err != nil || restore.DeviceOf(after) != device || after.Attrs().Flags&net.FlagUp == 0 && up {
		n.mu.Lock()
		n.wasDown = true
		n.mu.Unlock()
		return true, errChanged
	}
	n.mu.Lock()
	n.record = &now
	n.mu.Unlock()
	return false, nil
}

// begin returns a copy of the Record, which notifications do not change, and whether the device was
// down since the last look.
func (n *bridgeNetwork) begin(up bool) (r *restore.Record, wasDown bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	wasDown, n.wasDown = n.wasDown, !up
	if n.record == nil {
		return nil, wasDown
	}
	r = new(*n.record)
	r.Addresses, r.Routes = slices.Clone(r.Addresses), slices.Clone(r.Routes)
	return r, wasDown
}

// takeIPv4 records the IPv4 addresses of a device that is down. The kernel keeps them until the
// device is deleted, so what changes there is an administrator's change.
func (n *bridgeNetwork) takeIPv4(link netlink.Link, not []netip.Prefix) error {
	now, err := restore.Of(link, not)
	if err != nil {
		return err
	}
	if after, err := netlink.LinkByIndex(now.Index); err != nil || restore.DeviceOf(after) != now.Device {
		return errChanged // the kernel may have removed them
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.record.TakeIPv4Addresses(&now)
	return nil
}

// missed updates the state of the device after notifications were lost.
func (n *bridgeNetwork) missed(bridge string) {
	link, err := netlink.LinkByName(bridge)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wasDown = true // perhaps
	n.isDown = err != nil || link.Attrs().Flags&net.FlagUp == 0
}

// missing is the Record of what was lost and is not restored yet; nil = nothing.
func (n *bridgeNetwork) missing() *restore.Record {
	if !n.lost {
		return nil
	}
	return n.record
}

// noteRow records the network on the bridge's row; what fails is tried again at the next look.
func (l *Looker) noteRow(ctx context.Context) {
	err := l.recordNetwork(ctx)
	if text := errorText(err); text != l.network.unwritten {
		l.network.unwritten = text
		if err != nil {
			l.log.Warn("a restart of Open vSwitch without an agent would lose changes of the gateway bridge's network",
				"error", err)
		}
	}
}

// recordNetwork writes the Record to the bridge's row.
func (l *Looker) recordNetwork(ctx context.Context) error {
	n, name := &l.network, l.config.Cluster.Gateway.Interface
	bridge := ovsdb.Find(l.ovs.View(), func(b *ovsdb.Bridge) bool { return b.Name == name })
	n.mu.Lock()
	record, lost := n.record, n.lost
	if record != nil {
		record = new(*record) // notifications change the other
	}
	n.mu.Unlock()
	if bridge == nil || record == nil || lost {
		return nil
	}
	if text := bridge.ExternalIDs[keyNetwork]; text == n.writtenText && text != "" &&
		record.SameButLifetimes(&n.written) {
		const second = 1 // of rounding
		if record.SameLifetimes(&n.written, second) || time.Since(n.writtenAt) < lifetimesAfter {
			return nil
		}
	}
	text := record.String()
	ctx, cancel := context.WithTimeout(ctx, rowTime)
	defer cancel()
	_, err := l.ovs.Transact(ctx, ovsdb.Mutate("Bridge",
		ovsdb.DeleteFrom("external_ids", []string{keyNetwork}),
		ovsdb.InsertInto("external_ids", map[string]string{keyNetwork: text})).Row(bridge.UUID))
	if err != nil {
		return fmt.Errorf("record the network of %s: %w", name, err)
	}
	n.written, n.writtenText, n.writtenAt = *record, text, time.Now()
	return nil
}

// ForgetNetwork removes from the gateway bridge's row what agents noted of the machine's network.
func ForgetNetwork(ctx context.Context, ovs *ovsdb.Client, config cluster.Config) error {
	b := ovsdb.Find(ovs.View(), func(b *ovsdb.Bridge) bool { return b.Name == config.Gateway.Interface })
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
