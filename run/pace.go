package run

import "time"

// Pauses between two tries of something that fails.
const (
	firstPause = 10 * time.Millisecond
	lastPause  = time.Second
)

// pace tells when to try again what failed: soon at first, then at longer and longer intervals, up to a second. The zero
// value has no failure.
type pace struct {
	pause time.Duration // before the next try; 0 = the last one did not fail
	next  time.Time
}

// failed notes a try that failed.
func (p *pace) failed(now time.Time) {
	p.pause = min(max(2*p.pause, firstPause), lastPause)
	p.next = now.Add(p.pause)
}

// done notes one that did not.
func (p *pace) done() { *p = pace{} }

// wait is how long not to try yet; 0 = try.
func (p *pace) wait(now time.Time) time.Duration {
	if p.pause == 0 {
		return 0
	}
	return max(0, p.next.Sub(now))
}

// sooner gives the shorter of two times to wait, of which 0 is for ever.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
