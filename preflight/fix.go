package preflight

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"hairpin/cluster"
	"hairpin/config"
	"hairpin/hostnet"
	"hairpin/hostnet/uplink"
	"hairpin/ovsdb"
	"hairpin/report"
	"hairpin/targets"
)

const (
	agentTimeout   = 3 * time.Second  // for an agent to end
	networkTimeout = 30 * time.Second // to return the network of a bridge to its device
)

// Values of fixOrder. The bridge comes before the profiles that create it at every boot: after a
// boot in between, the machine still has a network. It comes before the addresses, which
// hostnet.Advertise adds to it while it exists.
const (
	bridgeOrder = iota
	profileOrder
	addressOrder
)

// applyFixes applies the fixes of the findings, and prints each change as the equivalent command.
// It stops at the first failure.
func applyFixes(ctx context.Context, w io.Writer, c config.Config, list []Finding) error {
	list = slices.DeleteFunc(slices.Clone(list), func(f Finding) bool { return f.fix == nil })
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "nothing that --fix can repair")
		return err
	}
	slices.SortStableFunc(list, func(a, b Finding) int { return a.fixOrder - b.fixOrder })
	soon, cancel := context.WithTimeout(ctx, agentTimeout)
	release, err := targets.StandBy(soon, c, slog.New(slog.DiscardHandler))
	cancel()
	if errors.Is(err, context.DeadlineExceeded) {
		return errors.New("an agent of Hairpin works on this node: nothing was changed")
	}
	if err != nil {
		return err
	}
	defer release()
	for _, f := range list {
		did, err := f.fix(ctx)
		for _, command := range did {
			if _, err := fmt.Fprintf(w, "# %s\n", report.Plain(command, "")); err != nil {
				return err
			}
		}
		if err != nil {
			return fmt.Errorf("%s: %w", f.Object, err)
		}
	}
	return nil
}

// addBridgeFix adds a fix to the finding about a gateway bridge, if the mode has no uplink: the fix
// removes the bridge. If that is not possible, addBridgeFix adds the reason.
func addBridgeFix(m *machine, db *ovsdb.Client, list []Finding) error {
	if cluster.ModeNamed(m.Cluster.Gateway.Mode).Uplink {
		return nil
	}
	f, err := foreignBridge(db, m)
	if err != nil || f == nil {
		return err
	}
	for i := range list {
		switch {
		case list[i].Object != bridgeObject(f.Bridge, f.Device):
		case f.Refusal != nil:
			list[i].Remedy += fmt.Sprintf(" (--fix does not: %v)", f.Refusal)
		default:
			list[i].Fix = f.Commands()
			list[i].fix = func(ctx context.Context) ([]string, error) { return returnNetwork(ctx, m) }
			list[i].fixOrder = bridgeOrder
		}
	}
	return nil
}

// foreignBridge finds a gateway bridge that another program made. Its Refusal is set if
// NetworkManager would make the bridge again, or could not configure the device after a boot.
func foreignBridge(db *ovsdb.Client, m *machine) (*uplink.Foreign, error) {
	f, err := uplink.FindForeign(db, hostnet.UplinkConfig(m.Config))
	if err != nil || f == nil || f.Refusal != nil || !f.NetworkManager {
		return f, err
	}
	l, err := netlink.LinkByName(f.Device)
	if err != nil {
		return nil, fmt.Errorf("link %s: %w", f.Device, err)
	}
	profiles, err := m.findProfiles(f.Bridge)
	if err != nil {
		return nil, err
	}
	if slices.Contains([]string{"bond", "team", "vlan", "bridge"}, l.Type()) {
		f.Refusal = fmt.Errorf("NetworkManager made %s itself, a %s", f.Device, l.Type())
	} else {
		f.Refusal = profiles.refusal(f.Bridge, f.Device)
	}
	return f, nil
}

// withForeign calls do with another program's gateway bridge, if Open vSwitch runs and has one.
func withForeign(ctx context.Context, m *machine, do func(*uplink.Foreign) error) error {
	db, err := openSwitch(ctx, m)
	if err != nil || db == nil {
		return err
	}
	defer db.Close()
	f, err := foreignBridge(db, m)
	if err != nil || f == nil {
		return err
	}
	return do(f)
}

// returnNetwork removes the bridge: its device gets back the addresses and routes. Advertised
// addresses that were on the bridge are added where the agent expects them.
func returnNetwork(ctx context.Context, m *machine) (did []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, networkTimeout)
	defer cancel()
	err = withForeign(ctx, m, func(f *uplink.Foreign) (err error) {
		if did, err = f.GiveBack(ctx); err != nil {
			return err
		}
		added, err := hostnet.Advertise(m.Cluster)
		did = append(did, added...)
		return err
	})
	return did, err
}
