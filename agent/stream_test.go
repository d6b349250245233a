package agent_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"hairpin/cluster"
	"hairpin/lab"
	"hairpin/lab/probe"
	"hairpin/watch"
)

// path is a path to a Service that is watched while something is restarted.
type path struct {
	name     string
	from     lab.Place
	protocol string
	to       netip.AddrPort
}

// paths returns the paths from the host of node-a and from outside to Services, over TCP and UDP
// and both families, and those without a Service.
func paths(t testing.TB, l *lab.Lab) []path {
	t.Helper()
	config := cluster.DefaultConfig()
	s, err := watch.ReadFiles("../examples/demo", config)
	if err != nil {
		t.Fatal(err)
	}
	a, client := l.Node("node-a"), l.Host("client")
	var list []path
	for _, f := range s.Frontends {
		if f.Protocol == cluster.SCTP {
			continue // this machine's kernel may have none
		}
		family := strings.TrimPrefix(f.Family.String(), "IPv")
		proto := strings.ToLower(f.Protocol.String())
		name := fmt.Sprintf("%s %s%s", f.Owner.Name, proto, family)
		switch f.Owner.Name {
		case "podlocal", "podremote", "hostself":
			list = append(list, path{"host → ClusterIP " + name, a.Host, proto,
				netip.AddrPortFrom(f.ClusterIP, f.Port)})
		}
		switch f.Owner.Name {
		case "podlocal", "hostself":
			for _, p := range a.Addresses() {
				if p.Addr().Is4() == f.ClusterIP.Is4() {
					list = append(list, path{"outside → NodePort " + name, client, proto,
						netip.AddrPortFrom(p.Addr(), f.NodePort)})
				}
			}
		}
	}
	for _, p := range a.Addresses() {
		list = append(list, path{"outside → host " + p.Addr().String(), client, "tcp",
			netip.AddrPortFrom(p.Addr(), 8081)})
	}
	for _, p := range client.Addresses() {
		list = append(list, path{"host → outside " + p.Addr().String(), a.Host, "tcp",
			netip.AddrPortFrom(p.Addr(), 9000)})
	}
	if len(list) != 24 {
		t.Fatalf("%d ways instead of 24", len(list))
	}
	return list
}

// patience is the time after which a connection counts as failed or broken: the third
// retransmission comes after 7 s.
const patience = 15 * time.Second

// load is the load of all streams together, over TCP. Over UDP there is one flow on each path.
type load struct {
	rate     int           // new connections a second
	patience time.Duration // see the constant; each connection that fails makes a test wait for it
}

// The loads. They are read-only.
var (
	usual  = load{500, patience}
	gentle = load{100, patience} // while a machine boots
	// tolerant is for changes that some connections may fail in. A SYN is sent for the fourth time
	// after 7 s, and not again before patience has passed.
	tolerant = load{500, 9 * time.Second}
)

const (
	openOnes = 20                    // open connections of all streams together
	every    = 20 * time.Millisecond // between messages on an open connection
)

// outcome is the result of all streams.
type outcome struct {
	opened, failed, open, broken int
	newGap, longGap              time.Duration // the longest time without a success on any TCP stream
	slowest                      time.Duration // until a new connection received the greeting
	udpSent, udpLost             int
	udpGap                       time.Duration
	gaps                         []string // of the paths with long ones, milliseconds: new connections / open ones
	errors                       []string
}

func (o *outcome) String() string {
	ms := func(d time.Duration) int64 { return d.Milliseconds() }
	return fmt.Sprintf("%d of %d new connections failed, %d of %d open ones broke; longest time without a new one "+
		"%d ms, without an echo %d ms, slowest new one %d ms; UDP: %d of %d lost, longest time without an echo %d ms",
		o.failed, o.opened, o.broken, o.open, ms(o.newGap), ms(o.longGap), ms(o.slowest), o.udpLost, o.udpSent,
		ms(o.udpGap))
}

