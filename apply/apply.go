// Package apply makes a node equal to a wanted datapath.State.
//
// It serves six systems, each through a Target: the OVN databases (nbdb), Open vSwitch (ofctl), nft
// (knft), the kernel's network configuration (kernel), connections (conntrack) and eBPF programs
// (redirect). A Target keeps no record of its changes: it reads the real system and applies a
// difference. Pass applies all of them in an order in which no part refers to a missing one.
package apply

import (
	"context"
	"strings"
)

// Target is one system. S is its part of datapath.State, D a difference of two S.
type Target[S, D any] interface {
	// Read returns Hairpin's part of the system, normalised as in package plan. It omits foreign
	// objects.
	Read(context.Context) (S, error)
	// Apply makes the changes of d, in one transaction where the system has one. After an error,
	// only Read knows the state of the system.
	Apply(context.Context, D) error
	// Changed signals, coalesced, that any program changed the system, so that it must be read
	// again.
	Changed() <-chan struct{}
}

// Delta is a difference of two states, the argument of Apply. Grow returns its additions and
// changes, Shrink its removals. Applying one after the other equals applying the whole.
type Delta[D any] interface {
	Grow() D
	Shrink() D
	Count() int // changes: rows, flows, elements, routes …
	Empty() bool
}

// Drifter is a Delta in which some differences are no drift, because they follow from changes of
// another system. Drift returns the number of the others.
type Drifter interface{ Drift() int }

// Degradable is a Target that works while one of its daemons does not respond. Unresponsive returns
// an error that names that daemon, or nil. Pass reports it if there is no other error.
type Degradable interface{ Unresponsive() error }

// Sharer is a Target that returns rows by reference. After a Run that read or changed it and left
// no difference, Pass hands it the wanted State. Later Reads may return these very values, so that
// the next comparison compares pointers.
type Sharer[S any] interface{ ShareWanted(want S) }

// Syncer is a Target whose changes take effect after Apply returns. Sync waits until they have.
type Syncer interface{ Sync(context.Context) error }

// Waiting is the error of an Apply that made every change except those that need devices which do
// not exist yet. The Target's Changed signals when one of them appears.
type Waiting struct {
	Devices []string // sorted
}

// Error names the devices.
func (w *Waiting) Error() string { return "waiting for device " + strings.Join(w.Devices, ", ") }
