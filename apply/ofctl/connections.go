package ofctl

import (
	"context"
	"fmt"
	"strings"
)

// OwnConnections tells whether Open vSwitch has a conntrack of its own: the userspace datapath does, the kernel datapath
// uses the kernel's.
func (t *Target) OwnConnections(ctx context.Context) (bool, error) {
	datapath, err := t.datapath(ctx)
	return strings.HasPrefix(datapath, "netdev@"), err
}

// Connections lists the entries of Open vSwitch's own conntrack, a line each, as `ovs-appctl dpctl/dump-conntrack` does.
func (t *Target) Connections(ctx context.Context) (string, error) {
	datapath, err := t.datapath(ctx)
	if err != nil {
		return "", err
	}
	return t.vswitchd(ctx, "dpctl/dump-conntrack", datapath)
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
