package targets

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

// TestSlowAnswer checks a machine so slow that reporting a version takes longer than the timeout of
// the first tries.
func TestSlowAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const needs = 18 * time.Second
		version := func(ctx context.Context) (string, error) {
			select {
			case <-ctx.Done():
				return "", ctx.Err()
			case <-time.After(needs):
				return "1.0.6", nil
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		begin := time.Now()
		var set Set
		if found, err := set.ask(ctx, slog.New(slog.DiscardHandler), "nft", version); err != nil || found != "1.0.6" {
			t.Errorf("%q, %v", found, err)
		}
		if took := time.Since(begin); took > 4*needs {
			t.Errorf("it took %v", took)
		}
		if err := set.VersionError(); err != nil {
			t.Error(err)
		}
	})
}
