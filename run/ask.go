package run

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"
)

// get asks the agent of this node.
func get(ctx context.Context, c Config, path string) ([]byte, error) {
	socket := filepath.Join(c.Process.RunDir, agentSocket)
	client := http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+path, nil)
	if err != nil {
		return nil, fmt.Errorf("ask the agent: %w", err)
	}
	answer, err := client.Do(q)
	if err != nil {
		return nil, fmt.Errorf("ask the agent of this node (is `hairpin node` running?): %w", err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return nil, fmt.Errorf("ask the agent: %w", err)
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("the agent says: %s", strings.TrimSpace(string(body)))
	}
	return body, nil
}

// Status prints how the agent of this node is: one line per part. Without an error all is well.
func Status(ctx context.Context, w io.Writer, c Config) error {
	body, err := get(ctx, c, "/report")
	if err != nil {
		return err
	}
	var r Report
	if err := json.Unmarshal(body, &r); err != nil {
		return fmt.Errorf("answer of the agent: %w", err)
	}
	well := r.Ready && len(r.Problems) == 0
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "NODE\tPART\tSTATE\tSINCE\tREADS\tAPPLIES\tWRITTEN\tDRIFT REPAIRED\tERRORS\tLAST ERROR\n")
	state := "ready"
	if !r.Ready {
		state = "not ready"
	}
	fmt.Fprintf(t, "%s\tagent\t%s\t\t\t\t\t\t\t%s\n", r.Node, state, r.Reason)
	for _, p := range r.Parts {
		state := "in sync"
		if !p.InSync {
			state, well = "not in sync", false
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\n", r.Node, p.System, state, time.Since(p.Since).Round(time.Second),
			p.Reads, p.Applies, p.Written, p.Drift, p.Errors, firstLine(p.Error))
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	fmt.Fprintf(w, "%d pods, %d service frontends, Open vSwitch restarts repaired: %d, hairpin %s\n", r.Pods, r.Services, r.Restarts, r.Version)
	for _, p := range r.Problems {
		fmt.Fprintf(w, "problem: %s\n", p)
	}
	if !well {
		return ErrNotWell
	}
	return nil
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// Diff reads the node back and prints the lines in which it differs from what it must have: "- " is missing, "+ " is too
// much. Without an error nothing differs.
func Diff(ctx context.Context, w io.Writer, c Config) error {
	lines, err := get(ctx, c, "/diff")
	if err != nil {
		return err
	}
	if len(lines) > 0 {
		if _, err := w.Write(lines); err != nil {
			return fmt.Errorf("print: %w", err)
		}
		return ErrNotWell
	}
	fmt.Fprintln(w, "the node is what it must be")
	return nil
}
