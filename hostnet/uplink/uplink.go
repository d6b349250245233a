// Package uplink makes a device of the machine a port of the gateway bridge and moves the machine's
// own network: addresses and routes move from the device to the bridge, and back when Hairpin is
// removed.
//
// The machine stays reachable meanwhile: what is needed on one side exists before it is removed
// from the other. Every step is derived from the state of the machine and Open vSwitch, so an
// interrupted run resumes, and a finished one changes nothing. It also runs after a boot, when the
// operating system has added addresses to the device again, and when a DHCP client does so later.
//
// The package changes a bridge only if its row in Open vSwitch has KeyUplink.
package uplink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"hairpin/apply"
	"hairpin/ovsdb"
)

// Keys of external_ids.
const (
	// KeyUplink of a Bridge: the device that is its uplink. The entry script of Open vSwitch reads
	// it, too.
	KeyUplink = "hairpin-uplink"
	// keyFormer of a Bridge: the former settings of the device; see settings.
	keyFormer = "hairpin-uplink-had"
	// keyDatapath of Open_vSwitch: the bridges' datapath type, system or netdev, as the entry
	// script decided.
	keyDatapath = "hairpin-datapath"
	// keyTSO of Open_vSwitch: whether the userspace datapath exchanges TCP segments with the kernel
	// before segmentation, true or false. ovs-vswitchd reads userspace-tso-enable when it starts;
	// the entry script records the value here.
	keyTSO = "hairpin-tso"
)

// Config is the configuration of the move.
type Config struct {
	Bridge   string         // the gateway bridge
	Device   string         // the uplink; empty = the device of the default route
	Prefixes []netip.Prefix // addresses in them are not the machine's, such as the masquerade subnets
	// Sysctls are paths below /proc/sys that the node changes. They are recorded, and restored at
	// the end.
	Sysctls []string
}

// settings are the settings of a device before it became the uplink, except addresses and routes,
// which move.
type settings struct {
	Addresses []lifetime        `json:"addresses,omitempty"` // only those with a lifetime
	IPv6Off   bool              `json:"ipv6Off,omitempty"`   // disable_ipv6
	Promisc   bool              `json:"promisc,omitempty"`   // the flag
	Offloads  []uint32          `json:"offloads,omitempty"`  // those that were on, by the command that sets them
	Features  []string          `json:"features,omitempty"`  // those of unsupported that were on
	SCTP      bool              `json:"sctp,omitempty"`      // the feature sctp was on, as earlier releases recorded it
	Sysctls   map[string]string `json:"sysctls,omitempty"`
}

// lifetime is the lifetime of an address, in seconds. On the bridge an address does not expire: a
// DHCP client that knows only the device could not renew it.
type lifetime struct {
	Prefix           netip.Prefix `json:"prefix"`
	Valid, Preferred int
}

// machine is the state of the machine and Open vSwitch. Its methods are steps, each of which
// returns what it did; after one that did something, the state must be read again.
type machine struct {
	db        *ovsdb.Client
	config    Config
	view      ovsdb.View
	bridge    *ovsdb.Bridge
	former    settings
	formerErr error            // why former is a default
	port      *ovsdb.Interface // the device's, when it is a port of the bridge
	device    netlink.Link
	internal  netlink.Link // the bridge's own
}

// readMachine reads the state. If the bridge is not Hairpin's, bridge is nil, and foreign reports
// whether another program made one with that name.
func readMachine(db *ovsdb.Client, c Config) (m machine, foreign bool, err error) {
	m = machine{db: db, config: c, view: db.View()}
	if m.bridge = ovsdb.BridgeNamed(m.view, c.Bridge); m.bridge == nil {
		return m, false, nil
	}
	name, ours := m.bridge.ExternalIDs[KeyUplink]
	if !ours {
		m.bridge = nil
		return m, true, nil
	}
	m.former, m.formerErr = parseSettings(m.bridge.ExternalIDs[keyFormer])
	m.port = m.portOf(name)
	if m.device, err = link(name); err != nil {
		return m, false, err
	}
	m.internal, err = link(c.Bridge)
	return m, false, err
}

// parseSettings parses settings of a Bridge row. With an error it returns the default.
func parseSettings(text string) (former settings, err error) {
	if err := json.Unmarshal([]byte(text), &former); err != nil {
		return defaultSettings(), err
	}
	for _, a := range former.Addresses {
		if !a.Prefix.IsValid() {
			return defaultSettings(), errors.New("an address is invalid")
		}
	}
	if former.SCTP {
		former.Features = append(former.Features, sctp)
	}
	return former, nil
}

// defaultSettings returns the settings of most devices.
func defaultSettings() settings {
	s := settings{Features: []string{sctp}}
	for _, o := range offloads() {
		s.Offloads = append(s.Offloads, o.set)
	}
	return s
}

