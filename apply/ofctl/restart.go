package ofctl

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"hairpin/apply/ofctl/vsctl"
	"hairpin/claims"
	"hairpin/openflow"
	"hairpin/ovsdb"
)

// Keys of Open_vSwitch for restarts of ovs-vswitchd.
const (
	// keyWait, in other_config: ovs-vswitchd starts without forwarding packets, until the key is
	// removed (ovs-vswitchd.conf.db(5)). After that it ignores the key until its next start.
	keyWait = "flow-restore-wait"
	// keyRestored, in external_ids: the ovs-vswitchd instance of the last Release.
	keyRestored = "hairpin-restored"
	// keyRemote, in external_ids: the address of the switch for ovn-controller (ovn-controller(8)).
	keyRemote = "ovn-bridge-remote"
	// keyPatience, in external_ids: how many milliseconds ovn-controller keeps the flows of br-int
	// after it connects (ovn-controller(8)). Without it nothing is forwarded from its start until
	// it has computed its own flows. Removing the key ends a wait at once.
	keyPatience = "ovn-ofctrl-wait-before-clear"
	// keyNudged, in external_ids of br-int's Interface: the time of the last Nudge.
	keyNudged = "hairpin-stirred"
)

// Version returns the version of the running ovs-vswitchd, such as "3.5.0".
func (t *Target) Version(ctx context.Context) (string, error) {
	text, err := t.vswitchd(ctx, "version")
	if err != nil {
		return "", err
	}
	f := strings.Fields(text) // ovs-vswitchd (Open vSwitch) 3.5.0
	if len(f) < 4 {
		return "", fmt.Errorf("ovs-vswitchd reports the version %q, without a number", text)
	}
	return f[3], nil
}

// Instance identifies an instance of ovs-vswitchd: the text of its pid file with the file's
// modification time, because a process in a container gets the same pid again.
func (t *Target) Instance() (string, error) {
	file := t.cfg.Path(t.pidFile())
	info, err := os.Stat(file)
	if err != nil {
		return "", fmt.Errorf("ovs-vswitchd does not run: %w", err)
	}
	pid, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("ovs-vswitchd does not run: %w", err)
	}
	return fmt.Sprintf("%s-%d", strings.TrimSpace(string(pid)), info.ModTime().UnixNano()), nil
}

// Ready fails until the running ovs-vswitchd accepts flows for the gateway bridge and all of
// Hairpin's bridges.
func (t *Target) Ready(ctx context.Context) error {
	for bridge := range t.vsctl.Read(t.db.View()).Numbers {
		if err := t.Listening(ctx, bridge); err != nil {
			return err
		}
	}
	return t.Listening(ctx, t.cfg.Bridge)
}

// Listening fails until the running ovs-vswitchd accepts flows for a bridge. After ovs-vswitchd was
// killed, its sockets live for some milliseconds with its last thread. They are older than the new
// instance's pid file.
func (t *Target) Listening(ctx context.Context, bridge string) error {
	socket := t.cfg.Path(t.cfg.socket(bridge))
	made, err := os.Stat(socket)
	if err != nil {
		return fmt.Errorf("bridge %s: %w", bridge, err)
	}
	pid, err := os.Stat(t.cfg.Path(t.pidFile()))
	if err != nil {
		return fmt.Errorf("ovs-vswitchd does not run: %w", err)
	}
	if made.ModTime().Before(pid.ModTime()) {
		return fmt.Errorf("ovs-vswitchd has not opened bridge %s yet", bridge)
	}
	if !t.cfg.reachable(ctx, bridge) {
		return fmt.Errorf("bridge %s does not accept OpenFlow connections", bridge)
	}
	return nil
}

// Restarted reports whether Release was not called yet for the running ovs-vswitchd: its ports are
// new to the kernel, its flows are gone, and it may be waiting.
func (t *Target) Restarted(ctx context.Context) (bool, error) {
	instance, err := t.Instance()
	if err != nil {
		return false, err
	}
	row, err := t.row(ctx)
	if err != nil {
		return false, err
	}
	return row.ExternalIDs[keyRestored] != instance, nil
}

// Release makes an ovs-vswitchd that was started with flow-restore-wait forward packets, once
// addresses and flows are restored. Unless patience is 0, it also does what Keep does, so that the
// next ovs-vswitchd waits, too.
//
// The owner of the key must make sure that Release is called after each start of ovs-vswitchd:
// until then no bridge of the node forwards packets.
func (t *Target) Release(ctx context.Context, patience time.Duration) error {
	instance, err := t.Instance()
	if err != nil {
		return err
	}
	if err := t.StopWaiting(ctx); err != nil {
		return err
	}
	ops := vsctl.KeyOps("Open_vSwitch", "", map[string]string{keyRestored: instance}, nil)
	if patience > 0 {
		ops = slices.Concat(ops, t.keepOps(ctx, patience))
	}
	if _, err := t.db.Transact(ctx, ops...); err != nil {
		return fmt.Errorf("record the restored ovs-vswitchd: %w", err)
	}
	return nil
}

// HasPipeline reports whether a bridge has flows in another table than the first. All plans of a
// gateway bridge have.
func (t *Target) HasPipeline(ctx context.Context, bridge string) (bool, error) {
	tables, err := t.tables(ctx, bridge)
	for number, x := range tables {
		if number > 0 && x.Flows > 0 {
			return true, err
		}
	}
	return false, err
}

