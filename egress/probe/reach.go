package probe

import (
	"slices"
	"time"

	"hairpin/config"
)

// Limits for the reachability of probed nodes.
const (
	minUnanswered     = 3                     // probes without a reply that make a node unreachable
	minUrgentInterval = 20 * time.Millisecond // between two probes of a node while its reply is late
	// serviceGrace is how long a machine that replies may be without its agent, which may be
	// restarting.
	serviceGrace     = 10 * time.Second
	minReturnReplies = 3           // replies that make an unreachable node reachable again
	minReturnTime    = time.Second // from the first to the last of them
)

// replyFrom is the part of a node that replied to a probe.
type replyFrom int

const (
	replyNone    replyFrom = iota
	replyMachine           // its kernel replied, but the health service did not
	replyService
)

// reach decides which nodes are reachable. Its caller passes probes and replies with their times;
// it never reads a clock. One goroutine uses it.
type reach struct {
	silence  time.Duration
	interval time.Duration
	targets  map[string]*targetState
	updated  time.Time
	isolated bool // most nodes stopped replying at once: probably this process cannot receive
	// disturbed is when a node last did not reply, or this process had stalled.
	disturbed time.Time
}

// targetState is the state of one node.
type targetState struct {
	machine     time.Time // time of the last reply of the machine
	service     time.Time // and of the service
	probed      time.Time // time of the last probe
	next        time.Time // the next probe is due
	unanswered  int       // probes since the last reply of the machine
	unreachable bool
	returns     int       // replies of the service since it became unreachable, without a gap
	returning   time.Time // time of the first of them
}

func newReach(p config.EgressProbing) *reach {
	return &reach{silence: p.ReplyTimeout(), interval: p.ProbeInterval(), targets: map[string]*targetState{}}
}

// set sets the targets. A new target counts as reachable while its first reply may still come.
func (r *reach) set(now time.Time, names []string) {
	old := r.targets
	r.targets = make(map[string]*targetState, len(names))
	for i, n := range names {
		t := old[n]
		if t == nil {
			// Distribute the first probes over the interval.
			t = &targetState{machine: now, service: now,
				next: now.Add(r.interval * time.Duration(i) / time.Duration(len(names)))}
		}
		r.targets[n] = t
	}
}

// urgent returns the time between two probes of a node whose reply is late.
func (r *reach) urgent() time.Duration { return max(r.silence/10, minUrgentInterval) }

// due returns the targets to probe now, and the time of the next one. It records the probes.
func (r *reach) due(now time.Time) (names []string, next time.Time) {
	next = now.Add(r.interval)
	for name, t := range r.targets {
		if !t.next.After(now) {
			names = append(names, name)
			t.probed, t.next = now, now.Add(r.interval)
			if t.unanswered++; !t.unreachable {
				t.next = now.Add(r.urgent()) // a reply defers it
			}
		}
		if t.next.Before(next) {
			next = t.next
		}
	}
	slices.Sort(names)
	return names, next
}

// recordReply records a reply.
func (r *reach) recordReply(now time.Time, name string, from replyFrom) {
	t := r.targets[name]
	if t == nil || from == replyNone {
		return
	}
	if t.unreachable {
		if t.returns == 0 || now.Sub(t.machine) > r.silence+r.interval {
			t.returns, t.returning = 0, now
		}
		if from == replyService {
			t.returns++
		}
	}
	t.machine, t.unanswered = now, 0
	if from == replyService {
		t.service = now
	}
	t.next = t.probed.Add(r.interval)
}

// recordTime records that this process runs. If it stalled, because the machine was busy or asleep,
// recordTime adds the gap to the times of all targets.
func (r *reach) recordTime(now time.Time) {
	if gap := now.Sub(r.updated); !r.updated.IsZero() && gap > r.interval+r.urgent() {
		for _, t := range r.targets {
			t.machine, t.service = t.machine.Add(gap), t.service.Add(gap)
		}
	}
	if now.Sub(r.updated) > r.silence { // also at the start: peers may have considered this node dead
		r.disturbed = now
	}
	r.updated = now
}

// update updates the unreachable nodes, and reports whether they changed. With hold, no node
// becomes unreachable.
func (r *reach) update(now time.Time, hold bool) (changed bool) {
	r.recordTime(now)
	var silent []*targetState
	alive, doubtful := 0, 0
	for _, t := range r.targets {
		if !t.replies() {
			r.disturbed = now
		}
		switch {
		case t.unreachable:
			if now.Sub(t.machine) <= r.silence+r.interval && t.returns >= minReturnReplies &&
				now.Sub(t.returning) >= minReturnTime {
				t.unreachable, changed = false, true
			}
		case now.Sub(t.machine) >= r.silence && t.unanswered >= minUnanswered:
			silent = append(silent, t)
		case now.Sub(t.service) >= serviceGrace:
			silent = append(silent, t)
		case now.Sub(t.machine) < r.interval+r.urgent():
			alive++
		default:
			doubtful++
		}
	}
	r.isolated = len(silent)+doubtful > max(alive, 1)
	if hold || r.isolated {
		return changed
	}
	for _, t := range silent {
		t.unreachable, t.returns, changed = true, 0, true
	}
	return changed
}

// late reports whether a node has not replied to the probe before the last one.
func (r *reach) late(name string) bool { return r.targets[name].unanswered > 1 }

// lost returns the nodes that are unreachable.
func (r *reach) lost() map[string]bool {
	list := map[string]bool{}
	for name, t := range r.targets {
		if t.unreachable {
			list[name] = true
		}
	}
	return list
}

// replies reports whether the node replied to all probes, or to all but the last two.
func (t *targetState) replies() bool { return !t.unreachable && t.unanswered <= 2 }

// replying reports for each node whether it replies.
func (r *reach) replying() map[string]bool {
	list := make(map[string]bool, len(r.targets))
	for n, t := range r.targets {
		list[n] = t.replies()
	}
	return list
}
