package uplink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hairpin/netdev"
	"hairpin/ovsdb"
)

// keyNM is the external_ids key of rows that NetworkManager makes in Open vSwitch.
const keyNM = "NM.connection.uuid"

const (
	// replyTime limits how long a gateway may take to reply. The kernel sends three requests, one
	// per second, and then removes the entry.
	replyTime = 2500 * time.Millisecond
	pollTime  = 20 * time.Millisecond
	undoTime  = 10 * time.Second
	ipv6Time  = 10 * time.Second // limits the wait for the kernel's own IPv6 address of a link
)

// Foreign is a gateway bridge with a device that another program made.
type Foreign struct {
	Bridge, Device string
	// Refusal is why the bridge's network cannot be given back to the device; nil = it can.
	Refusal error
	// NetworkManager made it, and makes it again while it has the profiles.
	NetworkManager bool

	m     machine
	port  *ovsdb.Port // of the device
	iface *ovsdb.Interface
	move  move // what moves from the bridge to the device
}

// FindForeign finds the gateway bridge if another program made it and it has a device; nil if there
// is none.
func FindForeign(db *ovsdb.Client, c Config) (*Foreign, error) {
	m := machine{db: db, config: c, view: db.View()}
	if m.bridge = ovsdb.BridgeNamed(m.view, c.Bridge); m.bridge == nil {
		return nil, nil
	}
	if _, ours := m.bridge.ExternalIDs[KeyUplink]; ours {
		return nil, nil
	}
	f := &Foreign{Bridge: c.Bridge, m: m}
	_, f.NetworkManager = m.bridge.ExternalIDs[keyNM]
	f.findDevice()
	if f.Device == "" {
		return nil, nil
	}
	return f, f.findMove()
}

// findDevice finds the device among the ports. The bridge may have one device, patch ports, and its
// own port: it refuses a bridge with configuration that would be lost.
func (f *Foreign) findDevice() {
	for _, port := range f.m.bridge.Ports {
		p := ovsdb.Get[ovsdb.Port](f.m.view, port)
		if p == nil {
			continue
		}
		for _, iface := range p.Interfaces {
			i := ovsdb.Get[ovsdb.Interface](f.m.view, iface)
			switch {
			case i == nil || i.Type == "patch":
			case i.Name == f.Bridge && p.Tag != nil:
				f.refuse("the bridge's own port is in VLAN %d", *p.Tag)
			case i.Name == f.Bridge:
			case i.Type != "" && i.Type != "system":
				f.refuse("it has another port %s, of type %s", i.Name, i.Type)
			case len(p.Interfaces) > 1:
				f.Device = i.Name
				f.refuse("port %s is a bond", p.Name)
			case f.Device != "":
				f.refuse("it has several devices, %s and %s", f.Device, i.Name)
			default:
				f.Device, f.port, f.iface = i.Name, p, i
			}
		}
	}
}

func (f *Foreign) refuse(format string, args ...any) {
	if f.Refusal == nil {
		f.Refusal = fmt.Errorf(format, args...)
	}
}

// findMove finds both links, and what is to move from one to the other.
func (f *Foreign) findMove() (err error) {
	m := &f.m
	if m.device, err = link(f.Device); err != nil {
		return err
	}
	if m.internal, err = link(f.Bridge); err != nil {
		return err
	}
	switch {
	case m.device == nil || m.internal == nil:
		f.refuse("the machine has no link %s or %s: does ovs-vswitchd run?", f.Device, f.Bridge)
		return nil
	case m.device.Attrs().HardwareAddr.String() != m.internal.Attrs().HardwareAddr.String():
		f.refuse("its MAC, which the neighbors know, is not that of %s", f.Device)
	}
	if m.config.Prefixes, err = addMasquerade(m.internal, m.config.Prefixes); err != nil {
		return err
	}
	f.move, err = m.remaining(m.internal, m.device)
	return err
}

