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
}

// failed notes a try that failed.
func (p *pace) failed() {
	p.pause = min(max(2*p.pause, firstPause), lastPause)
}

// done notes one that did not.
func (p *pace) done() { *p = pace{} }

// sooner gives the shorter of two times to wait, of which 0 is for ever.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}
