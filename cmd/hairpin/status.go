package main

import (
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"hairpin/inspect"
)

// status requests the status of this node's agent. As a kubectl plugin, or with --all or
// --kubeconfig, it requests that of all nodes.
func status() *cobra.Command {
	var s settings
	var o inspect.StatusOptions
	c := &cobra.Command{
		Use:     "status",
		Short:   "Show the health of every component of this node, or of all nodes",
		Args:    needs(),
		Example: "  hairpin status\n  kubectl hairpin status --wait",
		RunE: func(c *cobra.Command, _ []string) error {
			conf, err := s.load(c)
			if err != nil {
				return err
			}
			if c.Flags().Changed("kubeconfig") {
				o.All, o.Kubeconfig = true, conf.Process.Kubeconfig
			}
			return inspect.Status(c.Context(), c.OutOrStdout(), conf, o)
		}}
	s.addFor(c, "run-dir", "kubeconfig")
	f := c.Flags()
	f.BoolVarP(&o.All, "all", "A", false,
		"ask every node of the cluster, through the API server (implied by --kubeconfig)")
	s.addContext(c, &o.Context)
	s.addNamespace(c, &o.Namespace)
	f.DurationVar(&o.Timeout, "timeout", 10*time.Second, "maximum time to wait for a node's answer")
	addOutput(c, &o.Output, inspect.StatusOutputs(), "; text folds what is healthy")
	f.BoolVar(&o.Brief, "brief", false, "omit the egress addresses, which are the same on every node")
	f.DurationVar(&o.Wait, "wait", 0, "wait until every component is healthy, at most this long")
	f.Lookup("wait").NoOptDefVal = "5m"
	return note(c, noteExit, "0 if every component is healthy and, without --wait, no object has a problem; "+
		"1 otherwise, 2 after an error")
}

// ofAllNodes are the commands that a plugin of kubectl runs for the whole cluster. It is read-only.
var ofAllNodes = []string{"status", "diff", "explain", "policies", "ui", "collect", "preflight"}

// asPlugin adds --all to the arguments of `kubectl hairpin …`, which applies to the whole cluster.
// As kubectl_complete-hairpin, which kubectl runs for the completion of such a command line, the
// program prints the candidates.
func asPlugin(args []string) []string {
	words, at := args[1:], 0 // at is the place of the command
	switch strings.TrimSuffix(filepath.Base(args[0]), ".exe") {
	case "kubectl-hairpin":
		if len(words) > 0 && strings.HasPrefix(words[0], cobra.ShellCompRequestCmd) {
			at = 1
		}
	case "kubectl_complete-hairpin":
		words, at = append([]string{cobra.ShellCompRequestCmd}, words...), 1
	default:
		return words
	}
	// The last word of a completion is not a command yet.
	if at < len(words)-at && slices.Contains(ofAllNodes, words[at]) {
		return slices.Insert(slices.Clone(words), at+1, "--all")
	}
	return words
}

// probe is for exec probes.
func probe() *cobra.Command {
	var s settings
	var controller bool
	c := &cobra.Command{
		Use:       "probe livez|readyz|healthz|metrics",
		Short:     "Query a health endpoint of this node's agent or this container's controller",
		Example:   "  hairpin probe readyz\n  hairpin probe livez --controller",
		Args:      cobra.MatchAll(needs("one endpoint"), cobra.OnlyValidArgs),
		ValidArgs: []string{"livez", "readyz", "healthz", "metrics"},
		RunE: func(c *cobra.Command, args []string) error {
			conf, err := s.load(c)
			if err != nil {
				return err
			}
			return inspect.Probe(c.Context(), c.OutOrStdout(), conf, controller, args[0])
		}}
	s.addFor(c, "run-dir")
	c.Flags().BoolVar(&controller, "controller", false, "query the controller instead of the agent")
	return note(c, noteExit, "0 if the answer is 200 OK, 1 if it is another, 2 after an error")
}
