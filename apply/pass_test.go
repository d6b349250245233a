package apply_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"hairpin/apply"
	"hairpin/apply/late"
	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/flow"
	"hairpin/datapath/host"
	"hairpin/datapath/nb"
	"hairpin/datapath/nft"
	"hairpin/datapath/ovs"
	"hairpin/pipeline"
)

// memory is an in-memory system: a complete and correct Target. Tests can inspect each change, and
// make it reject changes or hang. The real systems have their own tests.
type memory[S any, D apply.Delta[D]] struct {
	state   S
	with    func(D, S) S
	refuse  error // of changes
	fail    error // of reads
	reads   int
	busy    atomic.Int32
	twice   atomic.Bool   // two calls overlapped
	hold    chan struct{} // calls hang until it is closed
	takes   time.Duration // duration of a call, unless its context ends earlier
	changed chan struct{}
	look    func(after bool) // called before and after each change
}

// enter records the begin of a Read or Apply, and waits while the system hangs.
func (m *memory[S, D]) enter(ctx context.Context) (leave func()) {
	if m.busy.Add(1) > 1 {
		m.twice.Store(true)
	}
	if m.hold != nil {
		late.For(ctx, "a daemon")
		<-m.hold
	}
	return func() { m.busy.Add(-1) }
}

func (m *memory[S, D]) Read(ctx context.Context) (S, error) {
	defer m.enter(ctx)()
	m.reads++
	if err := m.work(ctx); err != nil {
		return m.state, err
	}
	return m.state, m.fail
}

func (m *memory[S, D]) Apply(ctx context.Context, d D) error {
	if m.refuse != nil {
		return m.refuse
	}
	before := m.state
	m.look(false)
	m.state = m.with(d, before)
	m.look(true)
	m.state = before
	defer m.enter(ctx)()
	if err := m.work(ctx); err != nil {
		return err
	}
	m.state = m.with(d, m.state)
	m.notice()
	return nil
}

// work takes time, as a program does that is killed when ctx ends.
func (m *memory[S, D]) work(ctx context.Context) error {
	if m.takes == 0 {
		return nil
	}
	select {
	case <-ctx.Done():
		return errors.New("signal: killed")
	case <-time.After(m.takes):
		return nil
	}
}

func (m *memory[S, D]) Changed() <-chan struct{} { return m.changed }

func (m *memory[S, D]) notice() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// node is four such systems.
type node struct {
	nb     *memory[nb.State, nb.Delta]
	bridge *memory[ovs.State, ovs.Delta]
	nft    *memory[nft.State, nft.Delta]
	host   *memory[host.State, host.Delta]
	fault  string // the first violation of a law: other goroutines than the test's make the changes
}

func (n *node) fatalf(format string, args ...any) {
	if n.fault == "" {
		n.fault = fmt.Sprintf(format, args...)
	}
}

func newNode(look func(n *node, after bool)) *node {
	n := &node{}
	seen := func(after bool) { look(n, after) }
	c := func() chan struct{} { return make(chan struct{}, 1) }
	n.nb = &memory[nb.State, nb.Delta]{with: func(d nb.Delta, s nb.State) nb.State { return d.ApplyTo(s) },
		changed: c(), look: seen}
	n.bridge = &memory[ovs.State, ovs.Delta]{changed: c(), look: seen,
		with: func(d ovs.Delta, s ovs.State) ovs.State {
			s.Bridge, s.Flows, s.Ports = d.Bridge, d.Flows.ApplyToMap(s.Flows), d.Ports.ApplyTo(s.Ports)
			return s
		}}
	n.nft = &memory[nft.State, nft.Delta]{with: nft.Delta.ApplyTo, changed: c(), look: seen}
	n.host = &memory[host.State, host.Delta]{with: host.Delta.ApplyTo, changed: c(), look: seen}
	return n
}

// noting returns a look that adds a system's name to a list for each of its changes.
func noting(order *[]string, name string) func(after bool) {
	return func(after bool) {
		if after {
			*order = append(*order, name)
		}
	}
}

func (n *node) targets() apply.Targets {
	return apply.Targets{NB: n.nb, Bridge: n.bridge, NFT: n.nft, Host: n.host}
}

