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
	"hairpin/cluster"
	"hairpin/config"
	"hairpin/datapath/nft"
	"hairpin/ovsdb"
	"hairpin/report"
	"hairpin/retry"
	"hairpin/signal"
)

// Scanner scans the host and moves its uplink into the gateway bridge. It runs beside the agent's
// loop, because Open vSwitch may hang, and other programs may change the host all the time.
type Scanner struct {
	node   string
	config config.Config
	ovs    *ovsdb.Client
	nft    apply.Target[nft.State, nft.Delta]
	onScan func(*Scan) // called with the result of a scan
	log    *slog.Logger

	// The caller of NewScanner may set these before Run.
	AfterScan func()                    // called after each successful scan; may be nil
	MayRecord func() bool               // whether the network may be recorded on the bridge's row; nil = always
	PodPorts  func() []cluster.HostPort // returns the hostPorts of pods; nil = there are none

	// Any goroutine may use these.
	wake      signal.Signal             // requests a scan
	urgent    atomic.Bool               // a caller waits for the result
	tables    atomic.Pointer[[]string]  // names, from FindTables
	portQuery atomic.Pointer[portQuery] // from FindPorts
	ports     atomic.Pointer[cluster.HostPorts]
	routers   atomic.Pointer[routers]     // of the last scan
	Report    atomic.Pointer[report.Part] // of the uplink; nil when Hairpin does not move it
	network   bridgeNetwork

	// Only Run uses these, and TakeOver, which is before it.
	throttle    retry.Throttle
	uplink      uplinkState
	mode        modeState
	last        Scan
	takeOverErr error // why another program's bridge still has the machine's network
}

// Scan is the result of a scan.
type Scan struct {
	Begin     time.Time
	Found     Found
	Err       error // why Found is not up to date
	UplinkErr error // why the machine's network is not on the bridge
	ModeErr   error // why the bridges are not those of the gateway mode
	Moved     bool  // the scan itself moved some of the network to the bridge
	Contested bool  // another program keeps undoing this
	Lost      bool  // what the bridge's device lost is not restored yet
	ExternalLink
}

// NewScanner makes a Scanner that calls onScan with the result of scans, if it differs from the
// last.
func NewScanner(node string, c config.Config, ovs *ovsdb.Client, nft apply.Target[nft.State, nft.Delta],
	onScan func(*Scan), log *slog.Logger) *Scanner {
	return &Scanner{
		node: node, config: c, ovs: ovs, nft: nft, onScan: onScan, log: log, wake: signal.New(),
		mode: modeState{backoff: retry.Backoff{Min: time.Second, Max: time.Minute}},
	}
}

// Request requests a scan, now or when the pause is over.
func (sc *Scanner) Request() { sc.wake.Notify() }

// RequestNow requests a scan without a pause, and its result even if nothing has changed.
func (sc *Scanner) RequestNow() {
	sc.urgent.Store(true)
	sc.Request()
}

// Run scans the host on request, until ctx ends. It retries what failed.
func (sc *Scanner) Run(ctx context.Context) {
	runtime.LockOSThread() // for threadTime
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-sc.wake.C():
		case <-timer.C:
		}
		if !sc.urgent.Load() {
			sc.pause(ctx, sc.throttle.Pause(time.Now()))
		}
		urgent := sc.urgent.Swap(false)
		before := threadTime()
		s, ok := sc.scan(ctx)
		sc.throttle.Done(time.Now(), threadTime()-before)
		if wait := sc.nextScan(time.Now()); wait > 0 {
			timer.Reset(wait)
		}
		if !ok && urgent { // the caller still waits
			sc.urgent.Store(true)
		}
		if ok && (urgent || s.differs(&sc.last)) {
			sc.last = s
			sc.onScan(&s)
		}
		if sc.AfterScan != nil && ok {
			sc.AfterScan()
		}
		if sc.MayRecord == nil || sc.MayRecord() {
			// The next scan tries again.
			sc.network.writeErr.Warn(sc.log,
				"write the network of the gateway bridge, for a restart of Open vSwitch without an agent", sc.writeRecord(ctx))
		}
	}
}

// nextScan returns how long to wait before the next scan that nothing requests; 0: none is needed.
func (sc *Scanner) nextScan(now time.Time) time.Duration {
	return retry.Sooner(sc.uplink.nextScan(now), sc.mode.backoff.Wait(now))
}

// threadTime returns the processor time of the calling thread, including the kernel's, which takes
// some milliseconds to find the routes of a link among 100 000.
func threadTime() time.Duration {
	var r unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_THREAD, &r); err != nil {
		return 0
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// pause waits, but ends as soon as a scan is urgent.
func (sc *Scanner) pause(ctx context.Context, length time.Duration) {
	for end := time.Now().Add(length); time.Now().Before(end) && !sc.urgent.Load(); {
		select {
		case <-ctx.Done():
			return
		case <-sc.wake.C(): // the next scan covers it
		case <-time.After(time.Until(end)):
		}
	}
}

// scan moves the uplink into the gateway bridge, or out of it, and then discovers the host's facts.
// It is not ok before the mirror of Open vSwitch's database is complete.
func (sc *Scanner) scan(ctx context.Context) (s Scan, ok bool) {
	if !sc.ovs.Synced() {
		return s, false
	}
	s.Begin = time.Now()
	sc.applyMode(ctx)
	s.Moved = sc.adopt(ctx)
	s.UplinkErr, s.Contested = cmp.Or(sc.uplink.err, sc.takeOverErr), sc.uplink.contested(s.Begin)
	s.ModeErr = sc.mode.err
	sc.restoreOrRecord(sc.ovs.View())
	s.Lost = sc.network.lost
	if s.Found, s.Err = sc.discover(); s.Err != nil {
		s.Found = sc.last.Found
		if s.UplinkErr != nil { // usually why there is no bridge
			s.Err = fmt.Errorf("[gateway] interface: %w", s.UplinkErr)
		}
	}
	s.ExternalLink = externalLink(sc.ovs.View(), &s.Found.Gateway)
	s.Found.Gateway.MTU = s.ExternalLink.MTU
	if link, err := net.InterfaceByName(s.Found.Gateway.Bridge); err == nil {
		sc.routers.Store(&routers{link: link.Index, macs: s.Found.Gateway.NextHopMACs})
	}
	return s, true
}

func (sc *Scanner) discover() (Found, error) {
	f, err := discover(sc.ovs.View(), sc.config.Cluster, sc.network.missing())
	if names := sc.tables.Load(); err == nil && names != nil {
		f.tables, err = routeTables(*names)
	}
	f.ports = sc.ports.Load()
	return f, err
}

// differs reports whether a scan has something else for the agent than an old one.
func (s *Scan) differs(old *Scan) bool {
	return s.Moved || s.Contested != old.Contested || s.Lost != old.Lost || s.ExternalLink != old.ExternalLink ||
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
