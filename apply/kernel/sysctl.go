package kernel

import (
	"context"
	"maps"
	"os"
	"time"

	"hairpin/apply/inside"
)

// sysctlInterval is between two looks at the sysctls that are wanted. The kernel announces changes of few of them; a look
// costs some microseconds each.
const sysctlInterval = 300 * time.Millisecond

// watchSysctls tells when a wanted sysctl has another value than at the last look, until ctx ends.
func (t *Target) watchSysctls(ctx context.Context) {
	tick := time.NewTicker(sysctlInterval)
	defer tick.Stop()
	var last map[string]string
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		want := t.config.Wanted().Sysctls
		if len(want) == 0 {
			continue
		}
		now := make(map[string]string, len(want))
		err := inside.Do(t.config.NetNS, func() error {
			for path := range want {
				if b, err := os.ReadFile(sysctlFile(path)); err == nil { // else its link is gone, which is told otherwise
					now[path] = string(b)
				}
			}
			return nil
		})
		if err != nil {
			continue // the namespace is gone
		}
		if last != nil && !maps.Equal(now, last) {
			t.notice.Tell()
		}
		last = now
	}
}
