package probe

import (
	"slices"
	"time"

	"hairpin/config"
)

// Of nodes that are asked whether they are alive.
const (
	leastUnanswered = 3                     // questions that a node must have left unanswered to be unreachable
	urgentLeast     = 20 * time.Millisecond // between two questions to a node that is late with its answer
	// how long a machine that answers may be without its agent, which may be restarting
	serviceGrace    = 10 * time.Second
	answersToReturn = 3                // that an unreachable node must give to be reachable again
	returnLeast     = time.Second      // and over how long a time
	isolationCalm   = 10 * time.Second // how long most nodes must have answered before the log is told
)

// heardFrom is what came back from a question.
type heardFrom int

const (
	heardNothing heardFrom = iota
	heardMachine           // its kernel answers, and what should answer does not
	heardService
)

// reach knows which nodes are alive. It is told when which is asked and what was heard, and never
// looks at a clock. One goroutine has it.
type reach struct {
	silence  time.Duration
	interval time.Duration
	targets  map[string]*reached
	judged   time.Time
	isolated bool // most nodes went silent at once: it is more likely that we cannot hear
}

// reached is one node.
type reached struct {
	machine     time.Time // when the machine was heard last
	service     time.Time // and when the service was
	asked       time.Time // last question
	next        time.Time // not before is another one due
	unanswered  int       // questions since machine was heard
	unreachable bool
	answers     int       // since it was lost, without a gap
	returning   time.Time // when the first of them came
}

func newReach(p config.EgressProbing) *reach {
	return &reach{silence: p.Silence(), interval: p.Pace(), targets: map[string]*reached{}}
}

// set sets the targets. A new one counts as reachable for the time that it has to answer.
func (r *reach) set(now time.Time, names []string) {
	old := r.targets
	r.targets = make(map[string]*reached, len(names))
	for i, n := range names {
		t := old[n]
		if t == nil {
			// Not all in the same moment.
			t = &reached{machine: now, service: now,
				next: now.Add(r.interval * time.Duration(i) / time.Duration(len(names)))}
		}
		r.targets[n] = t
	}
}

// urgent is between two questions to a node that is late.
func (r *reach) urgent() time.Duration { return max(r.silence/10, urgentLeast) }

// due returns the targets to probe now, and the time of the next one.
func (r *reach) due(now time.Time) (names []string, next time.Time) {
	next = now.Add(r.interval)
	for name, t := range r.targets {
		if !t.next.After(now) {
			names = append(names, name)
			t.asked, t.next = now, now.Add(r.interval)
			if t.unanswered++; !t.unreachable {
				t.next = now.Add(r.urgent()) // an answer puts it off
			}
		}
		if t.next.Before(next) {
			next = t.next
		}
	}
	slices.Sort(names)
	return names, next
}

// hear notes an answer.
func (r *reach) hear(now time.Time, name string, what heardFrom) {
	t := r.targets[name]
	if t == nil || what == heardNothing {
		return
	}
	if t.unreachable {
		if t.answers == 0 || now.Sub(t.machine) > r.silence+r.interval {
			t.answers, t.returning = 0, now
		}
		if what == heardService {
			t.answers++
		}
	}
	t.machine, t.unanswered = now, 0
	if what == heardService {
		t.service = now
	}
	t.next = t.asked.Add(r.interval)
}

// judge updates the unreachable nodes. With hold, no node becomes unreachable. It reports whether
// that changed.
func (r *reach) judge(now time.Time, hold bool) (changed bool) {
	// If this process itself stalled, because the machine was busy or asleep, the targets are not
	// to blame.
	if gap := now.Sub(r.judged); !r.judged.IsZero() && gap > r.interval+r.urgent() {
		for _, t := range r.targets {
			t.machine, t.service = t.machine.Add(gap), t.service.Add(gap)
		}
	}
	r.judged = now
	var silent []*reached
	alive, doubtful := 0, 0
	for _, t := range r.targets {
		switch {
		case t.unreachable:
			if now.Sub(t.machine) <= r.silence+r.interval && t.answers >= answersToReturn &&
				now.Sub(t.returning) >= returnLeast {
				t.unreachable, changed = false, true
			}
		case now.Sub(t.machine) >= r.silence && t.unanswered >= leastUnanswered:
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
		t.unreachable, t.answers, changed = true, 0, true
	}
	return changed
}

// late reports whether a node has not answered the question before the last one.
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

// answering tells of each node whether it answers: all questions, or all but the last two.
func (r *reach) answering() map[string]bool {
	list := make(map[string]bool, len(r.targets))
	for n, t := range r.targets {
		list[n] = !t.unreachable && t.unanswered <= 2
	}
	return list
}
