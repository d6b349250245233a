package demo

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Attack is one attempt of an attacker. All of them must be blocked; docs/development/attacks.md
// has a table of them.
//
// An attack that could not work anyway, because the packet is malformed or sent too early, proves
// nothing. So each also does something legitimate in the same way, which must work; otherwise it
// returns an error.
type Attack struct {
	Who  string // "pod-a2", "client", "tenant": who creates objects
	What string // "sends IPv4 from pod-a1's address"
	By   string // what blocks it
	// Group is of attacks that do not disturb each other: those of one group that follow each other
	// are tried at once. Empty = alone.
	Group string
	// Not is empty, or says why the attack cannot be tried in this lab.
	Not func(w *world) string
	try func(ctx context.Context, w *world) (outcome, error)
}

// outcome is the result of an attack. An error beside it means that the trial is void: something
// else did not work.
type outcome struct {
	taken    bool   // it succeeded
	happened string // what the attacker or the victim saw
}

// refusedWith and takenWith make outcomes.
func refusedWith(format string, args ...any) outcome {
	return outcome{false, fmt.Sprintf(format, args...)}
}
func takenWith(format string, args ...any) outcome {
	return outcome{true, fmt.Sprintf(format, args...)}
}

// Attacks returns all, in order. To add some, add a function that returns them.
func Attacks() []Attack {
	return slices.Concat(podAttacks(), extraAttacks(), tunnelAttacks(), addressAttacks(), bridgeAttacks(),
		replyAttacks(),
		limitAttacks(), tenantAttacks())
}

// name is what the option --only is compared with.
func (a *Attack) name() string { return "attack " + a.Who + " " + a.What }

type attackResult struct {
	Attack
	outcome
	not    string
	millis float64
	err    error
}

func (w *world) runAttacks(ctx context.Context, attacks []Attack, t *table) error {
	return inGroups(ctx, attacks, func(x Attack) string { return x.Group }, func(x Attack) attackResult {
		r := attackResult{Attack: x}
		if x.Not != nil {
			r.not = x.Not(w)
		}
		begin := time.Now()
		if r.not == "" {
			r.outcome, r.err = x.try(ctx, w)
		}
		r.millis = float64(time.Since(begin).Microseconds()) / 1000
		return r
	}, t.attack)
}

// inGroups tries one after the other, but those of one group that follow each other at once, and
// tells the results in order.
func inGroups[T, R any](ctx context.Context, list []T, group func(T) string, try func(T) R, tell func(R)) error {
	for len(list) > 0 {
		n := 1
		for g := group(list[0]); g != "" && n < len(list) && group(list[n]) == g; {
			n++
		}
		results := make([]R, n)
		var wg sync.WaitGroup
		for i, x := range list[:n] {
			wg.Go(func() { results[i] = try(x) })
		}
		wg.Wait()
		if err := ctx.Err(); err != nil {
			return err
		}
		for _, r := range results {
			tell(r)
		}
		list = list[n:]
	}
	return nil
}

// attacksTable is the table of docs/development/attacks.md.
func attacksTable() string {
	var b strings.Builder
	b.WriteString("| who | what | blocked by |\n|---|---|---|\n")
	for _, a := range Attacks() {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", a.Who, a.What, a.By)
	}
	return b.String()
}