func key(i int) nb.Key { return nb.Key{Table: nb.TableAddressSet, Name: fmt.Sprint(i)} }

func neighbor(i int) host.NeighborKey {
	return host.NeighborKey{Link: "mp0", IP: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})}
}

func single(i int) host.AddressKey {
	return host.AddressKey{Link: "eth1", Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}), 32)}
}

// source is an address that a route needs.
func source(i int) (host.AddressKey, host.Route) {
	a := host.AddressKey{Link: "br-ex", Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 2, 0, byte(i)}), 32)}
	return a,
		host.Route{RouteKey: host.RouteKey{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 3, 0, byte(i)}), 32)},
			Link: "br-ex", Src: a.Prefix.Addr()}
}

// want returns a State with an object i in every system, for every i of list. value distinguishes
// two versions of it.
func want(value string, list ...int) datapath.State {
	s := datapath.State{
		NB: nb.State{}, Bridge: ovs.State{Bridge: "br-ex", Ports: map[string]ovs.Port{}},
		NFT: nft.State{nft.Inet: {Chains: map[string]*nft.Chain{}}},
		Host: host.State{
			Neighbors: map[host.NeighborKey]host.Neighbor{}, Addresses: map[host.AddressKey]host.Address{},
			Routes: map[host.RouteKey]host.Route{},
		},
	}
	for _, i := range list {
		name := fmt.Sprint(i)
		s.NB.Add(&nb.AddressSet{Name: name, Owner: cluster.Owner{Kind: "Service", Name: value}})
		k := flow.Key{Table: 0, Priority: uint16(i)}
		s.Bridge.Flows.Put(k.ID(), &flow.Flow{Key: k, Feature: uint32(len(value)),
			Actions: []flow.Action{flow.Normal{}}})
		s.Bridge.Ports[name] = ovs.Port{Name: name, Type: value}
		s.NFT[nft.Inet].Chains[name] = &nft.Chain{Name: name, Rules: []nft.Rule{{Comment: value, Do: nft.Accept{}}}}
		h := neighbor(i)
		s.Host.Neighbors[h] = host.Neighbor{NeighborKey: h, MAC: cluster.MAC{2, byte(len(value))}}
		a := single(i)
		s.Host.Addresses[a] = host.Address{AddressKey: a}
		a, r := source(i)
		s.Host.Addresses[a], s.Host.Routes[r.RouteKey] = host.Address{AddressKey: a}, r
	}
	return s
}

// has returns which systems have i.
func (n *node) has(i int) (row, flowThere, chain, neigh, port bool) {
	_, row = n.nb.state[key(i)]
	_, flowThere = n.bridge.state.Flows.Get(flow.Key{Priority: uint16(i)}.ID())
	if t := n.nft.state[nft.Inet]; t != nil {
		_, chain = t.Chains[fmt.Sprint(i)]
	}
	_, neigh = n.host.state.Neighbors[neighbor(i)]
	_, port = n.bridge.state.Ports[fmt.Sprint(i)]
	return
}

func (n *node) equals(t interface {
	Helper()
	Errorf(string, ...any)
}, s datapath.State) {
	t.Helper()
	if d := nb.Diff(s.NB, n.nb.state); !d.Empty() {
		t.Errorf("ovn: %d differences", d.Count())
	}
	if d := ovs.Diff(s.Bridge, n.bridge.state); !d.Empty() {
		t.Errorf("bridge: %d differences", d.Count())
	}
	if d := nft.Diff(s.NFT, n.nft.state); !d.Empty() {
		t.Errorf("nft: %d differences", d.Count())
	}
	if d := host.Diff(s.Host, n.host.state); !d.Empty() {
		t.Errorf("host: %d differences: %+v", d.Count(), d)
	}
}

const things = 6

// checkInBubble is rapid.Check with a fake clock, which stands still while any goroutine can run: a
// Run waits for each system as long as necessary.
func checkInBubble(t *testing.T, check func(*rapid.T)) {
	synctest.Test(t, func(t *testing.T) {
		rapid.Check(struct{ rapid.TB }{t}, check) // the deadline of t is in real time
	})
}

