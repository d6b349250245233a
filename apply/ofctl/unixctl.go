package ofctl

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"

	"hairpin/apply/late"
	"hairpin/apply/ofctl/vsctl"
	"hairpin/apply/unixctl"
	"hairpin/claims"
	"hairpin/ovsdb"
)

// Ask sends ovs-vswitchd a command of ovs-appctl, and returns its result.
func (t *Target) Ask(ctx context.Context, method string, params ...string) (string, error) {
	return t.vswitchd(ctx, method, params...)
}

// vswitchd sends a command to ovs-vswitchd.
func (t *Target) vswitchd(ctx context.Context, method string, params ...string) (string, error) {
	late.For(ctx, vswitchdName)
	return unixctl.Ask(ctx, t.cfg.Path(t.cfg.RunDir), vswitchdName, method, params...)
}

// Forget deletes the megaflows for packets from a new port and to its addresses. A new port can
// have the number in the datapath, and the addresses, of a port that was removed a moment ago.
// Until Open vSwitch has revalidated its megaflows, its decisions about the former port would apply
// to the new one.
func (t *Target) Forget(ctx context.Context, port string, addresses []netip.Addr) error {
	filters := []string{"in_port=" + port}
	for _, a := range addresses {
		to := "ip,nw_dst="
		if a.Is6() {
			to = "ipv6,ipv6_dst="
		}
		filters = append(filters, to+a.String())
	}
	inUserspace, err := t.inUserspace()
	if err != nil {
		return err
	}
	datapath := dpctlName(inUserspace)
	for _, filter := range filters {
		list, err := t.vswitchd(ctx, "dpctl/dump-flows", "-m", datapath, "filter="+filter)
		if err != nil {
			return err
		}
		for line := range strings.Lines(list) {
			id, _, _ := strings.Cut(line, ",")
			if !strings.HasPrefix(id, "ufid:") {
				continue
			}
			// Open vSwitch may have deleted it itself, or two filters have found it.
			_, err := t.vswitchd(ctx, "dpctl/del-flow", datapath, id)
			if err != nil && !strings.Contains(err.Error(), "No such file") {
				return err
			}
		}
	}
	return nil
}

func (t *Target) pidFile() string { return filepath.Join(t.cfg.RunDir, "ovs-vswitchd.pid") }

// inUserspace reports whether the integration bridge is on the userspace datapath.
func (t *Target) inUserspace() (bool, error) {
	b := ovsdb.BridgeNamed(t.db.View(), claims.IntegrationBridge)
	if b == nil {
		return false, fmt.Errorf("Open vSwitch has no bridge %s", claims.IntegrationBridge)
	}
	return vsctl.InUserspace(b), nil
}

// dpctlName returns the name of a datapath in commands of dpctl.
func dpctlName(inUserspace bool) string {
	name := vsctl.DatapathName(inUserspace)
	return name + "@ovs-" + name
}
