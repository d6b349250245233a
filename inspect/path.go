package inspect

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/config"
	"hairpin/report"
)

// FromNode requests path from the agent of a node, through the API server.
func (a *Agents) FromNode(ctx context.Context, node, path string) ([]byte, error) {
	listing, cancel := context.WithTimeout(ctx, a.options.Timeout)
	defer cancel()
	pods, err := a.Client.Pods(a.options.Namespace).List(listing,
		metav1.ListOptions{LabelSelector: agentSelector, FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return nil, fmt.Errorf("list the agents' pods: %w", err)
	}
	out, err := a.execAgent(ctx, a.choosePod(pods.Items, node), maxArchive, "hairpin", "ask", path)
	return plainJSON(out), err
}

var escapeOfJSON = regexp.MustCompile(`\\(u[0-9a-fA-F]{4}|.)`)

// plainJSON makes the strings in a JSON text safe to print: it changes each escape of a terminal
// control character to its text, as "\u001b" to "\\u001b". It keeps line ends and tabs.
func plainJSON(text []byte) []byte {
	return escapeOfJSON.ReplaceAllFunc([]byte(report.Plain(string(text), "\n\t")), func(e []byte) []byte {
		var character string
		if json.Unmarshal(slices.Concat([]byte(`"`), e, []byte(`"`)), &character) == nil &&
			report.Plain(character, "\n\t") == character {
			return e
		}
		return append([]byte(`\`), e...)
	})
}

// Ask prints the answer of this node's agent for a path. FromNode runs it in the agents'
// containers.
func Ask(ctx context.Context, w io.Writer, path string, c config.Config) error {
	body, err := FromAgent(ctx, c, path)
	if err != nil {
		return err
	}
	if _, err := w.Write(body); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// AgentReport returns the report of this node's agent.
func AgentReport(ctx context.Context, c config.Config) (*report.Report, error) {
	body, err := FromAgent(ctx, c, "/report")
	if err != nil {
		return nil, err
	}
	return report.Parse(body)
}
