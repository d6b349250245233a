// Package applytest is a test suite of the laws that every apply.Target obeys, run on the real
// system.
//
//	func TestLaws(t *testing.T) {
//		applytest.Laws(t, applytest.Harness[nb.State, nb.Delta]{New: …, Diff: nb.Diff, Print: nb.Print, States: …, …})
//	}
package applytest

import (
	"context"
	"errors"
	"flag"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"hairpin/apply"
	"hairpin/apply/late"
	"hairpin/datapath"
)

// Run runs a pass towards a State, again while it proceeds without the result of a slow program.
func Run(t testing.TB, pass *apply.Pass, want datapath.State) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		err := pass.Run(t.Context(), want)
		var waits *late.Waits
		switch {
		case err == nil:
			return
		case !errors.As(err, &waits) || time.Now().After(end):
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Harness is a system with a Target on it. The system is real, has nothing of Hairpin's at first,
// and belongs to the test.
type Harness[S any, D apply.Delta[D]] struct {
	// New returns another Target on the same system, which ends with t. A new Target knows only
	// what it reads from the system.
	New func(t testing.TB) apply.Target[S, D]
	// Diff and Print are the functions of the State's package.
	Diff  func(want, have S) D
	Print func(S) string
	// States draws wanted states that the system accepts. Two of them should have common parts.
	States *rapid.Generator[S]
	// Checks is how often a law is checked with random states, unless -rapid.checks is set; 0: 15.
	Checks int
	// Foreign is called while the system equals Rich. It adds objects of others, beside and inside
	// Hairpin's (keys in shared maps), and returns a function that prints their current state.
	Foreign func(t testing.TB) func() string
	// Rich is a wanted state with an object of every kind, for the laws with manual changes.
	Rich S
	// Spoils are manual changes of Hairpin's objects, by name, made after Rich was reached.
	Spoils map[string]func(t testing.TB)
	// Refused returns a difference of which the system, equal to Rich, rejects at least one change.
	Refused func(t testing.TB) D
	// Atomic says that a rejected difference changes nothing at all.
	Atomic bool
}

// Laws runs the suite. The order matters: each law starts with the previous one's system.
func Laws[S any, D apply.Delta[D]](t *testing.T, h Harness[S, D]) {
	if h.Checks == 0 {
		h.Checks = 15
	}
	l := laws[S, D]{h}
	for _, law := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"Read after Apply equals want, and a second Apply is empty", l.sequence},
		{"Grow and then Shrink of a difference make it equal, too", l.halves},
		{"a new Target finds everything in order", l.restart},
		{"what is not ours is untouched", l.foreign},
		{"what is altered by hand is noticed and repaired", l.drift},
		{"a refused Apply changes nothing, or Read says so", l.refused},
		{"everything of ours can go", l.gone},
	} {
		if !t.Run(law.name, law.run) {
			return
		}
	}
}

type laws[S any, D apply.Delta[D]] struct{ Harness[S, D] }

// tb is a testing.TB or a *rapid.T.
type tb interface {
	rapid.TB
	Context() context.Context
}

// random checks a law with random states. The law must begin by reaching one of them, so that it
// runs the same when rapid searches for the simplest failure.
func (l laws[S, D]) random(t *testing.T, checks int, law func(t *rapid.T)) {
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue { // the default is not for real systems
		_ = f.Value.Set(strconv.Itoa(checks)) // the value is a number
		defer func() { _ = f.Value.Set(f.DefValue) }()
	}
	rapid.Check(t, law)
}

// patience is the deadline of one call.
const patience = 30 * time.Second

func (l laws[S, D]) read(t tb, target apply.Target[S, D]) S {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := target.Read(ctx)
	if err != nil {
		t.Fatalf("Read: %v", err)
	}
	return s
}

func (l laws[S, D]) apply(t tb, target apply.Target[S, D], d D) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return target.Apply(ctx, d)
}

// reach makes the system equal to want, and checks that it is.
func (l laws[S, D]) reach(t tb, target apply.Target[S, D], want S) {
	t.Helper()
	have := l.read(t, target)
	if err := l.apply(t, target, l.Diff(want, have)); err != nil {
		t.Fatalf("Apply: %v\nwant\n%s\nhave\n%s", err, l.Print(want), l.Print(have))
	}
	l.requireEqual(t, target, want)
	l.share(target, want)
}

// share does what a Pass does after a Run that left no difference.
func (l laws[S, D]) share(target apply.Target[S, D], want S) {
	if a, ok := target.(apply.Sharer[S]); ok {
		a.ShareWanted(want)
	}
}

