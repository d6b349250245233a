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
// nothing. So each also sends legitimate packets in the same way, which must arrive. Otherwise it
// returns an error.
type Attack struct {
	Who  string // "pod-a2", "client", "tenant": who creates objects
	What string // "sends IPv4 from pod-a1's address"
	By   string // what blocks it
	// Group names attacks that do not disturb each other: consecutive attacks of one group run
	// concurrently. Empty = alone.
	Group string
	// Not returns why the attack cannot be tried in this lab, or "". It may be nil.
	Not func(w *world) string
	try func(ctx context.Context, w *world) (outcome, error)
}

// outcome is the result of an attack. A non-nil error beside it means that the attack is void: its
// legitimate part or its preparation failed.
type outcome struct {
	taken    bool   // the attack succeeded
	happened string // what the attacker or the victim observed
}

// refusedWith returns the outcome of a blocked attack, takenWith of a successful one.
func refusedWith(format string, args ...any) outcome {
	return outcome{false, fmt.Sprintf(format, args...)}
}
func takenWith(format string, args ...any) outcome {
	return outcome{true, fmt.Sprintf(format, args...)}
}

// Attacks returns all attacks, in order. To add some, add a function that returns them.
func Attacks() []Attack {
	return slices.Concat(podAttacks(), extraAttacks(), tunnelAttacks(), addressAttacks(), bridgeAttacks(),
		replyAttacks(),
		limitAttacks(), tenantAttacks())
}

// name returns the name that the option --only is matched against.
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

// inGroups tries the items in order and reports the results in order. Consecutive items of one
// group run concurrently.
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

// attacksTable returns the table of docs/development/attacks.md.
func attacksTable() string {
	var b strings.Builder
	b.WriteString("| who | what | blocked by |\n|---|---|---|\n")
	for _, a := range Attacks() {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", a.Who, a.What, a.By)
	}
	return b.String()
}
