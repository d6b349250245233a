package main

import (
	"time"

	"github.com/spf13/cobra"

	"hairpin/config"
	"hairpin/inspect"
)

// statusCommand requests the status of this node's agent. With --all, or as a kubectl plugin, it
// requests that of all nodes.
func statusCommand() *cobra.Command {
	var s settings
	var o inspect.StatusOptions
	c := &cobra.Command{
		Use:     "status",
		Short:   "Show the health of every component of this node, or of all nodes",
		Args:    exactArgs(),
		Example: "  hairpin status\n  kubectl hairpin status --wait",
		RunE: s.run(func(c *cobra.Command, conf config.Config, _ []string) error {
			o.Kubeconfig = conf.Process.Kubeconfig
			o.All = o.All || impliesAll(c)
			return inspect.Status(c.Context(), c.OutOrStdout(), conf, o)
		})}
	s.addFor(c, "run-dir", "kubeconfig")
	f := c.Flags()
	f.BoolVarP(&o.All, "all", "A", false,
		"ask every node of the cluster, through the API server (implied by --kubeconfig and --context)")
	s.addContext(c, &o.Context)
	s.addNamespace(c, &o.Namespace)
	f.DurationVar(&o.Timeout, "timeout", 10*time.Second, "maximum time to wait for a node's answer")
	addOutput(c, &o.Output, inspect.StatusOutputs(), "; text folds what is healthy")
	f.BoolVar(&o.Brief, "brief", false, "omit the egress addresses, which are the same on every node")
	f.DurationVar(&o.Wait, "wait", 0, "wait until every component is healthy, at most this long")
	f.Lookup("wait").NoOptDefVal = "5m"
	return annotate(c, noteExit, "0 if every component is healthy and, without --wait, no object has a problem; "+
		"1 otherwise, 2 after an error")
}
