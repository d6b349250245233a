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
func (t *bridge) mapOption(ctx context.Context, flows map[flow.ID]*flow.Flow) error {
	if !namesOption(flows) {
		return nil
	}
	life, err := t.Incarnation()
	if err == nil && life == t.options {
		return nil
	}
	if !t.cfg.reachable(ctx, t.name) {
		return errAbsent
	}
	text, err := t.ofctl(ctx, "", "dump-tlv-map", t.remote(t.name))
	if field := flow.TunnelOption[strings.LastIndex(flow.TunnelOption, ">")+1:]; err == nil &&
		!strings.Contains(text, field) {
		_, err = t.ofctl(ctx, "", "add-tlv-map", t.remote(t.name), flow.TunnelOption)
	}
	if err != nil {
		return fmt.Errorf("Geneve option of %s: %w", t.name, err)
	}
	t.options = life
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