// recordDefaults records the settings of most devices, if the former ones cannot be read any more.
// Otherwise the machine would never get its network back.
func (m *machine) recordDefaults(ctx context.Context) (string, error) {
	text, err := json.Marshal(m.former)
	if err != nil {
		return "", err
	}
	_, err = m.db.Transact(ctx, ovsdb.Mutate("Bridge",
		ovsdb.SetKeys("external_ids", map[string]string{keyFormer: string(text)})...).Row(m.bridge.UUID))
	if err != nil {
		return "", fmt.Errorf("bridge %s: external_ids:%s: %w", m.bridge.Name, keyFormer, err)
	}
	what := fmt.Sprintf("assume default settings of %s: external_ids:%s of bridge %s cannot be read (%v)",
		m.bridge.ExternalIDs[KeyUplink], keyFormer, m.bridge.Name, m.formerErr)
	return what, m.db.WaitFor(ctx, func(v ovsdb.View) bool {
		b := ovsdb.Get[ovsdb.Bridge](v, m.bridge.UUID)
		return b == nil || b.ExternalIDs[keyFormer] == string(text)
	})
}

// link returns a link, nil if it does not exist.
func link(name string) (netlink.Link, error) {
	l, err := netlink.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("link %s: %w", name, err)
	}
	return l, nil
}

// portOf returns the interface of a port of the bridge.
func (m *machine) portOf(name string) *ovsdb.Interface {
	for p := range ovsdb.Rows[ovsdb.Port](m.view) {
		if p.Name == name && slices.Contains(m.bridge.Ports, p.UUID) && len(p.Interfaces) == 1 {
			return ovsdb.Get[ovsdb.Interface](m.view, p.Interfaces[0])
		}
	}
	return nil
}

// Adopt takes steps until the machine's network is on the bridge, and returns them as commands of
// ip(8) and ovs-vsctl(8). An *apply.Waiting names a device that does not exist yet. It is an error
// if no device can be the uplink.
func Adopt(ctx context.Context, db *ovsdb.Client, c Config) (did []string, err error) {
	return repeat(ctx, func() (string, error) { return adoptStep(ctx, db, c) })
}

// GiveBack takes steps until the machine's network is on the device again and the bridge is
// deleted.
func GiveBack(ctx context.Context, db *ovsdb.Client, c Config) (did []string, err error) {
	return repeat(ctx, func() (string, error) { return giveBackStep(ctx, db, c, false) })
}

// repeat takes steps until none is left, or one comes a second time: then another program reverts
// them, and repeat would not end. That is no error: the next Adopt continues.
func repeat(ctx context.Context, step func() (string, error)) (did []string, err error) {
	for ctx.Err() == nil {
		what, err := step()
		if err != nil || what == "" {
			return did, err
		}
		again := slices.Contains(did, what)
		if did = append(did, what); again {
			return did, nil
		}
	}
	return did, ctx.Err()
}

// adoptStep takes one step of Adopt, and returns it; empty if none is left.
func adoptStep(ctx context.Context, db *ovsdb.Client, c Config) (string, error) {
	m, foreign, err := readMachine(db, c)
	switch {
	case err != nil || foreign:
		return "", err
	case m.bridge == nil:
		return m.makeBridge(ctx)
	case m.formerErr != nil:
		return m.recordDefaults(ctx)
	case m.device == nil:
		return "", &apply.Waiting{Devices: []string{m.bridge.ExternalIDs[KeyUplink]}}
	case m.internal == nil:
		return "", &apply.Waiting{Devices: []string{c.Bridge}}
	}
	mv, err := m.remaining(m.device, m.internal)
	if err != nil {
		return "", err
	}
	steps := []func() (string, error){
		func() (string, error) { return m.setMAC(ctx) },
		func() (string, error) { return setUp(m.internal) },
		mv.addAddresses,
		m.disableUnsupported,
		func() (string, error) { return m.addPort(ctx) },
		m.prepare,
		mv.moveRoutes,
		mv.deleteAddresses,
		mv.deleteRoutes,
		m.disableKernelIPv6,
	}
	return firstStep(steps)
}

// giveBackStep takes one step of GiveBack, and returns it; empty if none is left. With keepBridge
// it leaves the bridge, without its port.
func giveBackStep(ctx context.Context, db *ovsdb.Client, c Config, keepBridge bool) (string, error) {
	m, _, err := readMachine(db, c)
	deleteBridge := func() (string, error) {
		if keepBridge {
			return "", nil
		}
		return m.deleteBridge(ctx)
	}
	switch {
	case err != nil || m.bridge == nil:
		return "", err
	case m.formerErr != nil:
		return m.recordDefaults(ctx)
	case m.device == nil || m.internal == nil:
		return deleteBridge()
	}
	// the bridge may be another program's, by a Foreign.GiveBack that was interrupted
	if m.config.Prefixes, err = addMasquerade(m.internal, m.config.Prefixes); err != nil {
		return "", err
	}
	mv, err := m.remaining(m.internal, m.device)
	if err != nil {
		return "", err
	}
	steps := []func() (string, error){
		m.restore,
		mv.addAddresses,
		mv.moveRoutes,
		mv.deleteAddresses,
		mv.deleteRoutes,
		func() (string, error) { return m.deletePort(ctx) },
		m.clearPromiscuous,
		deleteBridge,
	}
	return firstStep(steps)
}

// firstStep takes the first step that has something to do.
func firstStep(steps []func() (string, error)) (string, error) {
	for _, s := range steps {
		if what, err := s(); err != nil || what != "" {
			return what, err
		}
	}
	return "", nil
}

func joinSteps(list []string) string { return strings.Join(list, "; ") }
