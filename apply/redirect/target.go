// Package redirect is the apply.Target of the eBPF programs that make NodePort traffic bypass the
// host's IP stack.
//
// The package pins and records nothing. A link holds its program (tcx, or a clsact filter before
// Linux 6.6), a program holds its maps, and both are found by name. They outlive the agent, and are
// removed with their links.
package redirect

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/features"
	"github.com/cilium/ebpf/rlimit"
	"golang.org/x/sys/unix"

	"hairpin/apply"
	"hairpin/apply/inside"
	"hairpin/apply/notice"
	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/redirect"
	"hairpin/delta"
)

var _ apply.Target[redirect.State, redirect.Delta] = (*Target)(nil)

// Config is what a Target needs.
type Config struct {
	NetNS string // path of a network namespace; empty = the caller's
	// Settled waits until OVN's changes are in the switch: before, the switch cannot serve
	// redirected packets. May be nil.
	Settled func(context.Context) error
	Clsact  bool // use clsact filters even if the kernel has tcx
}

// Target is the programs at the links of one network namespace.
type Target struct {
	config Config
	notice *notice.Listener
	hook   hook
	stop   context.CancelFunc
	tasks  sync.WaitGroup

	mu       sync.Mutex        // one Read or Apply at a time
	tags     map[string]string // of this version's programs, as the kernel computes them
	known    atomic.Pointer[[]attached]
	wanted   atomic.Pointer[map[string]bool] // links with wanted programs
	searched bool                            // all links were searched for programs of a previous run
}

// Supported returns what the kernel lacks for the programs; nil if it supports them.
func Supported() error {
	for name, err := range map[string]error{
		"bpf_redirect_neigh (Linux 5.10)": features.HaveProgramHelper(ebpf.SchedCLS, asm.FnRedirectNeigh),
		"bpf_fib_lookup (Linux 4.18)":     features.HaveProgramHelper(ebpf.SchedCLS, asm.FnFibLookup),
	} {
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// New returns a Target and starts to listen.
func New(c Config) (*Target, error) {
	t := &Target{config: c, hook: clsact{}}
	t.known.Store(&[]attached{})
	t.wanted.Store(&map[string]bool{})
	if !c.Clsact && (tcx{}).supported() {
		t.hook = tcx{}
	}
	var err error
	if t.notice, err = notice.Listen(notice.Config{
		NetNS: c.NetNS, Protocol: unix.NETLINK_ROUTE, Groups: []int{unix.RTNLGRP_LINK, unix.RTNLGRP_TC},
		Relevant: t.relevant,
	}); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	t.stop = stop
	t.tasks.Go(func() { t.watch(ctx) })
	return t, nil
}

// Close stops listening.
func (t *Target) Close() {
	t.stop()
	t.tasks.Wait()
	t.notice.Close()
}

// Changed signals that a link with a program was added, changed or removed. Within a second it
// signals that a program of Hairpin's is not attached any more. It does not signal changes of maps.
func (t *Target) Changed() <-chan struct{} { return t.notice.Changed() }

// relevant reports whether an event is about a link that has or should have a program.
func (t *Target) relevant(m syscall.NetlinkMessage) bool {
	switch m.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		attrs, err := syscall.ParseNetlinkRouteAttr(&m)
		if err != nil {
			return true
		}
		for _, a := range attrs {
			if a.Attr.Type == unix.IFLA_IFNAME {
				name := unix.ByteSliceToString(a.Value)
				return (*t.wanted.Load())[name] ||
					slices.ContainsFunc(*t.known.Load(), func(a attached) bool { return a.link == name })
			}
		}
	case unix.RTM_NEWTFILTER, unix.RTM_DELTFILTER, unix.RTM_DELQDISC:
		return len(*t.known.Load()) > 0
	}
	return false
}

// interval is the time between two checks of attached programs: the kernel does not announce the
// removal of a tcx program.
const interval = time.Second

func (t *Target) watch(ctx context.Context) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		_ = inside.Do(t.config.NetNS, func() error { // without the namespace there is nothing to signal
			for _, a := range *t.known.Load() {
				if ids, err := t.hook.programs(a.index); err != nil || !slices.Contains(ids, a.id) {
					t.notice.Notify()
				}
			}
			return nil
		})
	}
}

