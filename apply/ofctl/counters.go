package ofctl

import (
	"context"
	"fmt"
	"strings"

	"hairpin/datapath/flow"
)

// Counts returns the packets that each of our flows has counted up to now.
func (t *Target) Counts(ctx context.Context) (map[flow.Key]uint64, error) {
	// The datapath's counts reach the flows with the next revalidation. The first to end may have read some of them before this call.
	for range 2 {
		if _, err := t.vswitchd(ctx, "revalidator/wait"); err != nil {
			return nil, fmt.Errorf("counters of %s: %w", t.cfg.Bridge, err)
		}
	}
	r, err := t.rows(ctx)
	if err != nil {
		return nil, err
	}
	names := map[string]string{}
	for name, number := range r.numbers {
		names[number] = name
	}
	text, err := t.ofctl(ctx, "", "--no-names", "dump-flows", t.socket(), ours())
	if err != nil {
		return nil, fmt.Errorf("counters of %s: %w", t.cfg.Bridge, err)
	}
	counts := map[flow.Key]uint64{}
	for line := range strings.Lines(text) {
		f, n, err := flow.ParseFlow(line)
		if f == nil || err != nil {
			continue // the heading, or nothing of ours
		}
		f = f.WithPorts(func(number string) string {
			if name, ok := names[number]; ok {
				return name
			}
			return number
		})
		counts[f.Key] = n.Packets
	}
	return counts, nil
}

// Counters returns the gateway bridge's flows and ports with what they have counted, as ovs-ofctl prints them: for people
// that trace where packets are lost.
func (t *Target) Counters(ctx context.Context) (string, error) {
	out := ""
	for _, what := range []string{"dump-flows", "dump-ports", "dump-tables"} {
		text, err := t.ofctl(ctx, "", "--names", what, t.socket())
		if err != nil {
			return out, fmt.Errorf("%s of %s: %w", what, t.cfg.Bridge, err)
		}
		out += text
	}
	return out, nil
}
