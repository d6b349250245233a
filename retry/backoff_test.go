package retry_test

import (
	"testing"
	"time"

	"hairpin/retry"
)

// TestBackoff: work that keeps failing is finally tried once a minute. A success resets the pause.
func TestBackoff(t *testing.T) {
	b := retry.Backoff{Min: time.Second, Max: time.Minute}
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

// TestBackoffZero: the pauses of a zero Backoff, of one with a first pause only, and with jitter.
func TestBackoffZero(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		b           retry.Backoff
		first, last time.Duration
	}{
		{retry.Backoff{}, retry.First, retry.Last},
		{retry.Backoff{Max: 40 * time.Millisecond}, retry.First, 40 * time.Millisecond},
		{retry.Backoff{Min: 5 * time.Second}, 5 * time.Second, 5 * time.Second},
		{retry.Backoff{Jitter: true}, retry.First, retry.Last},
	} {
		b := c.b
		if b.Pause() != 0 || !b.Due(now) {
			t.Errorf("%+v: has a pause before a failure", c.b)
		}
		for i := range 20 {
			b.Failed(now)
			want, least := min(c.first<<i, c.last), min(c.first<<i, c.last)
			if b.Jitter {
				least /= 2
			}
			if w := b.Wait(now); b.Pause() != want || w < least || w > want || b.Due(now) || !b.Due(now.Add(want)) {
				t.Errorf("%+v: failure %d: pause %s, wait %s, want %s", c.b, i, b.Pause(), w, want)
			}
		}
	}
}
