// Package apply makes a node equal to a wanted datapath.State.
//
// There are six systems, each behind a Target: the OVN databases (nbdb), Open vSwitch (ofctl), nft
// (knft), the kernel's network (kernel), connections (conntrack) and eBPF programs (redirect). A
// Target keeps no record of what it did: it reads the real system and applies a difference. Pass
// applies all of them in an order in which no part refers to a missing one.
package apply

import "context"

// Target is one system. S is its part of datapath.State, D a difference of two S.
type Target[S, D any] interface {
	// Read gives what the system has of ours, normalised as plan writes it. What is not ours is
	// left out.
	Read(context.Context) (S, error)
	// Apply makes the changes of d, in one transaction where the system has one. After an error,
	// Read tells what holds.
	Apply(context.Context, D) error
	// Changed signals, coalesced, that the system was changed, by Hairpin or others: read again.
	Changed() <-chan struct{}
}

// Delta is a difference of two states: what Apply takes. Grow and Shrink are its two halves: what
// is made or changed, and what is removed; applying one after the other is applying the whole.
type Delta[D any] interface {
	Grow() D
	Shrink() D
	Count() int // changes: rows, flows, elements, routes …
	Empty() bool
}

// Mute is a Target that can do with a daemon that does not answer: Silent says which, for a system
// that is in order but for that.
type Mute interface{ Silent() error }

// Adopter is a Target that gives rows by reference. After a Run that read or changed it and left
// nothing to do, Pass shows it what was wanted; it may give these very values back from then on,
// which makes the next comparison one of pointers.
type Adopter[S any] interface{ Adopt(want S) }

// Syncer is a Target whose changes take effect after Apply: Sync waits for that.
type Syncer interface{ Sync(context.Context) error }
