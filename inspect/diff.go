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
	StatusOptions          // without Wait and Brief
	Systems       []string // some of datapath.Systems; empty = all
	Object        string   // KIND/NAMESPACE/NAME or KIND/NAME: only what is planned for it; empty = for all
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
	planned := slices.ContainsFunc(list,
		func(n NodeDiff) bool { return n.Planned || n.Error != "" || len(n.Differences) > 0 })
	if planned || report.ForPrograms(o.Output) { // --all reads the answer of a node also if nothing is planned there
		if err := o.print(w, list); err != nil {
			return fmt.Errorf("print: %w", err)
		}
	}
	if !planned {
		return o.notPlanned()
	}
	if slices.ContainsFunc(list, func(n NodeDiff) bool { return n.Error != "" || len(n.Differences) > 0 }) {
		return report.ErrProblems
	}
	return nil
}

// notPlanned reports options that select nothing.
func (o *DiffOptions) notPlanned() error {
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
	e, err := NewEveryNode(o.StatusOptions)
	if err != nil {
		return nil, err
	}
	limited, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	agents, err := e.agents(limited)
	if err != nil {
		return nil, err
	}
	return askAll(agents, func(a agentPod) NodeDiff {
		n, err := e.diff(ctx, a, o)
		if err == nil && n.Node != a.node {
			err = errWrongNode(n.Node)
		}
		if err != nil {
			n = NodeDiff{Error: err.Error()}
		}
		n.Node = a.node
		return n
	}), nil
}

// diff runs `hairpin diff` in an agent's container.
func (e *everyNode) diff(ctx context.Context, a agentPod, o *DiffOptions) (NodeDiff, error) {
	command := []string{"hairpin", "diff", "--output=json"}
	for _, s := range o.Systems {
		command = append(command, "--system="+s)
	}
	if o.Object != "" {
		command = append(command, "--object="+o.Object)
	}
	out, err := e.execAgent(ctx, a, maxArchive, command...)
	n, bad := parseDiff(out)
	if bad == nil {
		return n, nil // with an error, if there are differences
	}
	if err == nil {
		err = bad
	}
	return n, err
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

// print writes the differences of a node, below its name if that is asked for.
func (n *NodeDiff) print(w io.Writer, named bool) (err error) {
	before, result := "", "no differences"
	switch {
	case n.Error != "":
		result = "could not be compared: " + FirstLine(n.Error)
	case len(n.Differences) > 0:
		result = fmt.Sprintf("%d differences", len(n.Differences))
	case !n.Planned:
		result = "nothing is planned for it"
	}
	switch {
	case named:
		before = "  "
		_, err = fmt.Fprintf(w, "%s: %s\n", n.Node, result)
	case len(n.Differences) == 0:
		_, err = fmt.Fprintln(w, result)
	}
	for _, d := range n.Differences {
		if _, err = fmt.Fprintf(w, "%s%s\n", before, d.Line); err != nil {
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