// Read returns Hairpin's programs at all links, and the content of their shared map. Once there are
// none and none is wanted, it does not search again.
func (t *Target) Read(ctx context.Context) (s redirect.State, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.searched && len(*t.known.Load())+len(*t.wanted.Load()) == 0 {
		return s, nil // no other program attaches these; a search queries each link, so its cost grows with the pods
	}
	err = inside.Do(t.config.NetNS, func() error {
		s, err = t.read()
		return err
	})
	return s, err
}

func (t *Target) read() (redirect.State, error) {
	s := redirect.State{Programs: map[string]redirect.Program{}, Services: map[redirect.Service]redirect.Path{}}
	found, err := t.find()
	if err != nil {
		return s, err
	}
	t.searched = true
	if t.known.Store(&found); len(found) == 0 {
		return s, nil
	}
	m, err := shared(found)
	if err != nil {
		return s, err
	}
	defer m.close()
	var to target
	if m[claims.MapTarget] != nil {
		if to, err = readTarget(m[claims.MapTarget]); err != nil {
			return s, err
		}
	}
	if m[claims.MapServices] != nil {
		if s.Services, err = readServices(m[claims.MapServices]); err != nil {
			return s, err
		}
	}
	if err := t.learnTags(); err != nil {
		return s, err
	}
	id := oldest(found)
	for _, a := range found {
		p := redirect.Program{Link: a.link, Name: a.name}
		switch _, again := s.Programs[a.link]; {
		case again:
			p.Name += ", one of several"
		case a.tag != t.tags[a.name] || a.maps[claims.MapServices] != id:
			p.Name += ", another version"
		case a.name == claims.ProgramReply && to.index == a.index:
			p.MAC, p.MTU = to.mac, to.mtu
		}
		s.Programs[a.link] = p
	}
	return s, nil
}

// learnTags gets the tags of the programs. Unless an Apply has loaded them, it loads them once.
func (t *Target) learnTags() error {
	if t.tags != nil {
		return nil
	}
	col, _, err := newCollection(nil)
	if err != nil {
		return err
	}
	defer col.Close()
	t.tags, err = tagsOf(col)
	return err
}

func tagsOf(col *ebpf.Collection) (map[string]string, error) {
	tags := map[string]string{}
	for name, p := range col.Programs {
		info, err := p.Info()
		if err != nil {
			return nil, fmt.Errorf("program %s: %w", name, err)
		}
		tags[name] = info.Tag
	}
	return tags, nil
}

// newCollection loads both programs, with the maps of the attached ones. noConntrack is the reason
// why the request program makes no conntrack lookup; nil if it does.
func newCollection(old mapSet) (col *ebpf.Collection, noConntrack, err error) {
	if err := rlimit.RemoveMemlock(); err != nil { // before Linux 5.11
		return nil, nil, fmt.Errorf("limit of locked memory: %w", err)
	}
	spec := &ebpf.CollectionSpec{Maps: mapSpecs(), Programs: programs()}
	col, err = ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: old})
	if err != nil {
		return nil, nil, fmt.Errorf("load programs: %w", err)
	}
	// The bridge's program holds the maps, independently of the NICs.
	for _, name := range []string{claims.MapServices, claims.MapTarget} {
		if err := col.Programs[claims.ProgramReply].BindMap(col.Maps[name]); err != nil {
			col.Close()
			return nil, nil, fmt.Errorf("program %s: %w", claims.ProgramReply, err)
		}
	}
	ct, noConntrack := findConntrack()
	if noConntrack != nil {
		return col, noConntrack, nil
	}
	defer ct.close()
	p, noConntrack := ct.load(col.Maps)
	if noConntrack == nil {
		_ = col.Programs[claims.ProgramRequest].Close()
		col.Programs[claims.ProgramRequest] = p
	}
	return col, noConntrack, nil
}

// Conntrack returns why the programs cannot look up packets in the host's conntrack; nil if they
// can. Without lookups, replies to connections that the node began from a Service's port are lost.
func Conntrack() error {
	col, noConntrack, err := newCollection(nil)
	if err != nil {
		return err
	}
	col.Close()
	return noConntrack
}

