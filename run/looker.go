package run

import (
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"sync/atomic"
	"time"

	"hairpin/apply"
	"hairpin/config"
	"hairpin/datapath/nft"
	"hairpin/ovsdb"
	"hairpin/report"
)

// looker finds out what the host is and takes its uplink into the gateway bridge, beside the agent's loop: Open vSwitch may
// not answer, and others may change the host all the time.
type looker struct {
	node   string
	config config.Config
	ovs    *ovsdb.Client
	nft    apply.Target[nft.State, nft.Delta]
	inbox  *inbox
	log    *slog.Logger

	wake   chan struct{} // has a value when something may have changed
	urgent atomic.Bool   // somebody waits for the result
	calm   calm
	uplink adoption
	report atomic.Pointer[report.Part] // of the uplink; nil when it is not ours to move
	last   sight
}

// sight is what a look has found.
type sight struct {
	begin     time.Time
	found     findings
	err       error // why found is not up to date
	uplinkErr error // why the machine's network is not on the bridge
	moved     bool  // the look itself brought something there
	contested bool  // others undo it, again and again
}

// want asks for a look, now or when the pause is over.
func (l *looker) want() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// wantNow asks for a look without a pause, and for its result even if that is no news.
func (l *looker) wantNow() {
	l.urgent.Store(true)
	l.want()
}

// run looks whenever it is wanted, until ctx ends. What failed is tried again.
func (l *looker) run(ctx context.Context) {
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		case <-again.C:
		}
		if !l.urgent.Load() {
			l.rest(ctx, l.calm.pause(time.Now()))
		}
		urgent := l.urgent.Swap(false)
		s, ok := l.look(ctx)
		l.calm.done(time.Now())
		if wait := l.uplink.again(time.Now()); wait > 0 {
			again.Reset(wait)
		}
		if !ok || !urgent && !s.news(&l.last) {
			continue
		}
		l.last = s
		l.inbox.put(func(m *mail) {
			s.moved = s.moved || m.seen != nil && m.seen.moved
			m.seen = &s
		})
	}
}

// rest waits, unless somebody cannot.
func (l *looker) rest(ctx context.Context, pause time.Duration) {
	for end := time.Now().Add(pause); time.Now().Before(end) && !l.urgent.Load(); {
		select {
		case <-ctx.Done():
			return
		case <-l.wake: // the look that comes has it
		case <-time.After(time.Until(end)):
		}
	}
}

// look brings the uplink where it must be, and discovers what the host is then.
func (l *looker) look(ctx context.Context) (s sight, ok bool) {
	if !l.ovs.Synced() {
		return s, false
	}
	s.begin = time.Now()
	l.detachOrAttach(ctx)
	s.moved = l.adopt(ctx)
	s.uplinkErr, s.contested = l.uplink.err, l.uplink.contested(s.begin)
	if s.found, s.err = discover(l.ovs.View(), l.config.Cluster); s.err != nil {
		s.found = l.last.found
		if s.uplinkErr != nil {
			s.err = fmt.Errorf("[gateway] interface: %w", s.uplinkErr)
		}
	}
	return s, true
}

// news tells whether the agent must know of it.
func (s *sight) news(old *sight) bool {
	return s.moved || s.contested != old.contested || errorText(s.err) != errorText(old.err) || errorText(s.uplinkErr) != errorText(old.uplinkErr) ||
		old.begin.IsZero() || !reflect.DeepEqual(s.found, old.found)
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Pauses of a calm.
const (
	freely    = 3 // times without a pause
	mostPause = 500 * time.Millisecond
)

// calm slows down what happens again and again: after the first few times there are pauses that grow, until it has rested.
type calm struct {
	times int
	last  time.Time
}

// pause is how long to wait before the next time.
func (c *calm) pause(now time.Time) time.Duration {
	if now.Sub(c.last) > 2*mostPause {
		c.times = 0
	}
	if c.times++; c.times <= freely {
		return 0
	}
	return min(time.Millisecond<<min(c.times, 20), mostPause)
}

func (c *calm) done(now time.Time) { c.last = now }