// allWell fails the test if any connection failed or broke.
func (o *outcome) allWell(t *testing.T) {
	t.Helper()
	if o.failed > 0 || o.broken > 0 {
		t.Errorf("%s\n%s", o, strings.Join(o.errors, "\n"))
	}
}

// fewFail fails the test if an open connection broke, or more than some of the new ones failed. It
// is for starts of ovn-controller, which renumbers OpenFlow groups in one transaction. A packet
// that ovs-vswitchd recirculates by an earlier megaflow looks for its group by the old number. That
// ends with the megaflow; on a machine that stalls it may take a second.
func (o *outcome) fewFail(t *testing.T) {
	t.Helper()
	if o.broken > 0 || o.failed*50 > o.opened {
		t.Errorf("%s\n%s", o, strings.Join(o.errors, "\n"))
	}
}

func (o *outcome) add(name, protocol string, r probe.Report) {
	d := func(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }
	o.opened += r.Opened
	o.failed += r.Failed
	o.broken += r.Broken
	o.open += r.Long
	for _, e := range r.Errors {
		o.errors = append(o.errors, name+": "+e)
	}
	if protocol == "udp" {
		o.udpSent += r.Messages
		o.udpLost += r.Lost
		o.udpGap = max(o.udpGap, d(r.LongGapMs))
		return
	}
	if g := max(d(r.OpenGapMs), d(r.LongGapMs)); g > 100*time.Millisecond {
		o.gaps = append(o.gaps, fmt.Sprintf("%s %d/%d", name, int(r.OpenGapMs), int(r.LongGapMs)))
	}
	o.newGap, o.longGap, o.slowest = max(o.newGap, d(r.OpenGapMs)), max(o.longGap, d(r.LongGapMs)),
		max(o.slowest, d(r.SlowestMs))
}

// traffic is the streams that run during a change.
type traffic struct {
	t       *testing.T
	streams []*lab.Stream
}

// Numbers of replies on each path, of which there are 50 a second or more: enough to show that
// there is traffic, that it continues, and late effects.
const (
	some = 5
	more = 20
	late = 50
)

// flows waits until there were further replies on each path.
func (f traffic) flows(answers int64) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), 2*patience*time.Duration(*slow))
	defer cancel()
	if err := lab.Flow(ctx, answers, f.streams...); err != nil {
		f.t.Error(err)
	}
}

// under runs streams on all paths, and do meanwhile.
func under(t *testing.T, ways []path, do func(traffic)) *outcome {
	t.Helper()
	return underAt(t, usual, ways, do)
}

// underAt is under with another load.
func underAt(t *testing.T, at load, ways []path, do func(traffic)) *outcome {
	t.Helper()
	tcp := 0
	for _, w := range ways {
		if w.protocol == "tcp" {
			tcp++
		}
	}
	streams := make([]*lab.Stream, len(ways))
	defer func() {
		for _, s := range streams {
			if s != nil {
				_, _ = s.End() // of a failed test
			}
		}
	}()
	var wg sync.WaitGroup
	errs := make([]error, len(ways))
	for i, w := range ways {
		cfg := probe.StreamConfig{Protocol: w.protocol, To: w.to, Rate: at.rate / tcp, Long: openOnes / tcp,
			Every: every, Timeout: at.patience, Duration: time.Minute}
		if w.protocol == "udp" {
			cfg.Rate, cfg.Long = 0, 1
		}
		wg.Go(func() { streams[i], errs[i] = lab.StartStream(t.Context(), w.from, cfg) })
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			t.Fatalf("%s: %v", ways[i].name, err)
		}
	}
	do(traffic{t, streams})
	reports := make([]probe.Report, len(ways))
	for i := range ways {
		s := streams[i]
		streams[i] = nil
		wg.Go(func() { reports[i], errs[i] = s.End() })
	}
	wg.Wait()
	o := &outcome{}
	for i, w := range ways {
		if errs[i] != nil {
			t.Fatalf("%s: %v", w.name, errs[i])
		}
		o.add(w.name, w.protocol, reports[i])
	}
	return o
}
