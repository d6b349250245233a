package ui

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"hairpin/cluster"
	"hairpin/config"
	"hairpin/datapath"
	"hairpin/plan"
	"hairpin/walk/explain/names"
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
		var known []string
		for _, n := range s.Nodes {
			known = append(known, n.Name)
		}
		return fmt.Errorf("-f %s: has no Node %q; choose one with --node: %s", o.Dir, node, strings.Join(known, ", "))
	}
	if err := checkFlags(flags, &cluster.Snapshot{Nodes: []*cluster.Node{s.Node(node)}}); err != nil {
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
		return notPlanned(o, node, s)
	}
	if _, err := io.WriteString(w, text); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// notPlanned reports options that select nothing of a node's State, with objects of a similar name.
func notPlanned(o PlanOptions, node string, s *cluster.Snapshot) error {
	if o.Object == "" {
		return fmt.Errorf("--system %s: nothing is planned for it on node %s", strings.Join(o.Systems, ","), node)
	}
	var known []string
	for _, f := range s.Frontends {
		known = append(known, f.Owner.String())
	}
	for _, p := range s.Pods {
		known = append(known, p.Owner.String())
	}
	known = slices.DeleteFunc(known, func(name string) bool { return name == o.Object })
	return fmt.Errorf("--object %s: nothing is planned for it on node %s%s", o.Object, node,
		names.Nearest(o.Object, known))
}