// requireEqual checks that the system is equal to want.
func (l laws[S, D]) requireEqual(t tb, target apply.Target[S, D], want S) {
	t.Helper()
	have := l.read(t, target)
	if d := l.Diff(want, have); !d.Empty() {
		t.Fatalf("%d differences left: %+v\nwant\n%s\nhave\n%s", d.Count(), d, l.Print(want), l.Print(have))
	}
	if d := l.Diff(have, want); !d.Empty() {
		t.Fatalf("%d differences the other way round: %+v\nwant\n%s\nhave\n%s", d.Count(), d, l.Print(want),
			l.Print(have))
	}
}

func (l laws[S, D]) sequence(t *testing.T) {
	target := l.New(t)
	l.random(t, l.Checks, func(t *rapid.T) {
		l.reach(t, target, l.States.Draw(t, "from"))
		l.reach(t, target, l.States.Draw(t, "to"))
	})
}

func (l laws[S, D]) halves(t *testing.T) {
	target := l.New(t)
	l.random(t, l.Checks, func(t *rapid.T) {
		l.reach(t, target, l.States.Draw(t, "from"))
		want := l.States.Draw(t, "to")
		d := l.Diff(want, l.read(t, target))
		for _, half := range []D{d.Grow(), d.Shrink()} {
			if err := l.apply(t, target, half); err != nil {
				t.Fatalf("Apply: %v\n%+v\nwant\n%s", err, half, l.Print(want))
			}
		}
		l.requireEqual(t, target, want)
	})
}

func (l laws[S, D]) restart(t *testing.T) {
	l.reach(t, l.New(t), l.Rich)
	l.requireEqual(t, l.New(t), l.Rich)
}

func (l laws[S, D]) foreign(t *testing.T) {
	target := l.New(t)
	l.reach(t, target, l.Rich)
	show := l.Foreign(t)
	before := show()
	if before == "" {
		t.Fatal("Foreign shows nothing")
	}
	l.requireEqual(t, target, l.Rich)
	l.random(t, min(l.Checks, 10), func(t *rapid.T) {
		l.reach(t, target, l.States.Draw(t, "to"))
		l.reach(t, target, l.Rich)
		if now := show(); now != before {
			t.Fatalf("what is not ours was\n%s\nand is now\n%s", before, now)
		}
	})
}

func (l laws[S, D]) drift(t *testing.T) {
	for name, spoil := range l.Spoils {
		t.Run(name, func(t *testing.T) {
			target := l.New(t)
			l.reach(t, target, l.Rich)
			l.quiet(t, target)
			spoil(t)
			begin := time.Now()
			// The system may signal one change in several steps: wait until all of it is seen.
			for have := l.read(t, target); l.Diff(l.Rich, have).Empty(); have = l.read(t, target) {
				select {
				case <-target.Changed():
				case <-time.After(time.Until(begin.Add(patience))):
					t.Fatalf("not noticed within %v", patience)
				}
			}
			t.Logf("noticed after %v", time.Since(begin).Round(time.Millisecond))
			l.share(target, l.Rich) // as by a Run that had read before
			if l.Diff(l.Rich, l.read(t, target)).Empty() {
				t.Error("ShareWanted hides it")
			}
			l.reach(t, target, l.Rich)
			l.requireEqual(t, l.New(t), l.Rich)
		})
	}
}

// quiet waits until the Target has signalled all earlier changes: two reads without a signal
// between them.
func (l laws[S, D]) quiet(t tb, target apply.Target[S, D]) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		l.read(t, target)
		select {
		case <-target.Changed():
			if time.Now().After(deadline) {
				t.Fatal("Changed signals changes for ever")
			}
		case <-time.After(100 * time.Millisecond):
			return
		}
	}
}

func (l laws[S, D]) refused(t *testing.T) {
	target := l.New(t)
	l.reach(t, target, l.Rich)
	if err := l.apply(t, target, l.Refused(t)); err == nil {
		t.Fatal("Apply says that it made what cannot be made")
	} else {
		t.Logf("refused as it must be: %v", err)
	}
	if l.Atomic {
		l.requireEqual(t, target, l.Rich)
	}
	l.reach(t, target, l.Rich)
	l.requireEqual(t, l.New(t), l.Rich)
}

func (l laws[S, D]) gone(t *testing.T) {
	target := l.New(t)
	l.reach(t, target, l.Rich)
	var none S
	l.reach(t, target, none)
}
