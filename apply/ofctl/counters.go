package ofctl

import (
	"context"
	"fmt"
	"strings"

	"hairpin/claims"
	"hairpin/datapath/flow"
	"hairpin/delta"
)

// Counts returns the packet counts of Hairpin's flows.
func (t *Target) Counts(ctx context.Context) (map[flow.Key]uint64, error) {
	// Revalidation copies the datapath's counts to the flows. The first may have read some before
	// this call.
	for range 2 {
		if _, err := t.vswitchd(ctx, "revalidator/wait"); err != nil {
			return nil, fmt.Errorf("counters of %s: %w", t.cfg.Bridge, err)
		}
	}
	return t.counts(ctx, ours())
}

// FeatureCounts returns the packet counts of the flows of one feature. The latest packets of the
// datapath may not be counted yet.
func (t *Target) FeatureCounts(ctx context.Context, feature uint32) (map[flow.Key]uint64, error) {
	cookie := uint64(feature)<<32 | claims.Cookie
	return t.counts(ctx, fmt.Sprintf("cookie=0x%x/0x%x", cookie, uint64(1<<32-1)<<32|claims.CookieMask))
}

// counts returns the packet counts of the flows with a cookie, in ovs-ofctl's syntax.
func (t *Target) counts(ctx context.Context, cookie string) (map[flow.Key]uint64, error) {
	r, err := t.rows(ctx)
	if err != nil {
		return nil, err
	}
	counts := map[flow.Key]uint64{}
	for bridge, numbers := range r.numbers {
		text, err := t.ofctl(ctx, "", "--no-names", "dump-flows", t.remote(bridge), cookie)
		if err != nil {
			return nil, fmt.Errorf("counters of %s: %w", bridge, err)
		}
		name := naming(numbers)
		for line := range strings.Lines(text) {
			f, n, err := flow.ParseFlow(line)
			if f == nil || err != nil {
				continue // the heading, or not Hairpin's
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

// Counters returns the flows, groups and ports of Hairpin's bridges and of the gateway bridge, with
// their counters, as ovs-ofctl prints them. People use it to find where packets are lost.
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
