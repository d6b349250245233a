package main

import (
	"strings"
	"time"

	"github.com/spf13/cobra"

	"hairpin/config"
	"hairpin/inspect"
	"hairpin/ui"
)

// diffCommand compares this node. With --all, or as a kubectl plugin, it compares all nodes.
func diffCommand() *cobra.Command {
	var s settings
	var o inspect.DiffOptions
	c := &cobra.Command{
		Use:   "diff",
		Short: "Print how this node, or every node, differs from its desired state",
		Args:  exactArgs(),
		Long: `The agent of the node reads OVN, Open vSwitch, nft and the kernel, and compares them with the
desired state. "- " is before a missing line, "+ " before an extra one. --object selects extra lines
only if their system stores what they are for, or if they stand for a flow that is planned.`,
		Example: "  hairpin diff --system openvswitch --object Service/default/web\n  kubectl hairpin diff",
		RunE: s.run(func(c *cobra.Command, conf config.Config, _ []string) error {
			o.Kubeconfig = conf.Process.Kubeconfig
			o.All = o.All || impliesAll(c)
			return inspect.Diff(c.Context(), c.OutOrStdout(), conf, o)
		})}
	s.addFor(c, "run-dir", "kubeconfig")
	addFilter(c, &o.Systems, &o.Object)
	f := c.Flags()
	f.BoolVarP(&o.All, "all", "A", false,
		"compare every node of the cluster, through the API server (implied by --kubeconfig and --context)")
	s.addContext(c, &o.Context)
	s.addNamespace(c, &o.Namespace)
	f.DurationVar(&o.Timeout, "timeout", 30*time.Second, "maximum time to wait for a node's answer")
	addOutput(c, &o.Output, inspect.DiffOutputs(), "; wide is a table")
	return annotate(c, noteExit,
		"0 if there is no difference, 1 if a node differs or could not be compared, 2 after an error")
}

// addFilter adds the flags that select lines of a node's state.
func addFilter(c *cobra.Command, systems *[]string, object *string) {
	c.Flags().StringSliceVar(systems, "system", nil,
		"print only these: "+strings.Join(ui.Systems(), ", ")+"; empty = all")
	c.Flags().StringVar(object, "object", "",
		"print only what is planned for this object: KIND/NAMESPACE/NAME, such as Service/default/web, or Node/NAME")
	setCompletion(c, "system", commaSeparated(cobra.FixedCompletions(ui.Systems(), cobra.ShellCompDirectiveNoFileComp)))
}
