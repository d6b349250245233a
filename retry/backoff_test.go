package retry_test

import (
	"testing"
	"time"

	"hairpin/retry"
)

// TestBackoff: what goes on failing is tried once a minute in the end, and what succeeded begins anew.
func TestBackoff(t *testing.T) {
	var b retry.Backoff
	now := time.Unix(1000, 0)
	if w := b.Wait(now); w != 0 {
		t.Errorf("before a failure it waits %s", w)
	}
	tries := 0
	for begin := now; now.Sub(begin) < time.Hour; tries++ {
		b.Failed(now)
		now = now.Add(b.Wait(now))
	}
	if tries < 60 || tries > 70 {
		t.Errorf("%d tries in an hour", tries)
	}
	b.Done()
	b.Failed(now)
	if w := b.Wait(now); w != time.Second {
		t.Errorf("after a success it waits %s", w)
	}
}
