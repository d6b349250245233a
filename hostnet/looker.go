package hostnet

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"reflect"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"hairpin/apply"
	"hairpin/config"
	"hairpin/datapath/nft"
	"hairpin/ovsdb"
	"hairpin/report"
	"hairpin/retry"
	"hairpin/signal"
)

// Looker finds out what the host is and takes its uplink into the gateway bridge, beside the
// agent's loop: Open vSwitch may not answer, and others may change the host all the time.
type Looker struct {
	node   string
	config config.Config
	ovs    *ovsdb.Client
	nft    apply.Target[nft.State, nft.Delta]
	found  func(*Sight) // takes what a look has found
	log    *slog.Logger

	wake    signal.Signal // has a value when something may have changed
	urgent  atomic.Bool   // a caller waits for the result
	calm    retry.Throttle
	uplink  adoption
	mode    modeState
	network bridgeNetwork
	// takeOverErr is why the network of a bridge of others stayed there.
	takeOverErr error

	Links func() // called after each look, if it is not nil: links may have changed
	// MayRecord reports whether the network may be recorded on the bridge's row; nil if it always
	// may.
	MayRecord func() bool

	tables atomic.Pointer[[]string]    // of WantTables
	Report atomic.Pointer[report.Part] // of the uplink; nil when it is not ours to move
	last   Sight
	// routers is for the goroutines that watch and confirm next hops.
	routers atomic.Pointer[routers]
}

// Sight is what a look has found.
type Sight struct {
	Begin     time.Time
	Found     Found
	Err       error // why found is not up to date
	UplinkErr error // why the machine's network is not on the bridge
	ModeErr   error // why the bridges are not those of the gateway mode
	Moved     bool  // the look itself brought something there
	Contested bool  // others undo it, again and again
	Wire      Wire
	Lost      bool // the bridge's device has not got back what it lost
}

// NewLooker makes one that tells found what it finds.
func NewLooker(node string, c config.Config, ovs *ovsdb.Client, nft apply.Target[nft.State, nft.Delta],
	found func(*Sight), log *slog.Logger) *Looker {
	return &Looker{
		node: node, config: c, ovs: ovs, nft: nft, found: found, log: log, wake: signal.New(),
		mode: modeState{wait: retry.Backoff{Min: time.Second, Max: time.Minute}},
	}
}

// Want asks for a look, now or when the pause is over.
func (l *Looker) Want() {
	l.wake.Notify()
}

// WantNow asks for a look without a pause, and for its result even if that is no news.
func (l *Looker) WantNow() {
	l.urgent.Store(true)
	l.Want()
}

// Run looks whenever it is wanted, until ctx ends. What failed is tried again.
func (l *Looker) Run(ctx context.Context) {
	runtime.LockOSThread() // for threadTime
	again := time.NewTimer(0)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-l.wake.C():
		case <-again.C:
		}
		if !l.urgent.Load() {
			l.rest(ctx, l.calm.Pause(time.Now()))
		}
		urgent := l.urgent.Swap(false)
		before := threadTime()
		s, ok := l.look(ctx)
		l.calm.Done(time.Now(), threadTime()-before)
		if wait := l.again(time.Now()); wait > 0 {
			again.Reset(wait)
		}
		if !ok && urgent {
			l.urgent.Store(true)
		}
		if ok && (urgent || s.news(&l.last)) {
			l.last = s
			l.found(&s)
		}
		if l.Links != nil && ok {
			l.Links()
		}
		if l.MayRecord == nil || l.MayRecord() {
			l.noteRow(ctx)
		}
	}
}

// again returns when to look again, 0 if not before something changes.
func (l *Looker) again(now time.Time) time.Duration {
	return retry.Sooner(l.uplink.again(now), l.mode.wait.Wait(now))
}

// threadTime is what the calling thread has used of a processor, in the kernel too: among 100 000
// routes it takes some milliseconds to find those of a link.
func threadTime() time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// rest waits, unless a caller cannot.
func (l *Looker) rest(ctx context.Context, pause time.Duration) {
	for end := time.Now().Add(pause); time.Now().Before(end) && !l.urgent.Load(); {
		select {
		case <-ctx.Done():
			return
		case <-l.wake.C(): // the look that comes has it
		case <-time.After(time.Until(end)):
		}
	}
}

// look brings the uplink where it must be, and discovers what the host is then.
func (l *Looker) look(ctx context.Context) (s Sight, ok bool) {
	if !l.ovs.Synced() {
		return s, false
	}
	s.Begin = time.Now()
	l.detachOrAttach(ctx)
	s.Moved = l.adopt(ctx)
	s.UplinkErr, s.Contested = cmp.Or(l.uplink.err, l.takeOverErr), l.uplink.contested(s.Begin)
	s.ModeErr = l.mode.err
	l.followNetwork(l.ovs.View())
	s.Lost = l.network.lost
	if s.Found, s.Err = l.discover(); s.Err != nil {
		s.Found = l.last.Found
		if s.UplinkErr != nil {
			s.Err = fmt.Errorf("[gateway] interface: %w", s.UplinkErr)
		}
	}
	s.Wire = wireOf(l.ovs.View(), &s.Found.Gateway)
	s.Found.Gateway.MTU = s.Wire.MTU
	if link, err := net.InterfaceByName(s.Found.Gateway.Bridge); err == nil {
		l.routers.Store(&routers{link: link.Index, macs: s.Found.Gateway.NextHopMACs})
	}
	return s, true
}

func (l *Looker) discover() (Found, error) {
	f, err := discover(l.ovs.View(), l.config.Cluster, l.network.missing())
	if names := l.tables.Load(); err == nil && names != nil {
		f.tables, err = routeTables(*names)
	}
	return f, err
}

// news reports whether the agent must know of it.
func (s *Sight) news(old *Sight) bool {
	return s.Moved || s.Contested != old.Contested || s.Lost != old.Lost || s.Wire != old.Wire ||
		errorText(s.Err) != errorText(old.Err) ||
		errorText(s.UplinkErr) != errorText(old.UplinkErr) || errorText(s.ModeErr) != errorText(old.ModeErr) ||
		old.Begin.IsZero() || !reflect.DeepEqual(s.Found, old.Found)
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