// TestNothingPointsAtWhatIsMissing checks that without failures, no system ever refers to an object
// that another one lacks. The host gets a single address after its rules, unless a route needs it.
func TestNothingPointsAtWhatIsMissing(t *testing.T) {
	checkInBubble(t, func(t *rapid.T) {
		var had [things]bool
		n := newNode(func(n *node, after bool) {
			if !after {
				return
			}
			for i := range things {
				_, address := n.host.state.Addresses[single(i)]
				if _, _, chain, _, _ := n.has(i); address && !had[i] && !chain {
					n.fatalf("%d: the address is there before its rules", i)
				}
				had[i] = address
				from, r := source(i)
				_, route := n.host.state.Routes[r.RouteKey]
				if _, there := n.host.state.Addresses[from]; route && !there {
					n.fatalf("%d: the route is there before its source", i)
				}
				row, flow, chain, neigh, port := n.has(i)
				if row && !flow || flow && !chain || chain && !neigh || neigh && !port {
					n.fatalf("%d: row %v, flow %v, chain %v, neigh %v, port %v", i, row, flow, chain, neigh, port)
				}
			}
		})
		p := apply.NewPass(n.targets())
		for range rapid.IntRange(1, 6).Draw(t, "steps") {
			s := want(rapid.SampledFrom([]string{"a", "bb"}).Draw(t, "value"),
				rapid.SliceOfDistinct(rapid.IntRange(0, things-1), func(i int) int { return i }).Draw(t, "wanted")...)
			if err := p.Run(context.Background(), s); err != nil {
				t.Fatal(err)
			}
			if n.fault != "" {
				t.Fatal(n.fault)
			}
			n.equals(t, s)
		}
	})
}

// lawful returns a node that records a fault when a change removes from a system what one above it
// still has.
func lawful() *node {
	var before [things][5]bool
	return newNode(func(n *node, after bool) {
		for i := range things {
			row, flow, chain, neigh, port := n.has(i)
			now := [5]bool{row, flow, chain, neigh, port}
			for depth := 1; depth < 5; depth++ {
				for above := range depth {
					if after && before[i][depth] && !now[depth] && now[above] {
						n.fatalf("%d: was %v, is %v: removed while in use", i, before[i], now)
					}
				}
			}
			before[i] = now
		}
	})
}

// anyOf draws a wanted State.
func anyOf(t *rapid.T) datapath.State {
	return want("a", rapid.SliceOfDistinct(rapid.IntRange(0, things-1), func(i int) int { return i }).Draw(t,
		"wanted")...)
}

// TestFailuresRemoveNothingTooEarly checks that despite failures, nothing is removed from a system
// while one that refers to it still has it. When nothing fails any more, one Run makes all equal.
func TestFailuresRemoveNothingTooEarly(t *testing.T) {
	checkInBubble(t, func(t *rapid.T) {
		n := lawful()
		p := apply.NewPass(n.targets())
		refused := errors.New("refused")
		maybe := func(label string) error {
			if rapid.IntRange(0, 3).Draw(t, label) == 0 {
				return refused
			}
			return nil
		}
		for range rapid.IntRange(1, 6).Draw(t, "steps") {
			n.nb.refuse, n.bridge.refuse, n.nft.refuse, n.host.refuse = maybe("ovn"), maybe("bridge"), maybe("nft"),
				maybe("host")
			s := anyOf(t)
			p.Retry()
			err := p.Run(context.Background(), s)
			if n.nb.refuse == nil { // OVN serves the wanted State despite other failures
				if d := nb.Diff(s.NB, n.nb.state); !d.Empty() {
					t.Fatalf("ovn: %d differences, though only others failed (%v)", d.Count(), err)
				}
			}
			for _, st := range p.Status() {
				if st.InSync != (st.Err == nil) {
					t.Fatalf("%s: in sync %v, but %v", st.System, st.InSync, st.Err)
				}
			}
			n.nb.refuse, n.bridge.refuse, n.nft.refuse, n.host.refuse = nil, nil, nil, nil
			if rapid.Bool().Draw(t, "recover") {
				p.Retry()
				if err := p.Run(context.Background(), s); err != nil {
					t.Fatal(err)
				}
				n.equals(t, s)
			}
			if n.fault != "" {
				t.Fatal(n.fault)
			}
		}
	})
}

