package hostnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/hostnet/uplink"
	"hairpin/netdev"
	"hairpin/ovsdb"
	"hairpin/retry"
)

// Mode detached needs no preparation by the administrator. This file makes its gateway bridge,
// without an uplink. On the userspace datapath it also makes the path of tunnels between Open
// vSwitch and the host (plan/gateway/encap.go).

// Keys of external_ids that say for what the agent made a bridge.
const (
	keyDetached  = "hairpin-detached"
	keyNodeLocal = "hairpin-node-local"
)

// modeState is the result of the last change for the gateway mode.
type modeState struct {
	err     error
	backoff retry.Backoff
}

// applyMode makes the bridges and links of mode detached, or removes them in another mode. If the
// uplink was in the gateway bridge, the uplink gets the machine's network back first. After a
// failure it does nothing until the next attempt is due.
func (sc *Scanner) applyMode(ctx context.Context) {
	if sc.mode.err != nil && !sc.mode.backoff.Due(time.Now()) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, adoptionTime)
	defer cancel()
	did, err := sc.changeBridges(ctx)
	log := sc.log.With("mode", sc.config.Cluster.Gateway.Mode)
	for _, what := range did {
		log.Info("changed bridges for the gateway mode", "did", what)
	}
	was := sc.mode.err
	sc.mode.err = err
	if err == nil {
		sc.mode.backoff.Done()
		return
	}
	if errorText(err) != errorText(was) {
		log.Warn("change bridges for the gateway mode", "error", err)
	}
	sc.mode.backoff.Failed(time.Now())
}

// changeBridges takes the steps of applyMode, up to the first that fails, and returns what it did.
func (sc *Scanner) changeBridges(ctx context.Context) (did []string, err error) {
	steps := []func(context.Context) ([]string, error){sc.returnUplink, sc.makeDetached}
	if cluster.ModeNamed(sc.config.Cluster.Gateway.Mode).Uplink {
		steps = []func(context.Context) ([]string, error){
			func(ctx context.Context) ([]string, error) { return removeDetached(ctx, sc.ovs) }}
	}
	for _, step := range append(steps, sc.applyNodeLocal) {
		more, err := step(ctx)
		did = append(did, more...)
		if err != nil {
			return did, err
		}
	}
	return did, nil
}

// returnUplink returns the machine's network to the uplink, if that is in the gateway bridge.
// Before that it removes the nft chain that blocks the uplink for the kernel on the userspace
// datapath.
func (sc *Scanner) returnUplink(ctx context.Context) ([]string, error) {
	if len(uplink.Uplinks(sc.ovs.View())) > 0 {
		if err := sc.removeBlock(ctx); err != nil {
			return nil, err
		}
	}
	return uplink.GiveBack(ctx, sc.ovs, UplinkConfig(sc.config))
}

// LeaveDetached undoes mode detached on a node that Hairpin leaves, and returns what it did. The
// gateway bridge's own addresses move to lo: an API server on the node may advertise one
// (docs/design/origins.md#detached-gateway). The agent of mode detached moves them back.
func LeaveDetached(ctx context.Context, ovs *ovsdb.Client, config cluster.Config) (did []string, err error) {
	if did, err = removeDetached(ctx, ovs); err != nil || len(did) == 0 {
		return did, err
	}
	kept, err := addAdvertised("lo", config.Gateway.Advertise)
	return append(did, kept...), err
}

// Advertise adds the gateway bridge's own addresses of mode detached to the bridge, or to lo while
// there is no bridge, and returns what it did. An API server that advertises such an address can
// then start before the agent. Addresses that a link already has stay there.
func Advertise(config cluster.Config) (did []string, err error) {
	missing, err := Unadvertised(config)
	if err != nil || len(missing) == 0 {
		return nil, err
	}
	link := config.Gateway.Interface
	if _, err := netlink.LinkByName(link); errors.As(err, new(netlink.LinkNotFoundError)) {
		link = "lo"
	}
	return addAdvertised(link, missing)
}

// Unadvertised lists the gateway bridge's own addresses of mode detached that no link has.
func Unadvertised(config cluster.Config) (list []netip.Addr, err error) {
	if cluster.ModeNamed(config.Gateway.Mode).Uplink {
		return nil, nil
	}
	have, err := netdev.Addresses(nil)
	if err != nil {
		return nil, fmt.Errorf("addresses: %w", err)
	}
	for _, a := range config.Gateway.Advertise {
		if !slices.ContainsFunc(have, func(h netlink.Addr) bool { return h.IP.Equal(a.AsSlice()) }) {
			list = append(list, a)
		}
	}
	return list, nil
}

func addAdvertised(name string, addresses []netip.Addr) (did []string, err error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("link %s: %w", name, err)
	}
	for _, a := range addresses {
		p := netip.PrefixFrom(a, a.BitLen())
		address, err := netlink.ParseAddr(p.String())
		if err == nil {
			err = netlink.AddrReplace(link, address)
		}
		if err != nil {
			return did, fmt.Errorf("address %s on %s: %w", p, name, err)
		}
		did = append(did, "ip address replace "+p.String()+" dev "+name)
	}
	return did, nil
}

// removeDetached removes bridges and links that were made for mode detached, and returns what it
// removed. A link may be left of a removal that was interrupted.
func removeDetached(ctx context.Context, ovs *ovsdb.Client) (did []string, err error) {
	if did, err = removeBridges(ctx, ovs, keyDetached); err != nil {
		return did, err
	}
	if l, err := netlink.LinkByName(claims.EncapHost); err == nil {
		did = append(did, "ip link del "+claims.EncapHost)
		if err := netlink.LinkDel(l); err != nil {
			return did, fmt.Errorf("remove link %s: %w", claims.EncapHost, err)
		}
	}
	return did, nil
}

