// Package ui explains packets and pictures clusters, on a terminal or as pages: what `hairpin
// explain`, `plan` and `ui` do.
package ui

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"hairpin/cluster"
	"hairpin/config"
	"hairpin/datapath"
	"hairpin/inspect"
	"hairpin/plan"
	"hairpin/plan/egress"
	"hairpin/report"
	"hairpin/walk"
	"hairpin/walk/explain"
)

// ExplainOptions say what to explain, from which source, and in which form.
type ExplainOptions struct {
	explain.Question          // without Protocol and Family
	Proto            string   // tcp, udp, sctp or empty
	IPFamily         string   // 4, 6 or empty
	Flags            []string // of the cluster's configuration, as they stood on the command line

	Dir  string // folder of manifests; empty: the API (with a kubeconfig) or the agent of this node
	Diff string // folder of manifests after a change; what it does to the packet is told
	Live bool   // compare with what is really on the nodes
	Send bool   // with Live: send a packet as well, and compare what the nodes saw of it
	// EveryNode reads the cluster from the API, and means with Live every node on the packet's way;
	// else both are asked of this node's agent.
	EveryNode bool
	Context   string // of the kubeconfig
	Namespace string // of the agents' pods
	Timeout   time.Duration

	Output string // text, json, markdown or svg
	Colour bool
}

// ExplainOutputs are the forms in which a walk can be told.
func ExplainOutputs() []string { return []string{"text", "json", "markdown", "svg"} }

// Explain walks a packet through what the nodes must have (or have) and tells every step. Without
// an error the packet arrives and its reply comes back; ErrNotWell says that one of them does not,
// or that a fault was found.
func Explain(ctx context.Context, w, errw io.Writer, o ExplainOptions, c config.Config) error {
	if !slices.Contains(ExplainOutputs(), o.Output) {
		return fmt.Errorf("--output %q is not one of %v", o.Output, ExplainOutputs())
	}
	if err := o.words(); err != nil {
		return err
	}
	if o.Live || o.Send {
		if err := o.asAgentsSay(); err != nil {
			return err
		}
		return explainLive(ctx, w, errw, o, c)
	}
	s, err := explainedSnapshot(ctx, o, c)
	if err != nil {
		return err
	}
	e, err := explainIn(errw, s, o.Question)
	if err != nil {
		return err
	}
	if o.Diff == "" {
		return tell(w, e, nil, o)
	}
	changed, err := readFolder("--diff", o.Diff, c)
	if err == nil {
		err = canAct(o.Flags, changed)
	}
	if err != nil {
		return err
	}
	after, err := explainIn(errw, changed, o.Question)
	if err != nil {
		return fmt.Errorf("after the change: %w", err)
	}
	return tellDifference(w, e, after)
}

// status says how to ask every node.
func (o *ExplainOptions) status(c config.Config) inspect.StatusOptions {
	return inspect.StatusOptions{Kubeconfig: c.Process.Kubeconfig, Context: o.Context, Namespace: o.Namespace,
		Timeout: o.Timeout}
}

// words reads Proto and IPFamily.
func (o *ExplainOptions) words() error {
	if o.Proto != "" {
		all := []cluster.Protocol{cluster.TCP, cluster.UDP, cluster.SCTP}
		i := slices.IndexFunc(all, func(p cluster.Protocol) bool { return p.String() == strings.ToLower(o.Proto) })
		if i < 0 {
			return &explain.BadArgument{Field: "--proto", Word: o.Proto, Err: fmt.Errorf("must be one of %v", all)}
		}
		o.Protocol = all[i]
	}
	switch strings.TrimPrefix(strings.ToLower(o.IPFamily), "ipv") {
	case "":
	case "4":
		o.Family = cluster.IPv4
	case "6":
		o.Family = cluster.IPv6
	default:
		return &explain.BadArgument{Field: "--family", Word: o.IPFamily, Err: errors.New("must be 4 or 6")}
	}
	return nil
}

// planned is the World that a Snapshot wants. Nodes are planned when a packet comes to them. What
// is wrong with the objects goes to errw.
func planned(errw io.Writer, s *cluster.Snapshot) walk.World {
	told := map[string]bool{}
	tell := func(problems []cluster.Problem) {
		for _, p := range problems {
			if text := p.Error(); !told[text] {
				told[text] = true
				fmt.Fprintf(errw, "problem: %s\n", text)
			}
		}
	}
	tell(s.Problems)
	planner := plan.NewPlanner()
	return walk.World{Snapshot: s, Lookup: func(node string) (datapath.State, bool) {
		state, problems := planNode(planner, s, node)
		tell(problems)
		return state, state.NB != nil
	}}
}

// planNode is what an agent wants of its node: also for egress addresses that move, if the Snapshot
// is of an agent, which alone knows.
func planNode(p *plan.Planner, s *cluster.Snapshot, node string) (datapath.State, []cluster.Problem) {
	state, problems := p.Node(s, node)
	if state.NB != nil {
		state = egress.WithMoves(state, s, node)
	}
	return state, problems
}

func explainIn(errw io.Writer, s *cluster.Snapshot, q explain.Question) (*explain.Explanation, error) {
	return explain.Ask(walk.New(planned(errw, s)), s, q)
}

// tell prints an explanation, and the fault if one was found.
func tell(w io.Writer, e *explain.Explanation, fault *explain.Fault, o ExplainOptions) error {
	text, err := told(e, fault, o)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(w, text); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	if !e.Good() || fault != nil {
		return report.ErrNotWell
	}
	return nil
}

func told(e *explain.Explanation, fault *explain.Fault, o ExplainOptions) (string, error) {
	last := ""
	if fault != nil {
		last = "\n" + fault.String()
	}
	switch o.Output {
	case "json":
		text, err := e.JSON(fault)
		return string(text), err
	case "markdown":
		if e.Proof != nil {
			last = "\n" + e.Proof.String() + last
		}
		if last != "" {
			last = "```" + last + "```\n"
		}
		return e.Markdown(1, "") + last, nil
	case "svg":
		return e.SVG(), nil
	}
	return e.Text(o.Colour) + last, nil
}

// tellDifference prints what a change does to a packet. Only whether it arrives after the change
// counts.
func tellDifference(w io.Writer, before, after *explain.Explanation) error {
	text := explain.Difference(before, after)
	if text == "" {
		text = "The change does not touch this packet. " + after.Sentence() + "\n"
	}
	if _, err := io.WriteString(w, text); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	if !after.Good() {
		return report.ErrNotWell
	}
	return nil
}
