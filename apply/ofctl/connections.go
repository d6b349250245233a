package ofctl

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"hairpin/claims"
	"hairpin/ovsdb"
)

// OwnConnections tells whether Open vSwitch has a conntrack of its own: the userspace datapath does, the kernel datapath
// uses the kernel's.
func (t *Target) OwnConnections(ctx context.Context) (bool, error) {
	datapath, err := t.datapath(ctx)
	return strings.HasPrefix(datapath, "netdev@"), err
}

// Connections lists the entries of Open vSwitch's own conntrack in which Services are translated, a line each, as
// `ovs-appctl dpctl/dump-conntrack` does: those of OVN's zones, and of the zones between host and gateway router.
//
// It leaves out the zone of the wire, where no Service is translated: ovs-vswitchd 3.5.0 gets SIGSEGV when it lists that one
// (or all) on a node with traffic, most times; 990 listings of the other zones did it no harm.
func (t *Target) Connections(ctx context.Context) (string, error) {
	datapath, err := t.datapath(ctx)
	if err != nil {
		return "", err
	}
	zones, err := t.zones(ctx)
	if err != nil {
		return "", fmt.Errorf("conntrack zones of OVN: %w", err)
	}
	var list strings.Builder
	for _, zone := range append(zones, strconv.Itoa(claims.ZoneHost), strconv.Itoa(claims.ZoneReturn)) {
		text, err := t.vswitchd(ctx, "dpctl/dump-conntrack", datapath, "zone="+zone)
		if err != nil {
			return "", err
		}
		list.WriteString(text)
	}
	return list.String(), nil
}

// zones gives the conntrack zones that ovn-controller uses; it writes them down on the integration bridge.
func (t *Target) zones(ctx context.Context) ([]string, error) {
	results, err := t.db.Transact(ctx, ovsdb.Select[ovsdb.Bridge]("name", "external_ids"))
	if err != nil {
		return nil, err
	}
	bridges, err := ovsdb.Selected[ovsdb.Bridge](results[0])
	if err != nil {
		return nil, err
	}
	var zones []string
	for _, b := range bridges {
		for key, zone := range b.ExternalIDs {
			if b.Name == claims.IntegrationBridge && strings.HasPrefix(key, "ct-zone-") {
				zones = append(zones, zone)
			}
		}
	}
	slices.Sort(zones)
	return slices.Compact(zones), nil
}

// EndConnection deletes an entry of Open vSwitch's own conntrack, in the words of dpctl/flush-conntrack.
func (t *Target) EndConnection(ctx context.Context, entry ...string) error {
	datapath, err := t.datapath(ctx)
	if err != nil || datapath == "" {
		return err
	}
	_, err = t.vswitchd(ctx, "dpctl/flush-conntrack", append([]string{datapath}, entry...)...)
	return err
}

// datapath names the datapath that the bridges are in; empty while there is none.
func (t *Target) datapath(ctx context.Context) (string, error) {
	list, err := t.vswitchd(ctx, "dpif/show")
	if err != nil {
		return "", fmt.Errorf("find the datapath: %w", err)
	}
	for line := range strings.Lines(list) { // "system@ovs-system: hit:… missed:…"
		if name, _, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && strings.Contains(name, "@") {
			return name, nil
		}
	}
	return "", nil
}
