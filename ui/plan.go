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

// Plan prints the desired State of a node, from a folder of manifests. It reports problems on errw.
// A missing Node is an error.
func Plan(w, errw io.Writer, dir string, flags []string, c config.Config) error {
	node, err := config.NodeName(c)
	if err != nil {
		return err
	}
	s, err := readFolder("-f", dir, c)
	if err != nil {
		return err
	}
	if s.Node(node) == nil {
		var names []string
		for _, n := range s.Nodes {
			names = append(names, n.Name)
		}
		return fmt.Errorf("-f %s: has no Node %q; choose one with --node: %s", dir, node, strings.Join(names, ", "))
	}
	if err := canAct(flags, &cluster.Snapshot{Nodes: []*cluster.Node{s.Node(node)}}); err != nil {
		return err
	}
	state, problems := planNode(plan.NewPlanner(), s, node)
	for _, p := range append(s.Problems[:len(s.Problems):len(s.Problems)], problems...) {
		if _, err := fmt.Fprintln(errw, p.Error()); err != nil {
			return fmt.Errorf("print: %w", err)
		}
	}
	if _, err := io.WriteString(w, datapath.Print(state)); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}