// TestHangs checks systems that hang for any time. The others proceed, nothing is removed too
// early, no two calls to one system overlap, and in the end all is equal.
func TestHangs(t *testing.T) {
	checkInBubble(t, func(t *rapid.T) {
		n := lawful()
		p := apply.NewPass(n.targets())
		holds := []*chan struct{}{&n.nb.hold, &n.bridge.hold, &n.nft.hold, &n.host.hold}
		release := func(h *chan struct{}) {
			if *h != nil {
				close(*h)
				synctest.Wait()
				*h = nil
			}
		}
		for range rapid.IntRange(1, 8).Draw(t, "steps") {
			for _, h := range holds {
				if on := rapid.IntRange(0, 2).Draw(t, "hangs"); on == 0 && *h == nil {
					*h = make(chan struct{})
				} else if on == 1 {
					release(h)
				}
			}
			if rapid.Bool().Draw(t, "reread") {
				p.Reread()
			}
			s := anyOf(t)
			begin := time.Now()
			_ = p.Run(context.Background(), s) // errors of hanging systems; the next Run counts
			if took := time.Since(begin); took > 5*time.Second {
				t.Fatalf("a Run took %v", took)
			}
			synctest.Wait() // for released calls
			if n.nb.hold == nil {
				if err := p.Run(context.Background(), s); !nb.Diff(s.NB, n.nb.state).Empty() {
					t.Fatalf("ovn: differences, though only others hang (%v)", err)
				}
			}
		}
		for _, h := range holds {
			release(h)
		}
		s := anyOf(t)
		for range 5 { // each collects a result, and begins the next call
			p.Retry()
			_ = p.Run(context.Background(), s) // the last Run shows errors
			synctest.Wait()
		}
		if err := p.Run(context.Background(), s); err != nil {
			t.Fatal(err)
		}
		n.equals(t, s)
		if n.fault != "" {
			t.Fatal(n.fault)
		}
		if n.nb.twice.Load() || n.bridge.twice.Load() || n.nft.twice.Load() || n.host.twice.Load() {
			t.Fatal("two things were done to one system at the same time")
		}
	})
}

// TestAHangIsToldAndCostsOnce checks that a hanging system costs its patience once. Its error names
// the daemon and the time, and its end wakes the Pass.
func TestAHangIsToldAndCostsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(func(*node, bool) {})
		p := apply.NewPass(n.targets())
		run(t, p, want("a", 1))
		run(t, p, want("a", 1))
		n.nft.hold = make(chan struct{})
		began := time.Now()
		for i := 2; i < 10; i++ {
			_ = p.Run(t.Context(), want("a", 1, i))
			if _, there := n.nb.state[key(i)]; !there {
				t.Fatalf("%d is not in OVN", i)
			}
		}
		if took := time.Since(began); took > 1500*time.Millisecond {
			t.Errorf("eight Runs took %v", took)
		}
		time.Sleep(time.Hour)
		_ = p.Run(t.Context(), want("a", 1, 9))
		var waits *late.Waits
		st := status(t, p, "nft")
		if !errors.As(st.Err, &waits) || waits.For != "a daemon" || !waits.Since.Equal(began) || st.InSync {
			t.Errorf("%+v", st)
		}
		if _, err := p.Read(t.Context()); !errors.As(err, &waits) {
			t.Errorf("read: %v", err)
		}
		if _, flow, _, _, _ := n.has(8); flow { // objects that nft may refer to wait, flows do not
			t.Error("flows did not shrink")
		}
		if _, _, _, neigh, _ := n.has(2); !neigh || !errors.Is(status(t, p, "host").Err, apply.ErrWithheld) {
			t.Errorf("host shrank: %v", status(t, p, "host").Err)
		}
		close(n.nft.hold)
		synctest.Wait()
		n.nft.hold = nil
		if err := p.Wait(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		p.Retry()
		_ = p.Run(t.Context(), want("a", 1, 9)) // reads the result of the Apply of 2, and may have a brief wait
		synctest.Wait()
		run(t, p, want("a", 1, 9))
		n.equals(t, want("a", 1, 9))
	})
}

