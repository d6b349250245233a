// Package inspect asks agents, of this node or of all: status, probe, diff, collect.
package inspect

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"hairpin/config"
	"hairpin/report"
)

// StatusOptions say whom to ask, and how to print what they say.
type StatusOptions struct {
	All        bool   // every node of the cluster, instead of this one
	Kubeconfig string // for All; empty = the environment's, as kubectl does
	Context    string // of the kubeconfig; empty = its current one
	Namespace  string // of the agents' pods
	Timeout    time.Duration
	Output     string        // "text" or "json"
	Wait       time.Duration // how long to wait until all is well
	Brief      bool          // without the egress addresses of the cluster, which each node's report has
}

// Pauses between two looks of a status that waits.
const (
	localPause   = 200 * time.Millisecond
	clusterPause = 2 * time.Second
)

// NodeStatus is what a node's agent says, or why it says nothing.
type NodeStatus struct {
	Node   string         `json:"node"`
	Error  string         `json:"error,omitempty"`
	Report *report.Report `json:"report,omitempty"`
}

// LeaderStatus is the Lease of the controller that works.
type LeaderStatus struct {
	Holder  string    `json:"holder,omitempty"`
	Since   time.Time `json:"since,omitzero"`   // when it took the Lease
	Renewed time.Time `json:"renewed,omitzero"` // when it renewed it last
	Error   string    `json:"error,omitempty"`  // why there is no leader
}

// ClusterStatus is how all nodes are.
type ClusterStatus struct {
	Nodes      []NodeStatus  `json:"nodes"`
	Controller *LeaderStatus `json:"controller,omitempty"`
	// NetworkPolicies is how many there are, which have no effect.
	NetworkPolicies int64 `json:"networkPolicies,omitempty"`
}

// Status prints how the agent of this node is, or all agents: one line per part. Without an error
// all is well.
func Status(ctx context.Context, w io.Writer, c config.Config, o StatusOptions) error {
	if o.Output != "text" && o.Output != "json" {
		return fmt.Errorf("--output %q is not one of text, json", o.Output)
	}
	look, pause := localStatus(c), localPause
	if o.All {
		var err error
		if look, err = clusterStatus(o); err != nil {
			return err
		}
		pause = clusterPause
	}
	end := time.Now().Add(o.Wait)
	for {
		s, err := look(ctx)
		if err == nil && s.well() || time.Until(end) < pause || ctx.Err() != nil {
			if err != nil {
				return err
			}
			return s.show(w, o)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// show prints the answer.
func (s *ClusterStatus) show(w io.Writer, o StatusOptions) error {
	for _, n := range s.Nodes {
		if o.Brief && n.Report != nil {
			n.Report.Egress = nil
		}
	}
	var err error
	if o.Output == "json" {
		var what any = s
		if !o.All {
			what = s.Nodes[0].Report
		}
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		err = e.Encode(what)
	} else {
		err = s.print(w)
	}
	switch {
	case err != nil:
		return fmt.Errorf("print: %w", err)
	case !s.well():
		return report.ErrNotWell
	}
	return nil
}

// localStatus asks this node's agent by its socket.
func localStatus(c config.Config) func(context.Context) (*ClusterStatus, error) {
	return func(ctx context.Context) (*ClusterStatus, error) {
		body, err := FromAgent(ctx, c, "/report")
		if err != nil {
			return nil, err
		}
		r, err := report.Parse(body)
		if err != nil {
			return nil, err
		}
		return &ClusterStatus{Nodes: []NodeStatus{{Node: r.Node, Report: r}}}, nil
	}
}

// well tells that there is nothing to be done.
func (s *ClusterStatus) well() bool {
	for _, n := range s.Nodes {
		if n.Report == nil || !n.Report.Well() {
			return false
		}
	}
	return len(s.Nodes) > 0 && (s.Controller == nil || s.Controller.Error == "")
}
