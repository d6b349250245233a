package main

import (
	"github.com/spf13/cobra"

	"hairpin/config"
	"hairpin/inspect"
	"hairpin/ui"
)

func policiesCommand() *cobra.Command {
	var s settings
	o := ui.ExplainOptions{Namespace: inspect.DefaultNamespace}
	c := &cobra.Command{
		Use:   "policies [NAMESPACE/]POD",
		Short: "List the policies that select a pod, with their rules and what these match now",
		Args:  exactArgs("[NAMESPACE/]POD"),
		Long: `Policies are NetworkPolicies and ClusterNetworkPolicies, in the order of their tiers and priorities.
The cluster is read from a directory of manifests (-f), from the API (--all, --kubeconfig, kubectl
hairpin policies), or by default from this node's agent. An agent may not know pods of other nodes,
so its counts may be too low.`,
		Example: "  hairpin policies shop/db\n  kubectl hairpin policies shop/db -o json",
		RunE: s.run(func(c *cobra.Command, conf config.Config, args []string) error {
			o.Flags = changedFlags(c)
			o.EveryNode = o.EveryNode || impliesAll(c)
			return ui.Policies(c.Context(), c.OutOrStdout(), args[0], o, conf)
		})}
	s.addFor(c, clusterFlags("run-dir", "kubeconfig")...)
	f := c.Flags()
	f.StringVarP(&o.Dir, "filename", "f", "",
		"directory with manifests of Nodes, Namespaces, Pods and policies")
	f.BoolVarP(&o.EveryNode, "all", "A", false, "read the cluster from the API (implied by --kubeconfig and --context)")
	s.addContext(c, &o.Context)
	addOutput(c, &o.Output, ui.PoliciesOutputs(), "")
	c.ValidArgsFunction = clusterNames(&s, &o, podNames)
	return c
}
