package ui

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"hairpin/config"
	"hairpin/policy"
	"hairpin/report"
	"hairpin/walk/explain/names"
)

// PoliciesOutputs returns the output formats of Policies. wide is a table with a line per rule.
func PoliciesOutputs() []string { return []string{"text", "wide", "json", "yaml"} }

// Policies prints the policies that select a pod, [NAMESPACE/]NAME. The cluster is that of Explain.
func Policies(ctx context.Context, w io.Writer, pod string, o ExplainOptions, c config.Config) error {
	s, err := explainedSnapshot(ctx, o, c)
	if err != nil {
		return err
	}
	if !strings.Contains(pod, "/") {
		pod = "default/" + pod
	}
	p := policy.DescribePod(s, pod)
	if p == nil {
		var known []string
		for _, p := range s.Pods {
			known = append(known, p.Owner.Namespace+"/"+p.Owner.Name)
		}
		return fmt.Errorf("there is no Pod %q with an address of its own (policies do not apply to Pods in the "+
			"host's network)%s", pod, names.Nearest(pod, known))
	}
	done, err := report.PrintAs(w, o.Output, p)
	switch {
	case done:
	case o.Output == "wide":
		err = printRules(w, p)
	default:
		_, err = io.WriteString(w, policiesText(p))
	}
	if err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// policiesText returns the policies of a pod for a terminal.
func policiesText(p *policy.PodDescription) string {
	var b strings.Builder
	fmt.Fprintf(&b, "pod/%s on node %s", p.Pod, p.Node)
	for _, a := range p.Addresses {
		fmt.Fprintf(&b, ", %s", a)
	}
	b.WriteByte('\n')
	if !p.Enforced {
		fmt.Fprintf(&b, "warning: node %s does not enforce policies: its service-engine is not openflow\n", p.Node)
	}
	for _, x := range directions(p) {
		state := "not isolated"
		if x.Isolated {
			state = "isolated: a packet needs a rule that accepts it"
		}
		fmt.Fprintf(&b, "\n%s  %s\n", x.title, state)
		for _, a := range x.Policies {
			fmt.Fprintf(&b, "  %s\n", a)
			for _, r := range a.Rules {
				fmt.Fprintf(&b, "    %s\n", r)
			}
			if len(a.Rules) == 0 {
				b.WriteString("    no rule: it accepts nothing\n")
			}
		}
	}
	return b.String()
}

// direction is what policies say about packets to or from a pod.
type direction struct {
	title string
	policy.Description
}

func directions(p *policy.PodDescription) []direction {
	return []direction{{"INGRESS", p.Ingress}, {"EGRESS", p.Egress}}
}

// printRules writes a table of the rules for a pod. A policy without a rule has a line, too.
func printRules(w io.Writer, p *policy.PodDescription) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "POD\tDIRECTION\tPOLICY\tRULE\tACTION\tPEERS\tPORTS\tPODS\tRANGES\n")
	for _, x := range directions(p) {
		for _, a := range x.Policies {
			for _, r := range a.Rules {
				peers, pods, ranges := strings.Join(r.Peers, " or "), fmt.Sprint(r.Pods), fmt.Sprint(r.Ranges)
				if r.AllPeers {
					peers, pods, ranges = "all", "-", "-"
				}
				fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\n", p.Pod, strings.ToLower(x.title), a, r.Rule,
					cmp.Or(r.Action, "accept"), peers, cmp.Or(strings.Join(r.Ports, ", "), "all"), pods, ranges)
			}
			if len(a.Rules) == 0 {
				fmt.Fprintf(t, "%s\t%s\t%s\t-\tdeny\tall\tall\t-\t-\n", p.Pod, strings.ToLower(x.title), a)
			}
		}
	}
	return t.Flush()
}
