package ofctl

import (
	"context"
	"fmt"

	"hairpin/claims"
	"hairpin/datapath/flow"
	"hairpin/delta"
	"hairpin/openflow"
)

// Counts returns the packet counts of Hairpin's flows.
func (t *Target) Counts(ctx context.Context) (map[flow.Key]uint64, error) {
	// A revalidation copies the datapath's counts to the flows. The first that ends may have
	// read some counts before this call, the second has not.
	for range 2 {
		if _, err := t.vswitchd(ctx, "revalidator/wait"); err != nil {
			return nil, fmt.Errorf("counters of %s: %w", t.cfg.Bridge, err)
		}
	}
	return t.counts(ctx, claims.Cookie, claims.CookieMask)
}

// FeatureCounts returns the packet counts of the flows of one feature. The latest packets of the
// datapath may not be counted yet.
func (t *Target) FeatureCounts(ctx context.Context, feature uint32) (map[flow.Key]uint64, error) {
	return t.counts(ctx, uint64(feature)<<32|claims.Cookie, uint64(1<<32-1)<<32|claims.CookieMask)
}

// counts returns the packet counts of the flows that have the cookie in the bits of a mask.
func (t *Target) counts(ctx context.Context, cookie, mask uint64) (map[flow.Key]uint64, error) {
	r, err := t.rows(ctx)
	if err != nil {
		return nil, err
	}
	counts := map[flow.Key]uint64{}
	for bridge, numbers := range r.Numbers {
		name := naming(numbers)
		if err := t.eachFlow(ctx, bridge, cookie, mask, func(x *openflow.InstalledFlow) {
			if f, known := flow.Decode(x); known {
				k := f.WithPorts(name).Key
				k.Bridge = t.vsctl.Key(bridge)
				counts[k] = x.Packets
			}
		}); err != nil {
			return nil, err
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
	for _, bridge := range delta.Keys(r.Numbers) {
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