// TestSlowerThanItsLimit checks that a call which exceeds the limit of its first try, as on a very
// slow machine, completes in a later one.
func TestSlowerThanItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(func(*node, bool) {})
		n.nft.takes = 25 * time.Second
		p := apply.NewPass(n.targets())
		s := want("a", 1)
		for _, most := range []time.Duration{5 * time.Minute, 2 * time.Minute} { // the second has an adapted limit
			began := time.Now()
			for p.Run(t.Context(), s) != nil {
				if time.Since(began) > time.Hour {
					t.Fatalf("nft is not in sync: %v", status(t, p, "nft").Err)
				}
				time.Sleep(time.Second)
			}
			if took := time.Since(began); took > most {
				t.Errorf("it took %v", took)
			}
			n.equals(t, s)
			p.Reread()
			s = want("a", 1, 2)
		}
	})
}

func status(t *testing.T, p *apply.Pass, system string) apply.Status {
	t.Helper()
	for _, s := range p.Status() {
		if s.System == system {
			return s
		}
	}
	t.Fatalf("there is no system %s", system)
	return apply.Status{}
}

func run(t *testing.T, p *apply.Pass, s datapath.State) {
	t.Helper()
	if err := p.Run(t.Context(), s); err != nil {
		t.Fatal(err)
	}
}

func TestARestartWritesNothing(t *testing.T) {
	n := newNode(func(*node, bool) {})
	s := want("a", 1, 2, 3)
	run(t, apply.NewPass(n.targets()), s)
	again := apply.NewPass(n.targets())
	run(t, again, want("a", 1, 2, 3))
	for _, st := range again.Status() {
		if st.Reads != 1 || st.Applies != 0 || st.Written != 0 || st.Drift != 0 || st.Errors != 0 || !st.InSync {
			t.Errorf("%+v", st)
		}
	}
}

func TestReadsOnlyWhatChanged(t *testing.T) {
	n := newNode(func(*node, bool) {})
	p := apply.NewPass(n.targets())
	s := want("a", 1)
	run(t, p, s)
	run(t, p, s) // reads its own changes
	reads := n.nb.reads
	run(t, p, s)
	run(t, p, s)
	if n.nb.reads != reads {
		t.Errorf("read %d times though nothing changed", n.nb.reads-reads)
	}
	p.Reread()
	run(t, p, s)
	if n.nb.reads != reads+1 || n.host.reads == 0 {
		t.Errorf("Reread: %d reads", n.nb.reads-reads)
	}
}