// addMasquerade adds OVN-Kubernetes' masquerade subnets, if a link has addresses of them: they are
// not the machine's.
func addMasquerade(l netlink.Link, to []netip.Prefix) ([]netip.Prefix, error) {
	list, err := addresses(l, to)
	if err != nil {
		return nil, err
	}
	for _, theirs := range []netip.Prefix{netip.MustParsePrefix("169.254.0.0/17"),
		netip.MustParsePrefix("fd69::/112")} {
		if slices.ContainsFunc(list, func(a netlink.Addr) bool { return prefix(&a).Masked() == theirs }) {
			to = append(slices.Clip(to), theirs)
		}
	}
	return to, nil
}

// Commands returns what GiveBack would do, as commands of ip(8) and ovs-vsctl(8).
func (f *Foreign) Commands() (list []string) {
	for _, a := range inOrderAdded(f.move.addresses) {
		list = append(list, fmt.Sprintf("ip address add %s dev %s", prefix(&a), f.Device))
	}
	for _, r := range gatewaysLast(f.move.routes) {
		if r.Protocol == unix.RTPROT_KERNEL {
			continue // the kernel adds it with an address
		}
		list = append(list, "ip route replace "+routeText(&r)+" dev "+f.Device)
	}
	return append(list, fmt.Sprintf("ovs-vsctl del-port %s %s", f.Bridge, f.Device), "ovs-vsctl del-br "+f.Bridge)
}

// GiveBack moves the bridge's network back to the device, and removes the bridge. It returns what
// it did as commands of ip(8) and ovs-vsctl(8). If a step fails, or a default gateway that replied
// on the bridge does not reply on the device, GiveBack undoes everything. The function GiveBack
// completes it after an interruption.
func (f *Foreign) GiveBack(ctx context.Context) (did []string, err error) {
	if f.Refusal != nil {
		return nil, f.Refusal
	}
	m := &f.m
	if err := m.commit(ctx); err != nil {
		return nil, err // ovs-vswitchd would not release the device
	}
	gateways := replyingGateways(ctx, m.internal, f.move.routes)
	sysctls, err := f.markOwn(ctx)
	if err == nil {
		did, err = f.moveBack(ctx)
	}
	if err == nil {
		err = f.checkGateways(ctx, gateways)
	}
	if err == nil { // from here on nothing is undone: only the deletion of the bridge is left
		deleted, err := GiveBack(ctx, m.db, m.config)
		return append(did, deleted...), err
	}
	undoing, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	undone, failed := f.undo(undoing, sysctls)
	did = append(did, undone...)
	if failed != nil {
		return did, fmt.Errorf("%w; and it could not be undone: %w", err, failed)
	}
	return did, fmt.Errorf("%w; everything was undone", err)
}

// moveBack moves the network to the device, and releases it. The bridge stays. It is an error if
// another program reverts that.
func (f *Foreign) moveBack(ctx context.Context) (did []string, err error) {
	step := func() (string, error) { return giveBackStep(ctx, f.m.db, f.m.config, true) }
	if did, err = repeat(ctx, step); err != nil {
		return did, err
	}
	again, err := step()
	if err == nil && again != "" {
		err = fmt.Errorf("another program reverts it: %q was to be done again", again)
	}
	return did, err
}

// markOwn marks the bridge as one that Hairpin may remove, with the settings of its device to
// restore then. It makes reverse path filtering loose: until the end, replies to packets that
// arrive by the bridge may leave by the device. It returns the values of sysctls to restore after a
// failure.
func (f *Foreign) markOwn(ctx context.Context) (sysctls map[string]string, err error) {
	m := &f.m
	sysctls = map[string]string{}
	for _, path := range []string{"net/ipv4/conf/" + f.Bridge + "/rp_filter", "net/ipv6/conf/" + f.Device +
		"/disable_ipv6"} {
		if value, err := netdev.Sysctl(path); err == nil {
			sysctls[path] = value
		}
	}
	if m.former, err = m.readSettings(m.device); err != nil {
		return sysctls, err
	}
	// The device gets IPv6 as the bridge has it, and the lifetimes of the bridge's addresses.
	off, _ := netdev.Sysctl("net/ipv6/conf/" + f.Bridge + "/disable_ipv6") // missing without IPv6
	m.former.IPv6Off, m.former.Promisc = off == "1", false
	m.former.Addresses, m.former.Sysctls = nil, nil
	text, err := json.Marshal(m.former)
	if err != nil {
		return sysctls, err
	}
	if err := netdev.SetSysctl("net/ipv4/conf/"+f.Bridge+"/rp_filter", "2"); err != nil {
		return sysctls, err
	}
	return sysctls, f.mark(ctx, ovsdb.InsertInto("external_ids",
		map[string]string{KeyUplink: f.Device, keyFormer: string(text)}), true)
}

