package ofctl

import (
	"context"
	"fmt"
)

// Counters gives the gateway bridge's flows and ports with what they have counted, as ovs-ofctl prints them: for people
// who look for where packets stay.
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
