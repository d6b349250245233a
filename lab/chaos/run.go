package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"hairpin/lab/cluster"
)

// ErrFailed means that invariants were violated. The report says which.
var ErrFailed = errors.New("invariants were violated")

// Options describe a run on a cluster that is up.
type Options struct {
	Seed   uint64
	For    time.Duration
	Faults *regexp.Regexp // of kinds of faults; nil: all
	// Schedule, if not nil, has the faults in place of those of the seed.
	Schedule *Schedule
	Root     string // of the sources, with the results of make in bin
	Dir      string // for the report
	Out      io.Writer
	// giveUpEarly ends the run if the cluster is not in sync syncTime after the last fault.
	giveUpEarly bool
}

// run is the state of a run.
type run struct {
	opt         Options
	cluster     *cluster.Cluster
	nodes       []string
	connections []*connection
	lbAddresses []netip.Addr // load balancer addresses, which one node has at a time
	begin       time.Time
	tables      atomic.Int64 // counts tables of nft that were added to the underlay
	// resources before the first fault and after the last one
	before, after map[string]int
	unhealthy     []string // what status reported of nodes that were not healthy; watchStatus adds to it

	stopServer func() error

	mu         sync.Mutex
	results    []Result
	windows    []Window
	shared     []Shared
	stalls     []span // of the machine
	violations []Violation
	explains   []explanation
	explaining sync.WaitGroup
	outMu      sync.Mutex
}

// schedule returns the Schedule of the options, or that of the seed.
func (o *Options) schedule(c *cluster.Cluster) *Schedule {
	if o.Schedule != nil {
		return o.Schedule
	}
	chosen := kindNames
	if o.Faults != nil {
		chosen = slices.DeleteFunc(slices.Clone(kindNames),
			func(name string) bool { return !o.Faults.MatchString(name) })
	}
	s := Plan(o.Seed, o.For, nodeNames(c), chosen)
	return &s
}

// nodeNames returns the nodes of a cluster. The first has the control plane.
func nodeNames(c *cluster.Cluster) (list []string) {
	for _, n := range c.Lab().Nodes() {
		list = append(list, n.Name())
	}
	return list
}

// Run runs a schedule on a cluster and writes the report. It returns ErrFailed if invariants were
// violated.
func Run(ctx context.Context, c *cluster.Cluster, opt Options) error {
	found, err := runOnce(ctx, c, opt)
	if err == nil && len(found) > 0 {
		err = ErrFailed
	}
	return err
}

// runOnce is Run, and returns the violations.
func runOnce(ctx context.Context, c *cluster.Cluster, opt Options) ([]Violation, error) {
	r := &run{opt: opt, cluster: c, begin: time.Now(), nodes: nodeNames(c)}
	schedule := opt.schedule(c)
	schedule.Print(opt.Out)
	if err := os.MkdirAll(opt.Dir, 0o755); err != nil {
		return nil, err
	}
	if err := schedule.Save(filepath.Join(opt.Dir, "schedule.json")); err != nil {
		return nil, err
	}
	if slices.ContainsFunc(schedule.Faults, func(f Fault) bool { return f.Kind == upgrade }) {
		if err := c.Import(ctx, nextImage); err != nil {
			return nil, fmt.Errorf("%w (make chaos writes it)", err)
		}
	}
	r.progress("the workload starts")
	if err := errors.Join(r.undeploy(ctx), r.deploy(ctx)); err != nil {
		return nil, err
	}
	defer func() { // also after an interrupt
		if err := r.undeploy(context.WithoutCancel(ctx)); err != nil {
			r.progress("remove the workload: %v", err)
		}
	}()
	if err := r.waitInSync(ctx, time.Minute); err != nil {
		return nil, fmt.Errorf("before the first fault: %w", err)
	}
	var err error
	if r.before, err = r.resources(ctx); err != nil {
		return nil, err
	}
	r.injectAll(ctx, schedule)
	r.checkEnd(ctx)
	return r.report(context.WithoutCancel(ctx), schedule)
}

// injectAll injects the faults of a schedule under traffic.
func (r *run) injectAll(ctx context.Context, s *Schedule) {
	r.begin = time.Now()
	traffic, stop := context.WithCancel(ctx)
	var clients, faults sync.WaitGroup
	clients.Go(func() { r.clients(traffic) })
	clients.Go(func() { r.churn(traffic) })
	clients.Go(func() { r.watchMachine(traffic) })
	clients.Go(func() { r.watchStatus(traffic) })
	clients.Go(func() { r.sayAssignments(traffic) })
	for _, a := range slices.Concat(r.lbAddresses, egressIPs[:1], churnIPs[:1]) {
		clients.Go(func() {
			if err := r.watchARP(traffic, a); err != nil {
				r.addViolation(Violation{What: "the lab failed", From: r.since(), To: r.since(), First: err.Error()})
			}
		})
	}
	r.windows = make([]Window, len(s.Faults))
	for i, f := range s.Faults {
		faults.Go(func() {
			sleep(ctx, f.Start-r.since())
			if ctx.Err() == nil {
				r.inject(ctx, i, f)
			}
		})
	}
	faults.Wait()
	sleep(ctx, s.For-r.since())
	r.progress("the last fault has ended")
	sleep(ctx, 5*time.Second)
	stop()
	clients.Wait()
}

// stalled is how late this process must be for the machine to count as stalled.
const stalled = time.Second

// watchMachine records when the machine does not run this process: then connections are not
// measured correctly.
func (r *run) watchMachine(ctx context.Context) {
	const every = 100 * time.Millisecond
	for ctx.Err() == nil {
		before := r.since()
		sleep(ctx, every)
		if now := r.since(); now-before > every+stalled {
			r.mu.Lock()
			r.stalls = append(r.stalls, span{before, now})
			r.mu.Unlock()
			r.progress("the machine stalled for %.1f s", (now - before).Seconds())
		}
	}
}

// inject injects a fault and ends it. An interrupt ends it early.
func (r *run) inject(ctx context.Context, i int, f Fault) {
	r.update(i, func(w *Window) { w.Fault, w.Began = f, r.since() })
	r.progress("%s %s %s: begins", f.Kind, f.Node, f.Peer)
	end, err := kinds[f.Kind].inject(ctx, r, f)
	if err == nil && kinds[f.Kind].reported {
		r.checkReported(ctx, i)
	}
	sleep(ctx, f.End-r.since())
	if end != nil {
		err = errors.Join(err, end(context.WithoutCancel(ctx)))
	}
	r.update(i, func(w *Window) {
		w.Ended = r.since()
		if err != nil {
			w.Error = err.Error()
		}
	})
	if err != nil {
		r.progress("%s %s %s: has ended: %v", f.Kind, f.Node, f.Peer, err)
	} else {
		r.progress("%s %s %s: has ended", f.Kind, f.Node, f.Peer)
	}
}

func (r *run) update(i int, change func(*Window)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change(&r.windows[i])
}

func (r *run) window(i int) Window {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.windows[i]
}

func (r *run) addViolation(v Violation) {
	r.progress("%s: %s", v.What, v.First)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.violations = append(r.violations, v)
}

// progress prints a line.
func (r *run) progress(format string, args ...any) {
	r.outMu.Lock()
	defer r.outMu.Unlock()
	fmt.Fprintf(r.opt.Out, "%6.1f s  %s\n", r.since().Seconds(), fmt.Sprintf(format, args...))
}
