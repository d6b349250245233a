package probe

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"hairpin/config"
)

// simulated is a reach whose nodes reply as a test determines, in simulated time.
type simulated struct {
	*reach
	start, now time.Time
	answers    func(name string, at time.Duration) replyFrom
	events     []string
	hold       bool
}

func simulate(p config.EgressProbing, names string, answers func(name string, at time.Duration) replyFrom) *simulated {
	s := &simulated{reach: newReach(p), start: time.Unix(1000, 0), answers: answers}
	s.now = s.start
	s.set(s.now, strings.Fields(names))
	return s
}

// run advances the time by a millisecond at a time; a reply takes one.
func (s *simulated) run(until time.Duration) *simulated {
	var asked []string
	for ; s.now.Before(s.start.Add(until)); s.now = s.now.Add(time.Millisecond) {
		at := s.now.Sub(s.start)
		for _, n := range asked {
			s.recordReply(s.now, n, s.answers(n, at))
		}
		before := s.lost()
		if s.update(s.now, s.hold) {
			after := s.lost()
			for _, n := range slices.Sorted(maps.Keys(s.targets)) {
				if before[n] != after[n] {
					s.events = append(s.events, fmt.Sprintf("%s lost=%t at %v", n, after[n], at))
				}
			}
		}
		asked, _ = s.due(s.now)
	}
	return s
}

var usual = config.EgressProbing{Timeout: time.Second, Interval: 200 * time.Millisecond}

func TestReach(t *testing.T) {
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	diesAt := func(who string, when time.Duration) func(string, time.Duration) replyFrom {
		return func(n string, at time.Duration) replyFrom {
			if strings.Contains(who, n) && at >= when {
				return replyNone
			}
			return replyService
		}
	}
	for _, c := range []struct {
		name    string
		p       config.EgressProbing
		nodes   string
		answers func(string, time.Duration) replyFrom
		want    string
	}{
		{"all is well", usual, "a b c", diesAt("", 0), ""},
		{"one dies", usual, "a b c", diesAt("a", ms(1000)), "a"},
		{"one of two dies", usual, "a b", diesAt("b", ms(1100)), "b"},
		{"the only one dies", usual, "a", diesAt("a", ms(1100)), "a"},
		{"most of them go silent: it is us", usual, "a b c", diesAt("a b", ms(1000)), ""},
		{"all of them", usual, "a b", diesAt("a b", ms(1050)), ""},
		{"as many as stay", usual, "a b c d", diesAt("a b", ms(1000)), "a b"},
		{"only questions of a short time are lost", usual, "a b c", func(n string, at time.Duration) replyFrom {
			if n == "a" && at%ms(700) < ms(250) {
				return replyNone
			}
			return replyService
		}, ""},
		{"an agent restarts", usual, "a b c", func(n string, at time.Duration) replyFrom {
			if n == "a" && at > ms(1000) && at < ms(9000) {
				return replyMachine
			}
			return replyService
		}, ""},
		{"an agent does not come back", usual, "a b c", func(n string, at time.Duration) replyFrom {
			if n == "a" && at > ms(500) {
				return replyMachine
			}
			return replyService
		}, "a"},
		{"fast", config.EgressProbing{Timeout: ms(300), Interval: ms(100)}, "a b c", diesAt("c", ms(1000)), "c"},
	} {
		s := simulate(c.p, c.nodes, c.answers).run(12 * time.Second)
		if got := strings.Join(slices.Sorted(maps.Keys(s.lost())), " "); got != c.want {
			t.Errorf("%s: lost %q, not %q: %v", c.name, got, c.want, s.events)
		}
	}
}

// TestReachInTime: a node that dies at any time is unreachable after the silence, neither later nor
// earlier.
func TestReachInTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := config.EgressProbing{
			Timeout:  time.Duration(rapid.IntRange(200, 3000).Draw(t, "timeout")) * time.Millisecond,
			Interval: time.Duration(rapid.IntRange(100, 1000).Draw(t, "interval")) * time.Millisecond,
		}
		death := time.Duration(rapid.IntRange(500, 1500).Draw(t, "death")) * time.Millisecond
		s := simulate(p, "a b c d", func(n string, at time.Duration) replyFrom {
			if n == "b" && at >= death {
				return replyNone
			}
			return replyService
		})
		s.run(death + p.ReplyTimeout() - p.ProbeInterval() - 2*time.Millisecond)
		if len(s.events) > 0 {
			t.Fatalf("too early: %v", s.events)
		}
		s.run(death + p.ReplyTimeout() + 3*s.urgent())
		if !s.lost()["b"] || len(s.events) != 1 {
			t.Fatalf("not in time: dead at %v, silence %v, interval %v: %v", death, p.ReplyTimeout(), s.interval, s.events)
		}
	})
}

// TestReachComesBack: a node that replies again must do so for a while; one that dies in between
// does not count.
func TestReachComesBack(t *testing.T) {
	s := simulate(usual, "a b c", func(n string, at time.Duration) replyFrom {
		if n == "a" && at > time.Second && at < 3*time.Second || n == "a" && at > 3300*time.Millisecond &&
			at < 6*time.Second {
			return replyNone
		}
		return replyService
	}).run(12 * time.Second)
	if len(s.events) != 2 || !strings.HasPrefix(s.events[0], "a lost=true at 1.") ||
		!strings.HasPrefix(s.events[1], "a lost=false at 7.") {
		t.Error(s.events)
	}
}

// TestReachWasAway: a process that stalled does not know which nodes replied meanwhile. With hold,
// no node becomes unreachable.
func TestReachWasAway(t *testing.T) {
	s := simulate(usual, "a b c", func(n string, at time.Duration) replyFrom {
		if n == "a" && at > 6*time.Second {
			return replyNone
		}
		return replyService
	}).run(time.Second)
	s.now = s.now.Add(4 * time.Second) // without run: stalled
	s.run(5900 * time.Millisecond)
	if len(s.events) > 0 {
		t.Error("asleep: ", s.events)
	}
	s.hold = true
	s.run(8 * time.Second)
	if len(s.events) > 0 {
		t.Error("held: ", s.events)
	}
	s.hold = false
	s.run(8010 * time.Millisecond)
	if len(s.events) != 1 {
		t.Error("let go: ", s.events)
	}
}

// TestReachTargets: a node that is no longer probed is not unreachable, and a new one has time to
// reply.
func TestReachTargets(t *testing.T) {
	s := simulate(usual, "a b c", func(n string, _ time.Duration) replyFrom {
		if n == "a" || n == "z" {
			return replyNone
		}
		return replyService
	}).run(2 * time.Second)
	s.set(s.now, []string{"b", "c", "z"})
	if len(s.lost()) != 0 {
		t.Error(s.lost())
	}
	s.run(3 * time.Second)
	if !s.lost()["z"] {
		t.Error(s.events)
	}
	s.set(s.now, nil)
	if names, _ := s.due(s.now); len(names) > 0 || s.update(s.now, false) {
		t.Error("nobody is to be asked")
	}
}
