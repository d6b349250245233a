package ui

import (
	"fmt"
	"io"
	"strings"

	"hairpin/cluster"
	"hairpin/config"
	"hairpin/datapath"
	"hairpin/plan"
)

// PlanOptions select what Plan prints.
type PlanOptions struct {
	Dir     string   // the folder of manifests
	Systems []string // some of datapath.Systems; empty = all
	Object  string   // KIND/NAMESPACE/NAME or KIND/NAME: only what is planned for it; empty = for all
}

// Systems returns the names of the systems that a node's desired State configures.
func Systems() []string { return datapath.Systems() }

// Plan prints the desired State of a node, from a folder of manifests. It reports problems on errw.
// A missing Node is an error.
func Plan(w, errw io.Writer, o PlanOptions, flags []string, c config.Config) error {
	only, err := datapath.ParseFilter(o.Systems, o.Object)
	if err != nil {
		return fmt.Errorf("--%w", err)
	}
	node, err := config.NodeName(c)
	if err != nil {
		return err
	}
	s, err := readFolder("-f", o.Dir, c)
	if err != nil {
		return err
	}
	if s.Node(node) == nil {
		var names []string
		for _, n := range s.Nodes {
			names = append(names, n.Name)
		}
		return fmt.Errorf("-f %s: has no Node %q; choose one with --node: %s", o.Dir, node, strings.Join(names, ", "))
	}
	if err := canAct(flags, &cluster.Snapshot{Nodes: []*cluster.Node{s.Node(node)}}); err != nil {
		return err
	}
	state, problems := plan.Node(s, node)
	for _, p := range append(s.Problems[:len(s.Problems):len(s.Problems)], problems...) {
		if _, err := fmt.Fprintln(errw, p.Error()); err != nil {
			return fmt.Errorf("print: %w", err)
		}
	}
	text := only.Print(state)
	if text == "" {
		return fmt.Errorf("nothing of that is planned on node %s", node)
	}
	if _, err := io.WriteString(w, text); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}
