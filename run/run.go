// Package run holds the processes: the node agent, the controller, and the commands that look at them. All
// goroutines are started and ended here.
package run

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"

	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/plan"
)

// ErrNotWell is what Status, Diff and Plan return when they have printed what is not well.
var ErrNotWell = errors.New("not all is well")

// Version tells what was built, from the build information of the binary.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "unknown"
	}
	return info.Main.Version
}

// Logger writes structured lines of the configured level and above.
func Logger(c Config, w io.Writer) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.Process.LogLevel)); err != nil {
		level = slog.LevelInfo // Option.Set lets no other word in
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}

// nodeName is the configured name, or the host's.
func nodeName(c Config) (string, error) {
	if c.Process.Node != "" {
		return c.Process.Node, nil
	}
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("[default] node: not given, and %w", err)
	}
	return name, nil
}

// Plan prints the wanted State of a node, from a folder of manifests. Problems go to errw; they are an error only when
// the node itself is not there.
func Plan(w, errw io.Writer, dir string, flags []string, c Config) error {
	node, err := nodeName(c)
	if err != nil {
		return err
	}
	s, err := readFolder("-f", dir, c)
	if err != nil {
		return err
	}
	if s.Node(node) == nil {
		var names []string
		for _, n := range s.Nodes {
			names = append(names, n.Name)
		}
		return fmt.Errorf("-f %s: has no Node %q; choose one with --node: %s", dir, node, strings.Join(names, ", "))
	}
	if err := canAct(flags, &cluster.Snapshot{Nodes: []*cluster.Node{s.Node(node)}}); err != nil {
		return err
	}
	state, problems := planNode(plan.NewPlanner(), s, node)
	for _, p := range append(s.Problems[:len(s.Problems):len(s.Problems)], problems...) {
		if _, err := fmt.Fprintln(errw, p.Error()); err != nil {
			return fmt.Errorf("print: %w", err)
		}
	}
	if _, err := io.WriteString(w, datapath.Print(state)); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}
