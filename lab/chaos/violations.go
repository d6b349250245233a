package chaos

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Path is a kind of connection that a client opens again and again.
type Path struct {
	Name string `json:"name"`
	From string `json:"from"` // as hairpin explain takes it
	To   string `json:"to"`
	// Nodes are those that every packet passes.
	Nodes []string `json:"nodes"`
	// Floating are the nodes that can have an address: a packet passes one of them.
	Floating []string `json:"floating,omitempty"`
	// Own is the node to whose own address the client connects; empty: none.
	Own    string `json:"own,omitempty"`
	Denied bool   `json:"denied,omitempty"` // a policy denies it
	// Fresh means that an object of the path is new. Any fault of its nodes may delay it, and any
	// fault that separates them from the API server.
	Fresh bool   `json:"fresh,omitempty"`
	API   string `json:"api,omitempty"` // the node with the API server
	// Changes are times in which the address changed with which the client leaves. That ends open
	// connections.
	Changes []span       `json:"-"`
	Server  string       `json:"server,omitempty"`  // the only endpoint; empty: any
	Sources []netip.Addr `json:"sources,omitempty"` // what the server may see; empty: anything
}

// Result is the result of one connection.
type Result struct {
	Path   int
	At     time.Duration // from the start of the run
	Took   time.Duration
	To     netip.AddrPort
	Error  string // empty: the server answered
	Server string // its name
	Saw    netip.Addr
}

// Window is a fault as it was injected.
type Window struct {
	Fault
	Began time.Duration
	Ended time.Duration // 0: it has not ended
	Error string        // why it was not injected or not ended as planned
}

// Violation is something that no fault excuses.
type Violation struct {
	What  string // the invariant
	Path  *Path  // nil: not a path
	From  time.Duration
	To    time.Duration // of the last
	Count int
	First string // describes the first
}

// takeoverTime is the time after which another node has the addresses of a dead one. It includes
// one retransmission of a SYN.
const takeoverTime = 3 * time.Second

// forever is the end of a fault that has not ended.
const forever = time.Duration(math.MaxInt64 / 2)

type span struct{ from, to time.Duration }

func (s span) overlaps(o span) bool { return s.from <= o.to && o.from <= s.to }

// affects reports whether a fault affects nodes that every packet of a path passes (fixed), or only
// nodes that a packet may pass (floating).
func (w *Window) affects(p *Path) (fixed, floating bool) {
	if w.Node == "" {
		return true, false
	}
	passes := func(node string) (fixed, any bool) {
		fixed = slices.Contains(p.Nodes, node)
		return fixed, fixed || slices.Contains(p.Floating, node)
	}
	if p.Fresh && w.withoutAPI(p) != "" {
		return true, false
	}
	fixed, any := passes(w.Node)
	if w.Peer != "" {
		alsoFixed, also := passes(w.Peer)
		fixed, any = fixed && alsoFixed, any && also
	}
	return fixed, any && !fixed
}

// span returns the time in which a fault lasted.
func (w *Window) span() span { return span{w.Began, cmp.Or(w.Ended, forever)} }

// withoutAPI returns the node of a path that a fault separates from the API server's; empty: none.
func (w *Window) withoutAPI(p *Path) string {
	switch {
	case w.Peer == "" || p.API == "":
	case w.Node == p.API && slices.Contains(p.Nodes, w.Peer):
		return w.Peer
	case w.Peer == p.API && slices.Contains(p.Nodes, w.Node):
		return w.Node
	}
	return ""
}

// startsWithoutAPI reports whether an agent of a path's node starts while a fault separates it from
// the API server. Such an agent repairs nothing until the fault has ended.
func startsWithoutAPI(p *Path, w *Window, windows []Window) bool {
	node := w.withoutAPI(p)
	return node != "" && slices.ContainsFunc(windows, func(v Window) bool {
		return kinds[v.Kind].startsAgent && (v.Node == node || v.Node == "") &&
			v.span().overlaps(w.span())
	})
}