func TestDriftIsRepairedAndCounted(t *testing.T) {
	n := newNode(func(*node, bool) {})
	p := apply.NewPass(n.targets())
	s := want("a", 1, 2)
	run(t, p, s)
	run(t, p, s)
	delete(n.host.state.Neighbors, neighbor(1))
	n.host.state.Neighbors[neighbor(2)] = host.Neighbor{NeighborKey: neighbor(2), MAC: cluster.MAC{9}}
	n.host.notice()
	if err := p.Wait(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	// Newly wanted objects are no drift, even together with drift.
	more := want("a", 1, 2, 3)
	run(t, p, more)
	n.equals(t, more)
	if st := status(t, p, "host"); st.Drift != 2 || !st.InSync {
		t.Errorf("%+v", st)
	}
	if st := status(t, p, "ovn"); st.Drift != 0 || st.Written != 3 {
		t.Errorf("%+v", st)
	}
}

// TestDriftIsCountedAfterAFailedRead checks that a Read that fails hides no drift: the next one
// counts it. ovs-vswitchd removes a bridge a moment before its database says so.
func TestDriftIsCountedAfterAFailedRead(t *testing.T) {
	n := newNode(func(*node, bool) {})
	p := apply.NewPass(n.targets())
	s := want("a", 1, 2)
	run(t, p, s)
	run(t, p, s)
	delete(n.bridge.state.Ports, "1")
	n.bridge.fail = errors.New("there is no such bridge")
	n.bridge.notice()
	if err := p.Run(t.Context(), s); !errors.Is(err, n.bridge.fail) {
		t.Fatal(err)
	}
	n.bridge.fail = nil
	p.Retry()
	run(t, p, s)
	n.equals(t, s)
	if st := status(t, p, "openvswitch"); st.Drift != 1 || st.Errors != 1 {
		t.Errorf("%+v", st)
	}
	// After a change that failed, the system's state is unknown: nothing is drift.
	n.bridge.refuse = errors.New("refused")
	more := want("a", 1, 2, 3)
	if err := p.Run(t.Context(), more); !errors.Is(err, n.bridge.refuse) {
		t.Fatal(err)
	}
	delete(n.bridge.state.Ports, "1")
	n.bridge.refuse = nil
	p.Retry()
	run(t, p, more)
	if st := status(t, p, "openvswitch"); st.Drift != 1 || !st.InSync {
		t.Errorf("%+v", st)
	}
}

func TestErrorsAreKeptPerSystem(t *testing.T) {
	n := newNode(func(*node, bool) {})
	p := apply.NewPass(n.targets())
	run(t, p, want("a", 1))
	since := status(t, p, "nft").Since
	n.nft.refuse = errors.New("nft is out of order")
	next := want("a", 2)
	err := p.Run(t.Context(), next)
	if err == nil || !strings.Contains(err.Error(), "nft is out of order") || !errors.Is(err, apply.ErrWithheld) {
		t.Fatalf("error: %v", err)
	}
	st := status(t, p, "nft")
	if st.InSync || !errors.Is(st.Err, n.nft.refuse) || st.Errors != 1 || !st.Since.After(since) {
		t.Errorf("%+v", st)
	}
	if st := status(t, p, "ovn"); !st.InSync {
		t.Errorf("ovn: %+v", st)
	}
	if st := status(t, p, "host"); st.InSync || !errors.Is(st.Err, apply.ErrWithheld) || st.Errors != 0 {
		t.Errorf("host: %+v", st)
	}
	if _, _, _, neigh, _ := n.has(1); !neigh {
		t.Error("host shrank while nft could not")
	}
	n.nft.refuse = nil
	p.Retry()
	run(t, p, next)
	n.equals(t, next)
}

// TestReleasesAddresses checks that a node releases a single address at once, although all other
// systems fail: another node may have it.
func TestReleasesAddresses(t *testing.T) {
	n := newNode(func(*node, bool) {})
	p := apply.NewPass(n.targets())
	own := host.AddressKey{Link: claims.ServiceHost, Prefix: netip.MustParsePrefix("10.4.0.1/32")}
	before := want("a", 1, 2)
	before.Host.Addresses[own] = host.Address{AddressKey: own}
	run(t, p, before)
	n.nb.refuse = errors.New("refused")
	n.bridge.refuse, n.nft.refuse = n.nb.refuse, n.nb.refuse
	if err := p.Run(t.Context(), want("a", 2)); err == nil {
		t.Error("no error")
	}
	_, released := n.host.state.Addresses[single(1)]
	_, kept := n.host.state.Addresses[single(2)]
	from, _ := source(1)
	_, used := n.host.state.Addresses[from]
	_, replies := n.host.state.Addresses[own]
	if released || !kept || !used || !replies {
		t.Errorf("single address %t, other %t, source of a route %t, of the link to Services %t", released, kept, used,
			replies)
	}
	n.nb.refuse, n.bridge.refuse, n.nft.refuse = nil, nil, nil
	p.Retry()
	run(t, p, want("a", 2))
	n.equals(t, want("a", 2))
}

func TestWaitingForADeviceKeepsNobody(t *testing.T) {
	n := newNode(func(*node, bool) {})
	p := apply.NewPass(n.targets())
	run(t, p, want("a", 1))
	n.host.refuse = &apply.Waiting{Devices: []string{"ovn-k8s-mp0"}}
	err := p.Run(t.Context(), want("a", 2))
	var waiting *apply.Waiting
	if !errors.As(err, &waiting) || errors.Is(err, apply.ErrWithheld) {
		t.Fatalf("error: %v", err)
	}
	if _, flow, _, _, port := n.has(1); flow || port {
		t.Error("the others did not shrink")
	}
	if st := status(t, p, "host"); st.InSync || st.Errors != 0 || st.Err == nil {
		t.Errorf("%+v", st)
	}
}

// TestFailuresHaveTheirPace checks that a failing system is retried with its own backoff, whatever
// else causes a Run, and at once after Retry.
func TestFailuresHaveTheirPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(func(*node, bool) {})
		p := apply.NewPass(n.targets())
		s := want("a", 1)
		run(t, p, s)
		run(t, p, s)
		if p.Again() != 0 {
			t.Errorf("again after %v, though nothing failed", p.Again())
		}
		n.host.fail = errors.New("the host does not answer")
		p.Reread()
		first := n.host.reads
		for began := time.Now(); time.Since(began) < 10*time.Second; time.Sleep(time.Millisecond) {
			if err := p.Run(t.Context(), s); !errors.Is(err, n.host.fail) {
				t.Fatal(err)
			}
		}
		if tries := n.host.reads - first; tries < 10 || tries > 20 {
			t.Errorf("%d tries in 10 s", tries)
		}
		if again := p.Again(); again <= 0 || again > time.Second {
			t.Errorf("again after %v", again)
		}
		n.host.fail = nil
		p.Retry()
		run(t, p, s)
		if p.Again() != 0 {
			t.Errorf("again after %v", p.Again())
		}
	})
}

