package ofctl

import (
	"context"
	"fmt"
	"strings"

	"hairpin/datapath/flow"
	"hairpin/delta"
)

// Counts returns the packets that each of our flows has counted up to now.
func (t *Target) Counts(ctx context.Context) (map[flow.Key]uint64, error) {
	// The datapath's counts reach the flows with the next revalidation. The first to end may have
	// read some of them before this call.
	for range 2 {
		if _, err := t.vswitchd(ctx, "revalidator/wait"); err != nil {
			return nil, fmt.Errorf("counters of %s: %w", t.cfg.Bridge, err)
		}
	}
	r, err := t.rows(ctx)
	if err != nil {
		return nil, err
	}
	counts := map[flow.Key]uint64{}
	for bridge, numbers := range r.numbers {
		text, err := t.ofctl(ctx, "", "--no-names", "dump-flows", t.remote(bridge), ours())
		if err != nil {
			return nil, fmt.Errorf("counters of %s: %w", bridge, err)
		}
		name := naming(numbers)
		for line := range strings.Lines(text) {
			f, n, err := flow.ParseFlow(line)
			if f == nil || err != nil {
				continue // the heading, or nothing of ours
			}
			k := f.WithPorts(name).Key
			if bridge != t.cfg.Bridge {
				k.Bridge = bridge
			}
			counts[k] = n.Packets
		}
	}
	return counts, nil
}

// Counters returns flows, groups and ports of the gateway bridge, and of those of ours, with what
// they have counted, as ovs-ofctl prints them: for people that trace where packets are lost.
func (t *Target) Counters(ctx context.Context) (string, error) {
	r, err := t.rows(ctx)
	if err != nil {
		return "", err
	}
	out := ""
	for _, bridge := range delta.Keys(r.numbers) {
		out += "bridge " + bridge + "\n"
		for _, what := range []string{"dump-flows", "dump-groups", "dump-ports", "dump-tables"} {
			text, err := t.ofctl(ctx, "", "--names", what, t.remote(bridge))
			if err != nil {
				return out, fmt.Errorf("%s of %s: %w", what, bridge, err)
			}
			out += text
		}
	}
	return out, nil
}
