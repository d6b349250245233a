package chaos

import (
	"cmp"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"
)

// Fault is one fault of a schedule. Times are from the start of the run.
type Fault struct {
	Kind  string        `json:"kind"`
	Node  string        `json:"node,omitempty"` // empty: the control plane
	Peer  string        `json:"peer,omitempty"` // the other node of a partition
	Start time.Duration `json:"start_ns"`
	End   time.Duration `json:"end_ns"`
}

// Schedule is a list of faults in the order of their start.
type Schedule struct {
	Seed   uint64        `json:"seed"`
	For    time.Duration `json:"for_ns"` // all faults have ended by then
	Nodes  []string      `json:"nodes"`  // the first has the control plane
	Faults []Fault       `json:"faults"`
}

const (
	// startDelay is the time of undisturbed traffic before the first fault.
	startDelay = 5 * time.Second
	// minGap is the minimum time between two faults of one daemon, or of one node.
	minGap = 5 * time.Second
	// minAPIGap is the minimum time between two faults that separate a kubelet from the API server.
	// Together they must not make a Node NotReady, for which Kubernetes takes 40 s: Services would
	// lose the endpoints of a healthy node.
	minAPIGap = 20 * time.Second
	// maxStartGap is the maximum time between the starts of two faults.
	maxStartGap = 6 * time.Second
)

// Plan returns the faults of a seed. Equal arguments give equal schedules.
//
// At most one node is dead at a time (paused, rebooting, or without its uplink): with fewer nodes
// there may be none that can have an egress address.
func Plan(seed uint64, length time.Duration, nodes []string, names []string) Schedule {
	s := Schedule{Seed: seed, For: length, Nodes: nodes}
	r := rand.New(rand.NewPCG(seed, 0))
	var pool []*kind
	for _, name := range names {
		k := kinds[name]
		if k == nil || k.where == onPair && len(nodes) < 2 || k.where == onWorker && len(nodes) < 2 {
			continue
		}
		for range k.weight {
			pool = append(pool, k)
		}
	}
	if len(pool) == 0 {
		return s
	}
	for at := startDelay; at < length; at += jitter(r, time.Second, maxStartGap) {
		for range 10 { // a fault that does not fit is replaced by another
			if f := draw(r, pool, nodes, at); f.End <= length && s.fits(f) {
				s.Faults = append(s.Faults, f)
				break
			}
		}
	}
	return s
}

// jitter returns a duration of a range, in steps of 100 ms.
func jitter(r *rand.Rand, least, most time.Duration) time.Duration {
	const step = 100 * time.Millisecond
	return least + time.Duration(r.Int64N(int64((most-least)/step)+1))*step
}

// draw returns a fault that starts at a time.
func draw(r *rand.Rand, pool []*kind, nodes []string, at time.Duration) Fault {
	k := pool[r.IntN(len(pool))]
	f := Fault{Kind: k.name, Start: at, End: at + jitter(r, k.least, k.most)}
	switch k.where {
	case onNode:
		f.Node = nodes[r.IntN(len(nodes))]
	case onWorker:
		f.Node = nodes[1+r.IntN(len(nodes)-1)]
	case onPair:
		order := r.Perm(len(nodes))
		f.Node, f.Peer = nodes[order[0]], nodes[order[1]]
	case onControlPlane:
	}
	return f
}

// fits reports whether a fault can be added: faults that are too close would make checks
// meaningless.
func (s *Schedule) fits(f Fault) bool {
	k := kinds[f.Kind]
	for _, g := range s.Faults {
		o := kinds[g.Kind]
		switch {
		case near(f, g, minGap) && f.Node == g.Node && k.part == o.part:
			return false // that part has failed already
		case near(f, g, minGap) && (k.part == wholeNode && g.involves(f.Node) || o.part == wholeNode &&
			f.involves(g.Node)):
			return false // the whole node has failed
		case near(f, g, minGap) && k.dead && o.dead:
			return false
		case near(f, g, minAPIGap) && slices.ContainsFunc(f.nodesWithoutAPI(s.Nodes),
			func(n string) bool { return slices.Contains(g.nodesWithoutAPI(s.Nodes), n) }):
			return false
		}
	}
	return true
}

// near reports whether less than a distance is between two faults.
func near(f, g Fault, distance time.Duration) bool {
	return f.Start < g.End+distance && g.Start < f.End+distance
}

func (f *Fault) involves(node string) bool { return node != "" && (f.Node == node || f.Peer == node) }

// nodesWithoutAPI returns the nodes with kubelets that a fault separates from the API server.
func (f *Fault) nodesWithoutAPI(nodes []string) []string {
	k := kinds[f.Kind]
	switch {
	case !k.noAPI:
		return nil
	case k.where == onControlPlane, f.Node == nodes[0] && k.dead:
		return nodes
	case f.Peer == nodes[0]:
		return []string{f.Node}
	case f.Node == nodes[0] && f.Peer != "":
		return []string{f.Peer}
	case f.Peer != "":
		return nil
	}
	return []string{f.Node}
}

// String describes a fault in a line.
func (f Fault) String() string {
	where := cmp.Or(f.Node, "control plane")
	if f.Peer != "" {
		where += " → " + f.Peer
	}
	return fmt.Sprintf("%6.1f s to %6.1f s  %-28s %s", f.Start.Seconds(), f.End.Seconds(), f.Kind, where)
}

// Print writes the schedule, a line for each fault.
func (s *Schedule) Print(w io.Writer) {
	fmt.Fprintf(w, "seed %d, %s, %d faults on %d nodes\n", s.Seed, s.For, len(s.Faults), len(s.Nodes))
	for _, f := range s.Faults {
		fmt.Fprintln(w, "  ", f)
	}
}
