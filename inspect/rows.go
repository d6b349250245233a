package inspect

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"hairpin/report"
)

// row is the state of a component of a node. A node that does not answer has the component agent.
type row struct {
	node, component, state string
	since                  time.Time // zero: not known
	reason                 string    // why the component is not healthy, or its last error
	healthy                bool      // or not in sync only because the agent is not ready
}

// rows returns the states of a node: its agent, what the agent cannot reach, and its components.
func (n *NodeStatus) rows() []row {
	r := n.Report
	if r == nil {
		return []row{{node: n.Node, component: "agent", state: "no answer", reason: n.Error}}
	}
	agent := row{node: r.Node, component: "agent", reason: r.Reason}
	switch {
	case !r.Ready:
		agent.state = "not ready"
	case r.Degraded != "":
		agent.state, agent.reason = "degraded", r.Degraded
	case r.Leaving:
		agent.state, agent.reason = "draining", "the Node is being deleted, or about to be"
	default:
		agent.state, agent.healthy = "ready", true
	}
	list := []row{agent}
	if r.API != nil && r.API.Unreachable {
		list = append(list, row{r.Node, "api", "unreachable", r.API.Since, r.API.Error, false})
	}
	for _, l := range r.Listeners {
		if l.Error != "" {
			reason := l.Address + ": " + l.Error
			list = append(list, row{node: r.Node, component: l.For, state: "closed", reason: reason})
		}
	}
	for _, p := range r.Parts {
		state := "not in sync"
		if p.InSync {
			state = "in sync"
		}
		consequence := !r.Ready && p.Error == "" // the agent does not apply anything yet
		list = append(list, row{r.Node, p.System, state, p.Since, p.Error, p.InSync || consequence})
	}
	return list
}

func (l *LeaderStatus) row() row {
	r := row{cmp.Or(l.Holder, "-"), "controller", "leading", l.Since, l.Error, l.Error == ""}
	if !r.healthy {
		r.state = "no leader"
	}
	return r
}

// part returns a component with its counters, or nil.
func (n *NodeStatus) part(system string) *report.Part {
	if n.Report != nil {
		for i := range n.Report.Parts {
			if n.Report.Parts[i].System == system {
				return &n.Report.Parts[i]
			}
		}
	}
	return nil
}

// State summarizes a node: the first of its rows that is not healthy.
func (n *NodeStatus) State() string {
	for _, r := range n.rows() {
		switch {
		case r.healthy:
		case r.component == "api":
			return "without the API"
		case r.state == "closed":
			return "with an address closed"
		default:
			return r.state
		}
	}
	return "ready"
}

// Unhealthy lists the components of a node that are not healthy, with their states and reasons.
func (n *NodeStatus) Unhealthy() (list []string) {
	for _, r := range n.rows() {
		if !r.healthy {
			text := r.component + ": " + r.state
			if r.reason != "" {
				text += ": " + FirstLine(r.reason)
			}
			list = append(list, text)
		}
	}
	return list
}

// groups has names by key, with the keys in the order in which they were added.
type groups[K comparable] struct {
	keys  []K
	names map[K][]string
}

func (g *groups[K]) add(key K, name string) {
	if g.names == nil {
		g.names = map[K][]string{}
	}
	if len(g.names[key]) == 0 {
		g.keys = append(g.keys, key)
	}
	g.names[key] = append(g.names[key], name)
}

// firstAndCount returns the first of names and the number of the others.
func firstAndCount(names []string) string {
	if n := len(names) - 1; n > 0 {
		return fmt.Sprintf("%s and %d more", names[0], n)
	}
	return names[0]
}

// FirstLine returns the first line of a text.
func FirstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// ago returns the time since t, rounded to a second.
func ago(now, t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return max(0, now.Sub(t)).Round(time.Second).String()
}
