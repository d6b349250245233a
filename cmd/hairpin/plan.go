package main

import (
	"errors"

	"github.com/spf13/cobra"

	"hairpin/config"
	"hairpin/ui"
)

func planCommand() *cobra.Command {
	var s settings
	var o ui.PlanOptions
	c := &cobra.Command{
		Use:   "plan -f DIR --node NAME",
		Short: "Print a node's desired state, computed from a directory of manifests",
		Args:  exactArgs(),
		Long: `The output has the syntax of ovn-nbctl, ovs-ofctl, nft and ip. Problems of the manifests are printed
to standard error.`,
		Example: `  hairpin plan -f examples/demo --node node-a
  hairpin plan -f examples/demo --node node-a --system nft --object Service/default/podlocal`,
		RunE: s.run(func(c *cobra.Command, conf config.Config, _ []string) error {
			if o.Dir == "" {
				return withUsage(c, errors.New("needs manifests: -f DIR"))
			}
			return ui.Plan(c.OutOrStdout(), c.ErrOrStderr(), o, changedFlags(c), conf)
		})}
	s.addFor(c, clusterFlags("node")...)
	addFilter(c, &o.Systems, &o.Object)
	c.Flags().StringVarP(&o.Dir, "filename", "f", "",
		"directory with manifests of Nodes, Pods, Services and EndpointSlices")
	setCompletion(c, "node", func(c *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		return clusterNames(&s, &ui.ExplainOptions{Dir: o.Dir}, nodeNames)(c, args, word)
	})
	return c
}
