// Package podside is the half of `hairpin test` that runs in its pods: servers, and checks of the
// paths to them. A pod gets its checks in its environment and prints one line of JSON for each
// result. It needs no right and no other program.
package podside

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"hairpin/lab/probe"
)

// Variable is the environment variable with a pod's Work.
const Variable = "HAIRPIN_TEST"

// Work is what a pod does. It serves on its ports, carries out its checks and then waits for its
// end, so that its path can be explained while it exists.
type Work struct {
	Name   string   `json:"name"`            // of its servers
	Serve  []uint16 `json:"serve,omitempty"` // ports that answer over TCP and UDP
	Sink   uint16   `json:"sink,omitempty"`  // TCP port that reads and discards
	Checks []Check  `json:"checks,omitempty"`
	// Patience is how long a check that fails is repeated, in nanoseconds.
	Patience time.Duration `json:"patience,omitempty"`
}

// Kind is what a Check expects.
type Kind string

// Kinds of checks.
const (
	Answers  Kind = "answers"  // the server answers
	Accepts  Kind = "accepts"  // TCP only: the connection is accepted
	Blocked  Kind = "blocked"  // nothing answers
	Resolves Kind = "resolves" // the name has these addresses and no others
	Full     Kind = "full"     // a UDP datagram that fills the MTU of the route is echoed, or much over TCP
	Measures Kind = "measures" // like Answers, with latency and throughput
)

// Check is a packet to send, and what must become of it.
type Check struct {
	Kind     Kind           `json:"kind"`
	Protocol string         `json:"proto,omitempty"` // "tcp" or "udp"
	To       netip.AddrPort `json:"to,omitzero"`
	Server   string         `json:"server,omitempty"` // the name of the server that must answer
	Source   bool           `json:"source,omitempty"` // the server must see the client's own address
	Host     string         `json:"host,omitempty"`   // to resolve
	Want     []netip.Addr   `json:"want,omitempty"`   // its addresses
	Sink     uint16         `json:"sink,omitempty"`   // port of the server's sink
	For      time.Duration  `json:"for,omitempty"`    // how long throughput is measured
}

// Result is the outcome of a Check. Times are in milliseconds.
type Result struct {
	Check    int          `json:"check"`           // its index
	Error    string       `json:"error,omitempty"` // of the last attempt; empty if the check passed
	Note     string       `json:"note,omitempty"`
	Attempts int          `json:"attempts,omitempty"`
	Millis   float64      `json:"ms,omitempty"` // of the last attempt
	Measured *Measurement `json:"measured,omitempty"`
	Done     bool         `json:"done,omitempty"` // no result: the last line of a pod
}

// AtOnce is the number of checks that a pod carries out at the same time.
const AtOnce = 16

// Run does the work, and writes results to w. It returns when ctx ends, or if a port cannot be
// served.
func (k Work) Run(ctx context.Context, w io.Writer) error {
	group, ctx := errgroup.WithContext(ctx)
	var listening sync.WaitGroup
	serve := func(server func(ready func()) error) {
		listening.Add(1)
		once := sync.OnceFunc(listening.Done)
		group.Go(func() error {
			defer once() // also after an error
			return server(once)
		})
	}
	for _, port := range k.Serve {
		serve(func(ready func()) error { return probe.ServePlain(ctx, k.Name, port, ready) })
	}
	if k.Sink != 0 {
		serve(func(ready func()) error { return probe.Sink(ctx, k.Sink, ready) })
	}
	listening.Wait()
	group.Go(func() error { return k.check(ctx, w) })
	if err := group.Wait(); err != nil {
		return fmt.Errorf("%s: %w", k.Name, err)
	}
	return nil
}

// check carries out the checks: measurements one after the other, the others together before them.
func (k Work) check(ctx context.Context, w io.Writer) error {
	var mu sync.Mutex
	write := func(r Result) error {
		line, err := json.Marshal(r)
		if err != nil {
			return fmt.Errorf("result: %w", err)
		}
		mu.Lock()
		defer mu.Unlock()
		_, err = fmt.Fprintf(w, "%s\n", line)
		return err
	}
	var group errgroup.Group
	group.SetLimit(AtOnce)
	for i, c := range k.Checks {
		if c.Kind != Measures {
			group.Go(func() error { return write(c.Run(ctx, i, k.Patience)) })
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for i, c := range k.Checks {
		if c.Kind == Measures {
			if err := write(c.Run(ctx, i, k.Patience)); err != nil {
				return err
			}
		}
	}
	if err := write(Result{Done: true}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// Parse reads the Work of a pod.
func Parse(text string) (k Work, err error) {
	if err := json.Unmarshal([]byte(text), &k); err != nil {
		return k, fmt.Errorf("environment variable %s: %w", Variable, err)
	}
	return k, nil
}

// Results reads what a pod with n checks has printed so far. done reports whether all results are
// there: a log that was rotated has its last line, but not all others.
func Results(text []byte, n int) (list []Result, done bool, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	for {
		var r Result
		switch err := d.Decode(&r); {
		case err == io.EOF || err == io.ErrUnexpectedEOF: // a line that is written now
			return list, false, nil
		case err != nil:
			return list, false, fmt.Errorf("result: %w", err)
		case r.Done && len(list) < n:
			return list, false, fmt.Errorf("result: %d of %d are missing", n-len(list), n)
		case r.Done:
			return list, true, nil
		case r.Check < 0 || r.Check >= n ||
			slices.ContainsFunc(list, func(o Result) bool { return o.Check == r.Check }):
			return list, false, fmt.Errorf("result: there is no check %d, or a second result of it", r.Check)
		}
		list = append(list, r)
	}
}
