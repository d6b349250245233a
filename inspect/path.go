package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"hairpin/config"
	"hairpin/report"
)

// AskPath requests a path from an agent through the API server.
func (e *everyNode) AskPath(ctx context.Context, node, path string) ([]byte, error) {
	pods, err := e.Client.Pods(e.options.Namespace).List(ctx,
		metav1.ListOptions{LabelSelector: agentSelector, FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return nil, fmt.Errorf("list the agents' pods: %w", err)
	}
	pod, why := choosePod(pods.Items, node)
	if pod == nil {
		return nil, errors.New(why + " in namespace " + e.options.Namespace)
	}
	out, err := e.exec(ctx, pod, maxArchive, "hairpin", "ask", path)
	return plainJSON(out), err
}

var escaped = regexp.MustCompile(`\\.`)

// plainJSON is report.Plain for JSON, where escapes can encode terminal control characters. It
// keeps line ends and tabs.
func plainJSON(text []byte) []byte {
	return escaped.ReplaceAllFunc([]byte(report.Plain(string(text), "\n\t")), func(e []byte) []byte {
		if bytes.IndexByte([]byte("bfru"), e[1]) >= 0 {
			return append([]byte(`\`), e...)
		}
		return e
	})
}

// Ask prints the answer of this node's agent for a path. `hairpin explain` and `hairpin collect`
// run it in the agents' containers.
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
func AgentReport(ctx context.Context, c config.Config) (r report.Report, err error) {
	body, err := FromAgent(ctx, c, "/report")
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(body, &r); err != nil {
		return r, fmt.Errorf("answer of the agent: %w", err)
	}
	return r, nil
}