func TestWaitWakes(t *testing.T) {
	n := newNode(func(*node, bool) {})
	p := apply.NewPass(n.targets())
	wake := make(chan struct{}, 1)
	wake <- struct{}{}
	if err := p.Wait(t.Context(), wake); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.Wait(ctx, wake); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// TestAFightIsSlow checks that a program which always reverts Hairpin's changes neither keeps a
// processor busy nor delays new wanted States.
func TestAFightIsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNode(func(*node, bool) {})
		p := apply.NewPass(n.targets())
		s := want("a", 1)
		run(t, p, s)
		begin, rounds := time.Now(), 0
		for time.Since(begin) < 300*time.Millisecond {
			n.host.state = host.State{}
			n.host.notice()
			if err := p.Wait(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			run(t, p, s)
			rounds++
		}
		if rounds > 12 {
			t.Errorf("%d rounds in 300 ms", rounds)
		}
		n.host.state = host.State{}
		n.host.notice()
		wake := make(chan struct{}, 1)
		wake <- struct{}{}
		begin = time.Now()
		if err := p.Wait(t.Context(), wake); err != nil || time.Since(begin) > 100*time.Millisecond {
			t.Errorf("a new want waited %v, %v", time.Since(begin), err)
		}
	})
}

// TestReleasesReplies checks that the gateway router stops answering for an address at once,
// although all other systems fail. Other flows stay while OVN may refer to them.
func TestReleasesReplies(t *testing.T) {
	n := newNode(func(*node, bool) {})
	p := apply.NewPass(n.targets())
	reply := flow.Key{Table: pipeline.GatewayNeighborReplies, Match: flow.Match{Protocol: flow.ARP,
		Src: single(1).Prefix}}
	before := want("a", 1, 2)
	before.Bridge.Flows.Put(reply.ID(), &flow.Flow{Key: reply, Actions: []flow.Action{flow.Normal{}}})
	run(t, p, before)
	n.nb.refuse = errors.New("refused")
	n.nft.refuse, n.host.refuse = n.nb.refuse, n.nb.refuse
	if err := p.Run(t.Context(), want("a", 2)); err == nil {
		t.Error("no error")
	}
	_, answers := n.bridge.state.Flows.Get(reply.ID())
	if _, kept, _, _, _ := n.has(1); answers || !kept {
		t.Errorf("reply %t, other flow %t", answers, kept)
	}
	n.nb.refuse, n.nft.refuse, n.host.refuse = nil, nil, nil
	p.Retry()
	run(t, p, want("a", 2))
	n.equals(t, want("a", 2))
}