// AddTemporary adds flows, in ovs-ofctl's syntax, that Open vSwitch removes after a time in whole
// seconds. Like learned flows, Read omits them.
func (t *Target) AddTemporary(ctx context.Context, bridge string, flows []string, d time.Duration) error {
	var text strings.Builder
	for _, f := range flows {
		fmt.Fprintf(&text, "cookie=%#x,hard_timeout=%d,%s\n", claims.CookieLearned, int(d.Seconds()), f)
	}
	if _, err := t.ofctl(ctx, text.String(), "add-flows", t.remote(bridge), "-"); err != nil {
		return fmt.Errorf("add temporary flows to %s: %w", bridge, err)
	}
	return nil
}

// Keeps reports whether the next ovs-vswitchd will wait for Release, and the next ovn-controller
// for patience.
func (t *Target) Keeps(patience time.Duration) bool {
	row := ovsdb.First[ovsdb.OpenVSwitch](t.db.View())
	return row != nil && row.OtherConfig[keyWait] == "true" && row.ExternalIDs[keyPatience] == millis(patience)
}

// Keep makes the next ovs-vswitchd wait for Release, and the next ovn-controller for patience, so
// that they keep the node's flows. It sets ovn-controller's key only once br-int has flows: with an
// empty br-int, ovn-controller must not wait.
func (t *Target) Keep(ctx context.Context, patience time.Duration) error {
	if _, err := t.db.Transact(ctx, t.keepOps(ctx, patience)...); err != nil {
		return fmt.Errorf("make the next start of Open vSwitch or of ovn-controller wait: %w", err)
	}
	return nil
}

func (t *Target) keepOps(ctx context.Context, patience time.Duration) []ovsdb.Op {
	wait := ovsdb.Mutate("Open_vSwitch", ovsdb.SetKeys("other_config", map[string]string{keyWait: "true"})...).All()
	tables, _ := t.tables(ctx, claims.IntegrationBridge) // none if the bridge does not exist yet
	if !slices.ContainsFunc(slices.Collect(maps.Values(tables)), func(x openflow.Table) bool { return x.Flows > 0 }) {
		return []ovsdb.Op{wait}
	}
	return append(vsctl.KeyOps("Open_vSwitch", "", map[string]string{keyPatience: millis(patience)}, nil), wait)
}

func millis(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// StopWaiting removes Keep's keys. It waits until ovs-vswitchd has seen the change.
func (t *Target) StopWaiting(ctx context.Context) error {
	row, err := t.row(ctx)
	if err != nil {
		return err
	}
	ops := append(vsctl.KeyOps("Open_vSwitch", "", nil, []string{keyPatience}),
		ovsdb.Mutate("Open_vSwitch", ovsdb.DeleteFrom("other_config", []string{keyWait}),
			ovsdb.Add("next_cfg", 1)).Row(row.UUID))
	if _, err := t.db.Transact(ctx, ops...); err != nil {
		return fmt.Errorf("remove flow-restore-wait: %w", err)
	}
	if err := t.carriedOut(ctx); err != nil {
		return fmt.Errorf("wait until ovs-vswitchd stops waiting: %w", err)
	}
	return nil
}

// ReconnectController makes ovn-controller reconnect to br-int at once, by writing another spelling
// of the same address. After a restart of ovs-vswitchd it would reconnect by itself, but only after
// its backoff of one second (two, four … the longer the switch was away). It removes keyPatience,
// because the bridge is empty: there are no flows to keep.
func (t *Target) ReconnectController(ctx context.Context) error {
	row, err := t.row(ctx)
	if err != nil {
		return err
	}
	file := claims.IntegrationBridge + ".mgmt"
	remote := "unix:" + t.cfg.RunDir + "/./" + file // differs from ovn-controller's default without the key
	if row.ExternalIDs[keyRemote] == remote {
		remote = "unix:" + filepath.Join(t.cfg.RunDir, file)
	}
	if _, err := t.db.Transact(ctx, vsctl.KeyOps("Open_vSwitch", "", map[string]string{keyRemote: remote},
		[]string{keyPatience})...); err != nil {
		return fmt.Errorf("reconnect ovn-controller: %w", err)
	}
	return nil
}

// Nudge writes a value that ovn-controller receives and need not act on. (Any change of
// Open_vSwitch makes it recompute all flows.) If ovn-controller received nothing for a while after
// connecting, it considers the connection unstable. After its loss it then doubles its backoff, up
// to 8 seconds instead of one (last_activity in Open vSwitch's lib/reconnect.c).
func (t *Target) Nudge(ctx context.Context) error {
	i := ovsdb.Find(t.db.View(), func(i *ovsdb.Interface) bool { return i.Name == claims.IntegrationBridge })
	if i == nil {
		return nil
	}
	now := time.Now().UTC().Format(time.RFC3339)
	if _, err := t.db.Transact(ctx, vsctl.KeyOps("Interface", i.UUID, map[string]string{keyNudged: now},
		nil)...); err != nil {
		return fmt.Errorf("write to Open vSwitch: %w", err)
	}
	return nil
}

// row returns the single row of Open_vSwitch.
func (t *Target) row(ctx context.Context) (*ovsdb.OpenVSwitch, error) {
	if err := t.db.WaitFor(ctx, func(ovsdb.View) bool { return t.db.Connected() }); err != nil {
		return nil, err
	}
	row := ovsdb.First[ovsdb.OpenVSwitch](t.db.View())
	if row == nil {
		return nil, fmt.Errorf("the database of Open vSwitch was not initialised (ovs-vsctl init)")
	}
	return row, nil
}
