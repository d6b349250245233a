// Package ui explains packets and shows clusters, on a terminal or as pages: `hairpin explain`,
// `policies`, `plan` and `ui`.
package ui

import (
	"context"
	"encoding/json"
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
	"hairpin/report"
	"hairpin/walk"
	"hairpin/walk/explain"
	"hairpin/walk/explain/picture"
	"hairpin/walk/explain/question"
)

// ExplainOptions select the question, the source of the cluster, and the format.
type ExplainOptions struct {
	question.Question          // without Protocol and Family
	Proto             string   // tcp, udp, sctp or empty
	IPFamily          string   // 4, 6 or empty
	Flags             []string // of the cluster's configuration, as on the command line

	Dir  string // folder of manifests; empty: the API (with a kubeconfig) or the agent of this node
	Diff string // folder of manifests after a change; its effect on the packet is reported
	Live bool   // compare with the real state of the nodes
	Send bool   // with Live: send a packet as well, and compare where the nodes observed it
	// EveryNode reads the cluster from the API, and with Live every node on the packet's path.
	// Otherwise both come from this node's agent.
	EveryNode bool
	Context   string // of the kubeconfig
	Namespace string // of the agents' pods
	Timeout   time.Duration

	Output       string // one of ExplainOutputs
	explain.Form        // of text
}

// FromForms lists the forms of FROM.
const FromForms = question.FromForms

// Ends returns the words that complete a command line: FROM without args, TO after FROM.
func Ends(s *cluster.Snapshot, args []string) []string {
	switch len(args) {
	case 0:
		return question.Sources(s)
	case 1:
		return question.Targets(s)
	}
	return nil
}

// ExplainOutputs returns the output formats of a walk.
func ExplainOutputs() []string { return []string{"text", "json", "yaml", "markdown", "svg"} }

// Explain walks a packet through the desired (or real) state of the nodes and prints every step. A
// nil error means that the packet arrives and its reply comes back. ErrProblems means that one of
// them does not, or that a fault was found.
func Explain(ctx context.Context, w, errw io.Writer, o ExplainOptions, c config.Config) error {
	if err := o.parse(); err != nil {
		return err
	}
	if o.Live || o.Send {
		if err := o.rejectFlags(); err != nil {
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
		return printExplanation(w, e, nil, o)
	}
	changed, err := readFolder("--diff", o.Diff, c)
	if err == nil {
		err = checkFlags(o.Flags, changed)
	}
	if err != nil {
		return err
	}
	after, err := explainIn(errw, changed, o.Question)
	if err != nil {
		return fmt.Errorf("after the change: %w", err)
	}
	return printDifference(w, e, after)
}

// cluster returns the options for requests to every node.
func (o *ExplainOptions) cluster(c config.Config) inspect.ClusterOptions {
	return inspect.ClusterOptions{Kubeconfig: c.Process.Kubeconfig, Context: o.Context, Namespace: o.Namespace,
		Timeout: o.Timeout}
}

// parse parses Proto and IPFamily.
func (o *ExplainOptions) parse() error {
	if o.Proto != "" {
		all := []cluster.Protocol{cluster.TCP, cluster.UDP, cluster.SCTP}
		i := slices.IndexFunc(all, func(p cluster.Protocol) bool { return p.String() == strings.ToLower(o.Proto) })
		if i < 0 {
			return &question.BadArgument{Field: "--proto", Word: o.Proto, Err: errors.New("must be tcp, udp or sctp")}
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
		return &question.BadArgument{Field: "--family", Word: o.IPFamily, Err: errors.New("must be 4 or 6")}
	}
	return nil
}

// problemPrefix starts each line of planned with a problem.
const problemPrefix = "problem: "

// planned returns the World of a Snapshot's desired state. It plans a node when a packet reaches
// it. Problems of objects are reported on errw.
func planned(errw io.Writer, s *cluster.Snapshot) walk.World {
	printed := map[string]bool{}
	printProblems := func(problems []cluster.Problem) {
		for _, p := range problems {
			if text := p.Error(); !printed[text] {
				printed[text] = true
				fmt.Fprintf(errw, problemPrefix+"%s\n", text)
			}
		}
	}
	printProblems(s.Problems)
	planner := plan.NewPlanner()
	return walk.World{Snapshot: s, Lookup: func(node string) (datapath.State, bool) {
		state, problems := planner.Node(s, node)
		printProblems(problems)
		return state, state.NB != nil
	}}
}

func explainIn(errw io.Writer, s *cluster.Snapshot, q question.Question) (*explain.Explanation, error) {
	return explain.Ask(walk.New(planned(errw, s)), s, q)
}

// printExplanation prints an explanation, and the fault if one was found.
func printExplanation(w io.Writer, e *explain.Explanation, fault *explain.Fault, o ExplainOptions) error {
	text, err := textOf(e, fault, o)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(w, text); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	if !e.Good() || fault != nil {
		return report.ErrProblems
	}
	return nil
}

// textOf returns an explanation in the format of o.
func textOf(e *explain.Explanation, fault *explain.Fault, o ExplainOptions) (string, error) {
	last := ""
	if fault != nil {
		last = "\n" + fault.String()
	}
	switch o.Output {
	case "json", "yaml":
		text, err := e.JSON()
		if err != nil {
			return "", err
		}
		var b strings.Builder
		_, err = report.PrintAs(&b, o.Output, json.RawMessage(text))
		return b.String(), err
	case "markdown":
		if e.Proof != nil {
			last = "\n" + e.Proof.String() + last
		}
		if last != "" {
			last = "```" + last + "```\n"
		}
		return e.Markdown(1, "") + last, nil
	case "svg":
		return picture.SVG(e), nil
	}
	return e.Text(o.Form) + last, nil
}

// printDifference prints the effect of a change on a packet. The result depends only on whether the
// packet arrives after the change.
func printDifference(w io.Writer, before, after *explain.Explanation) error {
	text := explain.Difference(before, after)
	if text == "" {
		text = "The change does not touch this packet. " + after.Sentence() + "\n"
	}
	if _, err := io.WriteString(w, text); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	if !after.Good() {
		return report.ErrProblems
	}
	return nil
}
