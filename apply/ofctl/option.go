package ofctl

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"hairpin/datapath/flow"
)

// mapOption maps OVN's Geneve option on the bridge, if flows use it. Open vSwitch keeps options
// that flows use, and loses them when its process ends.
func (b *bridge) mapOption(ctx context.Context, flows map[flow.ID]*flow.Flow) error {
	if !namesOption(flows) {
		return nil
	}
	instance, err := b.Instance()
	if err == nil && instance == b.mapped {
		return nil
	}
	if !b.cfg.reachable(ctx, b.name) {
		return errAbsent
	}
	field := flow.TunnelOption[strings.LastIndex(flow.TunnelOption, ">")+1:] // of "{class=…,…}->tun_metadata0"
	text, err := b.ofctl(ctx, "", "dump-tlv-map", b.remote(b.name))
	if err == nil && !strings.Contains(text, field) {
		_, err = b.ofctl(ctx, "", "add-tlv-map", b.remote(b.name), flow.TunnelOption)
	}
	if err != nil {
		return fmt.Errorf("Geneve option of %s: %w", b.name, err)
	}
	b.mapped = instance
	return nil
}

func namesOption(flows map[flow.ID]*flow.Flow) bool {
	for _, f := range flows {
		if f.Match.Tunnel != (flow.Tunnel{}) ||
			slices.ContainsFunc(f.Actions, func(a flow.Action) bool { _, is := a.(flow.SetTunnel); return is }) {
			return true
		}
	}
	return false
}
