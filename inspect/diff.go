package inspect

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"

	"hairpin/config"
	"hairpin/datapath"
	"hairpin/report"
)

// DiffOptions select the agents, the lines of their states, and the format of the output.
type DiffOptions struct {
	All bool // every node of the cluster, instead of this one
	ClusterOptions
	Output  string   // one of DiffOutputs
	Systems []string // some of datapath.Systems; empty = all
	Object  string   // KIND/NAMESPACE/NAME or KIND/NAME: only what is planned for it; empty = for all
}

// NodeDiff is the comparison of a node with its desired state, or the error of the request.
type NodeDiff struct {
	datapath.Comparison
	Error string `json:"error,omitempty"`
}

// DiffOutputs returns the output formats of Diff: wide is a table.
func DiffOutputs() []string { return []string{"text", "wide", "json", "yaml"} }

// Diff reads this node or all nodes back, and prints their differences from the desired state. A
// nil error means that there are none. ErrProblems means that a node differs or could not be
// compared.
func Diff(ctx context.Context, w io.Writer, c config.Config, o DiffOptions) error {
	if _, err := datapath.ParseFilter(o.Systems, o.Object); err != nil {
		return fmt.Errorf("--%w", err)
	}
	list, err := o.compare(ctx, c)
	if err != nil {
		return err
	}
	differs := slices.ContainsFunc(list, func(n NodeDiff) bool { return n.Error != "" || len(n.Differences) > 0 })
	unplanned := !differs && !slices.ContainsFunc(list, func(n NodeDiff) bool { return n.Planned })
	if !unplanned || report.ForPrograms(o.Output) { // with --all, each node's output is parsed, even if it fails
		if err := o.print(w, list); err != nil {
			return fmt.Errorf("print: %w", err)
		}
	}
	switch {
	case unplanned:
		return o.errUnplanned()
	case differs:
		return report.ErrProblems
	}
	return nil
}

// errUnplanned returns the error for options that select nothing.
func (o *DiffOptions) errUnplanned() error {
	if o.Object == "" {
		return fmt.Errorf("--system %s: nothing is planned for it", strings.Join(o.Systems, ","))
	}
	return fmt.Errorf("--object %s: nothing is planned for it; the form is KIND/NAMESPACE/NAME, such as "+
		"Service/default/web", o.Object)
}

// compare requests the comparisons.
func (o *DiffOptions) compare(ctx context.Context, c config.Config) ([]NodeDiff, error) {
	if !o.All {
		q := url.Values{"output": {"json"}, "system": o.Systems}
		if o.Object != "" {
			q.Set("object", o.Object)
		}
		body, err := FromAgent(ctx, c, "/diff?"+q.Encode())
		if err != nil {
			return nil, suggestAll(err)
		}
		n, err := parseDiff(body)
		return []NodeDiff{n}, err
	}
	a, err := Connect(o.ClusterOptions)
	if err != nil {
		return nil, err
	}
	nodes, err := a.pods(ctx)
	if err != nil {
		return nil, err
	}
	return askAll(nodes, func(n agentPod) NodeDiff {
		d, err := a.diff(ctx, n, o)
		if err == nil && d.Node != n.node {
			err = errWrongNode(d.Node)
		}
		if err != nil {
			d = NodeDiff{Error: err.Error()}
		}
		d.Node = n.node
		return d
	}), nil
}

// diff runs `hairpin diff` in an agent's container. The command fails if there are differences, and
// prints them.
func (a *Agents) diff(ctx context.Context, n agentPod, o *DiffOptions) (NodeDiff, error) {
	command := []string{"hairpin", "diff", "--output=json"}
	for _, s := range o.Systems {
		command = append(command, "--system="+s)
	}
	if o.Object != "" {
		command = append(command, "--object="+o.Object)
	}
	out, err := a.execAgent(ctx, n, maxArchive, command...)
	d, parseErr := parseDiff(out)
	if parseErr == nil || err == nil {
		err = parseErr
	}
	return d, err
}

// parseDiff reads the answer of an agent, which is not trusted, and makes it safe to print.
func parseDiff(body []byte) (n NodeDiff, err error) {
	if err := json.Unmarshal(body, &n); err != nil {
		return n, fmt.Errorf("answer of the agent: %w", err)
	}
	report.PlainStrings(&n)
	return n, nil
}

func (o *DiffOptions) print(w io.Writer, list []NodeDiff) error {
	var what any = list
	if !o.All {
		what = list[0]
	}
	if done, err := report.PrintAs(w, o.Output, what); done {
		return err
	}
	if o.Output == "wide" {
		return printDiffTable(w, list)
	}
	for _, n := range list {
		if err := n.print(w, o.All); err != nil {
			return err
		}
	}
	return nil
}

// print writes the differences of a node; if withName, indented below a line with its name.
func (n *NodeDiff) print(w io.Writer, withName bool) (err error) {
	indent, result := "", "no differences"
	switch {
	case n.Error != "":
		result = "could not be compared: " + FirstLine(n.Error)
	case len(n.Differences) > 0:
		result = fmt.Sprintf("%d differences", len(n.Differences))
	case !n.Planned:
		result = "nothing is planned for it"
	}
	switch {
	case withName:
		indent = "  "
		_, err = fmt.Fprintf(w, "%s: %s\n", n.Node, result)
	case len(n.Differences) == 0:
		_, err = fmt.Fprintln(w, result)
	}
	for _, d := range n.Differences {
		if _, err = fmt.Fprintf(w, "%s%s\n", indent, d.Line); err != nil {
			return err
		}
	}
	return err
}

func printDiffTable(w io.Writer, list []NodeDiff) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "NODE\tSYSTEM\tDIFFERENCE\n")
	for _, n := range list {
		if n.Error != "" {
			fmt.Fprintf(t, "%s\t-\tcould not be compared: %s\n", n.Node, FirstLine(n.Error))
		}
		for _, d := range n.Differences {
			fmt.Fprintf(t, "%s\t%s\t%s\n", n.Node, d.System, d.Line)
		}
	}
	return t.Flush()
}