// Apply makes the changes of d: it adds map elements first, then attaches programs, so that a
// program finds all its elements; then it removes. It leaves out changes on a missing link, and the
// error is an *apply.Waiting.
func (t *Target) Apply(ctx context.Context, d redirect.Delta) error {
	if t.config.Settled != nil && !d.Grow().Empty() {
		if err := t.config.Settled(ctx); err != nil {
			return err
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return inside.Do(t.config.NetNS, func() error {
		err := t.apply(d)
		if found, findErr := t.find(); findErr == nil { // what watch expects from now on
			t.known.Store(&found)
		}
		return err
	})
}

func (t *Target) apply(d redirect.Delta) error {
	found, err := t.find()
	if err != nil {
		return err
	}
	m, err := shared(found)
	if err != nil {
		return err
	}
	defer m.close()
	wanted := maps.Clone(*t.wanted.Load())
	for link := range d.Programs.Delete {
		delete(wanted, link)
	}
	attach := map[string]redirect.Program{}
	maps.Copy(attach, d.Programs.Add)
	maps.Copy(attach, d.Programs.Change)
	for link := range attach {
		wanted[link] = true
	}
	t.wanted.Store(&wanted)
	var programs map[string]*ebpf.Program
	if len(attach) > 0 {
		col, _, err := newCollection(m)
		if err != nil {
			return err
		}
		defer col.Close()
		if t.tags, err = tagsOf(col); err != nil {
			return err
		}
		m, programs = col.Maps, col.Programs
	}
	for _, list := range []map[redirect.Service]redirect.Path{d.Services.Add, d.Services.Change} {
		if err := m.add(list); err != nil {
			return err
		}
	}
	var missing []string
	for _, link := range delta.Keys(attach) {
		dev, err := net.InterfaceByName(link)
		if err != nil {
			missing = append(missing, link)
			continue
		}
		p := attach[link]
		if p.MAC != (cluster.MAC{}) {
			if err := (target{dev.Index, p.MAC, p.MTU}).put(m[claims.MapTarget]); err != nil {
				return err
			}
		}
		if err := t.attach(dev.Index, programs[p.Name], found); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
	}
	if err := t.remove(d, m, found); err != nil {
		return err
	}
	if len(missing) > 0 {
		return &apply.Waiting{Devices: missing}
	}
	return nil
}

// attach attaches a program to a link. It replaces Hairpin's previous one without a gap.
func (t *Target) attach(index int, p *ebpf.Program, found []attached) error {
	var former *attached
	for i, a := range found {
		switch {
		case a.index != index:
		case former == nil:
			former = &found[i]
		default:
			if err := t.hook.detach(a); err != nil {
				return err
			}
		}
	}
	return t.hook.attach(index, p, former)
}

// remove makes the removals of Apply.
func (t *Target) remove(d redirect.Delta, m mapSet, found []attached) error {
	if err := m.remove(d.Services.Delete); err != nil {
		return err
	}
	var errs []error
	for _, a := range found {
		if _, gone := d.Programs.Delete[a.link]; gone {
			errs = append(errs, t.hook.detach(a))
		}
	}
	return errors.Join(errs...)
}

// Counters counts packets: those redirected, and those left to the host.
type Counters struct{ Requests, Replies, Fragments, NoRoute uint64 }

// Counters returns the counts since the first program was attached; nil without programs.
func (t *Target) Counters() (r *Counters, err error) {
	err = inside.Do(t.config.NetNS, func() error {
		found, err := t.find()
		if err != nil || len(found) == 0 {
			return err
		}
		m, err := shared(found)
		if err != nil {
			return err
		}
		defer m.close()
		if m[claims.MapCounters] == nil {
			return nil
		}
		var c Counters
		for i, n := range map[uint32]*uint64{countRequests: &c.Requests, countReplies: &c.Replies,
			countFragments: &c.Fragments, countNoRoute: &c.NoRoute} {
			if *n, err = sum(m[claims.MapCounters], i); err != nil {
				return err
			}
		}
		r = &c
		return nil
	})
	return r, err
}
