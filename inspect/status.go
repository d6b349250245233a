// Package inspect has the commands that request data from agents: status, probe, diff and collect.
// They use the socket of this node's agent (ask.go), or reach the agents of all nodes through the
// API server (agents.go). Answers of agents are not trusted: they have a maximum size, and are made
// safe to print.
package inspect

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"hairpin/config"
	"hairpin/report"
)

// StatusOptions select the agents and the format of the output.
type StatusOptions struct {
	All bool // every node of the cluster, instead of this one
	ClusterOptions
	Output string        // one of StatusOutputs
	Wait   time.Duration // how long to wait until every component is healthy
	Brief  bool          // without the cluster's egress addresses, which are in each node's report
}

// Pauses between two polls with StatusOptions.Wait.
const (
	localPause   = 200 * time.Millisecond
	clusterPause = 2 * time.Second
)

// NodeStatus is the report of a node's agent, or the error of the request.
type NodeStatus struct {
	Node   string         `json:"node"`
	Error  string         `json:"error,omitempty"`
	Report *report.Report `json:"report,omitempty"`
}

// LeaderStatus is the Lease of the active controller.
type LeaderStatus struct {
	Holder  string    `json:"holder,omitempty"`
	Since   time.Time `json:"since,omitzero"`   // when it took the Lease
	Renewed time.Time `json:"renewed,omitzero"` // when it renewed it last
	Error   string    `json:"error,omitempty"`  // why there is no leader
}

// ClusterStatus is the status of all nodes.
type ClusterStatus struct {
	Nodes      []NodeStatus  `json:"nodes"`
	Controller *LeaderStatus `json:"controller,omitempty"`
}

// StatusOutputs returns the output formats: text folds what is healthy, wide has a line per
// component and node.
func StatusOutputs() []string { return []string{"text", "wide", "json", "yaml"} }

// Status prints the status of this node's agent, or of all agents. A nil error means that every
// component is healthy and, unless it waits for that, that no object has a problem.
func Status(ctx context.Context, w io.Writer, c config.Config, o StatusOptions) error {
	read, err := statusReader(c, o)
	if err != nil {
		return err
	}
	pause := localPause
	if o.All {
		pause = clusterPause
	}
	for end := time.Now().Add(o.Wait); ; {
		s, err := read(ctx)
		healthy := err == nil && s.healthy()
		switch {
		case !healthy && time.Until(end) >= pause && ctx.Err() == nil:
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		case err != nil:
			return err
		default:
			return s.print(w, o)
		}
	}
}

// ReadStatus returns the status of this node's agent, or of all agents.
func ReadStatus(ctx context.Context, c config.Config, o StatusOptions) (*ClusterStatus, error) {
	read, err := statusReader(c, o)
	if err != nil {
		return nil, err
	}
	return read(ctx)
}

// statusReader returns a function that reads the status of this node's agent, or of all agents.
func statusReader(c config.Config, o StatusOptions) (func(context.Context) (*ClusterStatus, error), error) {
	if !o.All {
		return localStatus(c, o.Brief), nil
	}
	a, err := Connect(o.ClusterOptions)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (*ClusterStatus, error) { return a.status(ctx, o.Brief) }, nil
}

// print prints the status.
func (s *ClusterStatus) print(w io.Writer, o StatusOptions) error {
	for _, n := range s.Nodes {
		if o.Brief && n.Report != nil {
			n.Report.Egress = nil
		}
	}
	var what any = s
	if !o.All {
		what = s.Nodes[0].Report
	}
	done, err := report.PrintAs(w, o.Output, what)
	if !done {
		err = s.printText(w, o.Output == "wide")
	}
	switch {
	case err != nil:
		return fmt.Errorf("print: %w", err)
	case !s.healthy(), o.Wait == 0 && !s.withoutProblems():
		return report.ErrProblems
	}
	return nil
}

// localStatus returns a function that reads the status of this node's agent through its socket.
func localStatus(c config.Config, brief bool) func(context.Context) (*ClusterStatus, error) {
	path := "/report"
	if brief {
		path += "?brief=true"
	}
	return func(ctx context.Context) (*ClusterStatus, error) {
		body, err := FromAgent(ctx, c, path)
		if err != nil {
			return nil, suggestAll(err)
		}
		r, err := report.Parse(body)
		if err != nil {
			return nil, err
		}
		return &ClusterStatus{Nodes: []NodeStatus{{Node: r.Node, Report: r}}}, nil
	}
}

// withoutProblems reports whether every component is healthy and no object has a problem.
func (s *ClusterStatus) withoutProblems() bool {
	return s.healthy() && !slices.ContainsFunc(s.Nodes, func(n NodeStatus) bool { return len(n.Report.Problems) > 0 })
}

// healthy reports whether every component of every node is healthy.
func (s *ClusterStatus) healthy() bool {
	for _, n := range s.Nodes {
		if n.Report == nil || !n.Report.Healthy() {
			return false
		}
	}
	return len(s.Nodes) > 0 && (s.Controller == nil || s.Controller.Error == "")
}