// removeBridges removes bridges with a key, and returns what it removed.
func removeBridges(ctx context.Context, ovs *ovsdb.Client, key string) (did []string, err error) {
	var ops []ovsdb.Op
	for b := range ovsdb.Rows[ovsdb.Bridge](ovs.View()) {
		if _, ours := b.ExternalIDs[key]; !ours {
			continue
		}
		did = append(did, "ovs-vsctl del-br "+b.Name)
		ops = append(ops, ovsdb.Mutate("Open_vSwitch", ovsdb.DeleteFrom("bridges", b.UUID)).All())
	}
	if len(ops) == 0 {
		return nil, nil
	}
	ops = append(ops, ovsdb.Mutate("Open_vSwitch", ovsdb.Add("next_cfg", 1)).All())
	if _, err := ovs.Transact(ctx, ops...); err != nil {
		return nil, fmt.Errorf("ovs-vsctl del-br: %w", err)
	}
	return did, nil
}

// makeDetached makes the missing bridges and links of mode detached, and returns the bridges that
// it made.
func (sc *Scanner) makeDetached(ctx context.Context) (did []string, err error) {
	g := &sc.config.Cluster.Gateway
	if len(g.Advertise) == 0 {
		return nil, errors.New("[gateway] advertise-address: is empty, but mode detached needs one per family")
	}
	bridges := []newBridge{{name: g.Interface, key: keyDetached, mac: cluster.MACFor(g.Advertise[0])}}
	if uplink.DatapathType(sc.ovs.View()) == uplink.UserspaceDatapath {
		if err := addVethPair(claims.EncapHost, claims.EncapPort); err != nil {
			return nil, err
		}
		bridges = append(bridges, newBridge{name: claims.EncapBridge, key: keyDetached, port: claims.EncapPort})
	}
	return sc.makeBridges(ctx, bridges...)
}

// makeBridges makes the missing ones of some bridges, and returns what it did.
func (sc *Scanner) makeBridges(ctx context.Context, bridges ...newBridge) (did []string, err error) {
	v := sc.ovs.View()
	datapath := uplink.DatapathType(v)
	var ops []ovsdb.Op
	for _, b := range bridges {
		if ovsdb.BridgeNamed(v, b.name) == nil {
			did = append(did, fmt.Sprintf("ovs-vsctl add-br %s -- set Bridge %[1]s datapath_type=%s", b.name, datapath))
			ops = append(ops, b.ops(datapath, sc.node)...)
		}
	}
	if len(ops) == 0 {
		return nil, nil
	}
	if _, err := sc.ovs.Transact(ctx, ops...); err != nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(did, "; "), err)
	}
	return did, nil
}

// newBridge is a bridge to make.
type newBridge struct {
	name string
	key  string
	mac  cluster.MAC // zero = Open vSwitch's choice
	port string      // a link to add as a port; empty = none
}

// ops returns the operations that make the bridge.
func (b *newBridge) ops(datapath, node string) []ovsdb.Op {
	standalone := "standalone"
	ours := map[string]string{claims.KeyOwner: cluster.NodeOwner(node).String(), b.key: "true"}
	row := ovsdb.Bridge{
		Name: b.name, DatapathType: datapath, FailMode: &standalone, ExternalIDs: ours,
	}
	if b.mac != (cluster.MAC{}) {
		row.OtherConfig = map[string]string{"hwaddr": b.mac.String()}
	}
	if b.port == "" {
		return ovsdb.InsertBridge(row)
	}
	return ovsdb.InsertBridge(row, ovsdb.Interface{Name: b.port})
}

// addVethPair makes a veth pair. An existing link stays as it is.
func addVethPair(a, b string) error {
	err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: a}, PeerName: b})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("make links %s and %s: %w", a, b, err)
	}
	return nil
}

// completeDetached completes a Gateway in mode detached: the bridge's own addresses are those of
// the configuration. The machine's link and default gateways are for explanations of a packet's
// path. The link is that of the first address of a network; Local.Apply, which knows the node's
// address, replaces it.
func completeDetached(g cluster.Gateway, config cluster.Config, host []hostAddress) (cluster.Gateway, error) {
	g.Addresses = nil
	for _, a := range config.Gateway.Advertise {
		g.Addresses = append(g.Addresses, netip.PrefixFrom(a, a.BitLen()))
	}
	for _, a := range host {
		if !a.prefix.IsSingleIP() && a.device.name != g.Bridge && !cluster.HostOnly(a.prefix.Addr()) {
			g.Device, g.DeviceMAC = a.device.name, a.device.mac
			break
		}
	}
	var err error
	g.NextHops, err = nextHops(anyLink, config)
	return g, err
}

// DetachedPrefixes returns Hairpin's own addresses on the host in mode detached, on any link: an
// advertise-address that was on lo while there was no bridge moves to the bridge.
func DetachedPrefixes(config cluster.Config) []netip.Prefix {
	if cluster.ModeNamed(config.Gateway.Mode).Uplink {
		return nil
	}
	list := []netip.Prefix{netip.MustParsePrefix(claims.EncapSubnet4), netip.MustParsePrefix(claims.EncapSubnet6)}
	for _, a := range config.Gateway.Advertise {
		list = append(list, netip.PrefixFrom(a, a.BitLen()))
	}
	return list
}
