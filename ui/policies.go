package ui

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"hairpin/config"
	"hairpin/policy"
)

// PoliciesOutputs returns the output formats of Policies.
func PoliciesOutputs() []string { return []string{"text", "json"} }

// Policies prints the policies that select a pod, [NAMESPACE/]NAME. The cluster is that of Explain.
func Policies(ctx context.Context, w io.Writer, pod string, o ExplainOptions, c config.Config) error {
	if o.Output != "text" && o.Output != "json" {
		return fmt.Errorf("--output %q is not one of %v", o.Output, PoliciesOutputs())
	}
	s, err := explainedSnapshot(ctx, o, c)
	if err != nil {
		return err
	}
	if !strings.Contains(pod, "/") {
		pod = "default/" + pod
	}
	p := policy.DescribePod(s, pod)
	if p == nil {
		return fmt.Errorf("there is no Pod %q with an address of its own; policies do not apply to Pods in the "+
			"host's network", pod)
	}
	if o.Output == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		err = e.Encode(p)
	} else {
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
	for _, x := range []struct {
		title string
		policy.Description
	}{{"INGRESS", p.Ingress}, {"EGRESS", p.Egress}} {
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