// mark adds the mark of Hairpin's bridges to the bridge's row, or removes it, and waits until the
// mirror has the change.
func (f *Foreign) mark(ctx context.Context, change ovsdb.Mutation, add bool) error {
	id := f.m.bridge.UUID
	if _, err := f.m.db.Transact(ctx, ovsdb.Mutate("Bridge", change).Row(id)); err != nil {
		return fmt.Errorf("bridge %s: external_ids:%s: %w", f.Bridge, KeyUplink, err)
	}
	return f.m.db.WaitFor(ctx, func(v ovsdb.View) bool {
		b := ovsdb.Get[ovsdb.Bridge](v, id)
		if b == nil {
			return true
		}
		_, marked := b.ExternalIDs[KeyUplink]
		return marked == add
	})
}

// replyingGateways lists the default gateways among routes through a link that reply there.
func replyingGateways(ctx context.Context, l netlink.Link, routes []netlink.Route) (list []net.IP) {
	for _, r := range routes {
		if r.Gw != nil && netdev.Destination(&r).Bits() == 0 && !slices.ContainsFunc(list, r.Gw.Equal) &&
			replies(ctx, l, r.Gw) {
			list = append(list, r.Gw)
		}
	}
	return list
}

// replies makes the kernel probe a neighbor, and reports whether it replies: whether its entry is
// reachable after a probe. One without ARP counts as replying. A known entry stays in use while it
// is probed: no packet waits.
func replies(ctx context.Context, l netlink.Link, ip net.IP) bool {
	n := netlink.Neigh{LinkIndex: l.Attrs().Index, Family: netlink.FAMILY_V4, IP: ip, Flags: netlink.NTF_USE}
	if ip.To4() == nil {
		n.Family = netlink.FAMILY_V6
		awaitIPv6(ctx, l)
	}
	ctx, cancel := context.WithTimeout(ctx, replyTime)
	defer cancel()
	for probed := false; ; probed = true {
		list, err := netlink.NeighList(n.LinkIndex, n.Family)
		i := slices.IndexFunc(list, func(o netlink.Neigh) bool { return o.IP.Equal(ip) })
		known := err == nil && i >= 0 && list[i].State&(unix.NUD_FAILED|unix.NUD_INCOMPLETE) == 0
		switch {
		case known && list[i].State&(unix.NUD_PERMANENT|unix.NUD_NOARP) != 0, known && probed &&
			list[i].State&unix.NUD_REACHABLE != 0:
			return true
		case known && !probed:
			_ = netlink.NeighSet(&netlink.Neigh{LinkIndex: n.LinkIndex, Family: n.Family, IP: ip,
				HardwareAddr: list[i].HardwareAddr, State: unix.NUD_PROBE})
		case !known:
			_ = netlink.NeighAdd(&n) // the kernel sends a request per second
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(pollTime):
		}
	}
}

// awaitIPv6 waits until a link has its own IPv6 address, the source of its neighbor solicitations.
func awaitIPv6(ctx context.Context, l netlink.Link) {
	for end := time.Now().Add(ipv6Time); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(pollTime) {
		list, err := netlink.AddrList(l, netlink.FAMILY_V6)
		if err != nil || !slices.ContainsFunc(list, func(a netlink.Addr) bool {
			return a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) == unix.IFA_F_TENTATIVE
		}) {
			return
		}
	}
}