// excuses returns the times in which connections of a path may fail. A fault that breaks the path
// excuses it until some seconds after its end. If another fault of these nodes begins meanwhile,
// the path may stay broken until that has ended: an agent that is stopped repairs nothing. A stall
// of the machine excuses every path.
func excuses(p *Path, windows []Window, stalls []span) []span {
	breaks, others := slices.Clone(p.Changes), []span(nil)
	for i := range windows {
		w := &windows[i]
		fixed, floating := w.affects(p)
		k := kinds[w.Kind]
		end := w.span().to
		whole := span{w.Began, end + k.grace}
		if !fixed && !floating {
			if startsWithoutAPI(p, w, windows) {
				others = append(others, whole)
			}
			continue
		}
		brief := k.brief
		if k.dead && !fixed { // its addresses move to another node, and may come back
			brief = takeoverTime
		}
		switch {
		case p.Fresh, k.breaks && (brief == 0 || p.Own == w.Node):
			breaks = append(breaks, whole)
		case k.breaks:
			breaks = append(breaks, span{w.Began, w.Began + brief}, span{end, whole.to})
		default:
			others = append(others, whole)
		}
	}
	all := append(others, breaks...)
	for i := range breaks {
		for again := true; again; {
			again = false
			for _, t := range all {
				if t.overlaps(breaks[i]) && t.to > breaks[i].to {
					breaks[i].to, again = t.to, true
				}
			}
		}
	}
	return append(breaks, stalls...)
}

// Violations returns the results that neither a fault nor a stall of the machine excuses, in order
// of time. Results of one path that violate the same invariant within ten seconds are one
// violation.
func Violations(paths []Path, windows []Window, stalls []span, results []Result) []Violation {
	excused := make([][]span, len(paths))
	for i := range paths {
		excused[i] = excuses(&paths[i], windows, stalls)
	}
	slices.SortStableFunc(results, func(a, b Result) int { return cmp.Compare(a.At, b.At) })
	var found []Violation
	newest := map[string]int{} // by path and invariant: index in found
	for _, r := range results {
		p := &paths[r.Path]
		what := violated(p, &r)
		if what == failed && slices.ContainsFunc(excused[r.Path], span{r.At, r.At + r.Took}.overlaps) {
			what = ""
		}
		if what == "" {
			continue
		}
		key := fmt.Sprint(r.Path, what)
		if i, ok := newest[key]; ok && r.At-found[i].To < 10*time.Second {
			found[i].To, found[i].Count = r.At+r.Took, found[i].Count+1
			continue
		}
		newest[key] = len(found)
		found = append(found, Violation{What: what, Path: p, From: r.At, To: r.At + r.Took, Count: 1,
			First: r.describe()})
	}
	return found
}

// Shared is a time in which two nodes answered for an address.
type Shared struct {
	Address netip.Addr
	Nodes   []string
	From    time.Duration
	To      time.Duration
}

// maxShared is how long two nodes may answer for an address: while it moves, and after a fault that
// separated them from each other, or an agent from its node.
const maxShared = 2 * time.Second

// SharedViolations returns the times in which several nodes had an address for longer than
// maxShared, without a fault that excuses it.
func SharedViolations(list []Shared, windows []Window) (found []Violation) {
	for _, s := range list {
		var unexcused time.Duration
		const step = 100 * time.Millisecond
		for at := s.From; at < s.To; at += step {
			if !slices.ContainsFunc(windows, func(w Window) bool { return w.shares(s.Nodes, at) }) {
				unexcused += step
			}
		}
		if unexcused > maxShared {
			found = append(found, Violation{What: "an address is on two nodes", From: s.From, To: s.To, Count: 1,
				First: fmt.Sprintf("%s is answered by %s for %.1f s", s.Address, strings.Join(s.Nodes, " and "),
					(s.To - s.From).Seconds())})
		}
	}
	return found
}

// connectTime is how long a daemon takes to connect to the others after its start.
const connectTime = time.Second

// shares reports whether a fault lets some of these nodes have an address of another.
func (w *Window) shares(nodes []string, at time.Duration) bool {
	return kinds[w.Kind].shares && at >= w.Began && (w.Ended == 0 || at <= w.Ended+connectTime) &&
		(w.Node == "" || slices.Contains(nodes, w.Node) || slices.Contains(nodes, w.Peer))
}

// The invariants of a connection.
const (
	failed      = "a connection failed that no fault excuses"
	passed      = "a denied connection passed"
	wrongServer = "a packet reached an endpoint that the Service does not have"
	wrongSource = "a packet had a source address that it must not have"
)

// violated returns the invariant that a result violates if nothing excuses it, or "".
func violated(p *Path, r *Result) string {
	switch {
	case p.Denied && r.Error == "":
		return passed
	case p.Denied:
		return ""
	case r.Error != "":
		return failed
	case p.Server != "" && p.Server != r.Server:
		return wrongServer
	case len(p.Sources) > 0 && !slices.Contains(p.Sources, r.Saw):
		return wrongSource
	}
	return ""
}

func (r *Result) describe() string {
	if r.Error != "" {
		return fmt.Sprintf("to %s, after %d ms: %s", r.To, r.Took.Milliseconds(), r.Error)
	}
	return fmt.Sprintf("to %s, answered by %s, which saw %s", r.To, r.Server, r.Saw)
}
