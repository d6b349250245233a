package pods

import (
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"text/tabwriter"

	"hairpin/inspect"
	"hairpin/preflight"
	"hairpin/report"
)

// blocked reports whether a finding stops an installation on the node.
func (n *Node) blocked() bool {
	return slices.ContainsFunc(n.Findings, func(f preflight.Finding) bool { return f.Severity == preflight.Stops })
}

func show(w io.Writer, list []Node, output string) error {
	if done, err := report.PrintAs(w, output, list); done {
		return err
	}
	return table(w, list)
}

// row is a finding, and the nodes that have it.
type row struct {
	preflight.Finding
	nodes []string
}

// table prints each finding once, with the nodes that have it.
func table(w io.Writer, list []Node) error {
	var rows []row
	ready, blocked, unknown := 0, 0, 0
	for _, n := range list {
		switch {
		case n.Error != "":
			unknown++
			n.Findings = []preflight.Finding{{Severity: preflight.Stops, Object: "the node",
				Message: "could not be checked: " + inspect.FirstLine(n.Error)}}
		case n.blocked():
			blocked++
		default:
			ready++
		}
		for _, f := range n.Findings {
			i := slices.IndexFunc(rows, func(r row) bool { return reflect.DeepEqual(r.Finding, f) })
			if i < 0 {
				i, rows = len(rows), append(rows, row{Finding: f})
			}
			rows[i].nodes = append(rows[i].nodes, n.Node)
		}
	}
	slices.SortStableFunc(rows, func(a, b row) int { return preflight.Compare(a.Finding, b.Finding) })
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		r.Print(t, names(r.nodes, len(list))+"\t", "\t")
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w,
		"%s: %d ready for Hairpin, %d not, %d could not be checked\n", report.Counted(len(list), "node"),
		ready, blocked, unknown)
	return err
}

// names lists some of the nodes; total is the number of all nodes that were checked.
func names(nodes []string, total int) string {
	const most = 3
	switch {
	case len(nodes) == total && total > 1:
		return fmt.Sprintf("all %d", total)
	case len(nodes) > most:
		return fmt.Sprintf("%s and %d more", strings.Join(nodes[:most-1], ", "), len(nodes)-most+1)
	}
	return strings.Join(nodes, ", ")
}