// checkGateways returns an error if gateways do not reply on the device.
func (f *Foreign) checkGateways(ctx context.Context, gateways []net.IP) error {
	var list []string
	for _, g := range gateways {
		if !replies(ctx, f.m.device, g) {
			list = append(list, g.String())
		}
	}
	if len(list) == 0 {
		return nil
	}
	return fmt.Errorf("gateway %s replied on %s, and does not reply on %s", strings.Join(list, ", "), f.Bridge,
		f.Device)
}

// undo moves the device and the machine's network into the bridge again.
func (f *Foreign) undo(ctx context.Context, sysctls map[string]string) (did []string, err error) {
	if did, err = repeat(ctx, func() (string, error) { return f.undoStep(ctx) }); err != nil {
		return did, err
	}
	var errs []error
	for path, value := range sysctls {
		if now, err := netdev.Sysctl(path); err == nil && now != value {
			errs = append(errs, netdev.SetSysctl(path, value))
		}
	}
	return did, errors.Join(append(errs,
		f.mark(ctx, ovsdb.DeleteFrom("external_ids", []string{KeyUplink, keyFormer}), false))...)
}

func (f *Foreign) undoStep(ctx context.Context) (string, error) {
	m, _, err := readMachine(f.m.db, f.m.config)
	switch {
	case err != nil:
		return "", err
	case m.bridge == nil: // markOwn has failed: there is nothing to undo
		return "", nil
	case m.device == nil || m.internal == nil:
		return "", fmt.Errorf("the machine has no link %s or %s any more", f.Device, f.Bridge)
	}
	mv, err := m.remaining(m.device, m.internal)
	if err != nil {
		return "", err
	}
	mv.addresses = slices.DeleteFunc(mv.addresses, func(a netlink.Addr) bool {
		return !slices.ContainsFunc(f.move.addresses, func(b netlink.Addr) bool { return prefix(&a) == prefix(&b) })
	})
	mv.routes = slices.DeleteFunc(mv.routes, func(r netlink.Route) bool {
		return !slices.ContainsFunc(f.move.routes, func(o netlink.Route) bool {
			return sameRoute(&o, &r) && o.Gw.Equal(r.Gw)
		})
	})
	for _, a := range f.move.addresses {
		if a.Flags&unix.IFA_F_PERMANENT == 0 {
			mv.lifetimes = append(mv.lifetimes, lifetime{prefix(&a), a.ValidLft, a.PreferedLft})
		}
	}
	return firstStep([]func() (string, error){
		func() (string, error) { return f.restorePort(ctx, m.port) },
		mv.addAddresses,
		mv.moveRoutes,
		mv.deleteAddresses,
		mv.deleteRoutes,
	})
}

// restorePort adds the device's former port again.
func (f *Foreign) restorePort(ctx context.Context, have *ovsdb.Interface) (string, error) {
	if have != nil {
		return "", nil
	}
	port, ops := ovsdb.InsertPort(ovsdb.Interface{Name: f.Device, Type: f.iface.Type, Options: f.iface.Options,
		OFPortRequest: f.iface.OFPortRequest,
		OtherConfig:   f.iface.OtherConfig, ExternalIDs: f.iface.ExternalIDs}, f.port.ExternalIDs)
	_, err := f.m.db.Transact(ctx, append(ops,
		ovsdb.Mutate("Bridge", ovsdb.InsertInto("ports", port)).Row(f.m.bridge.UUID),
		ovsdb.Mutate("Open_vSwitch", ovsdb.Add("next_cfg", 1)).All())...)
	if err != nil {
		return "", fmt.Errorf("add port %s to bridge %s: %w", f.Device, f.Bridge, err)
	}
	// Do not wait for ovs-vswitchd: the addresses must move back even if it hangs.
	return fmt.Sprintf("ovs-vsctl add-port %s %s", f.Bridge, f.Device), f.m.db.WaitFor(ctx, func(v ovsdb.View) bool {
		return ovsdb.Find(v, func(i *ovsdb.Interface) bool { return i.Name == f.Device }) != nil
	})
}
