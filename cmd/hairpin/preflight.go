package main

import (
	"errors"
	"time"

	"github.com/spf13/cobra"

	"hairpin/config"
	"hairpin/preflight"
	"hairpin/preflight/pods"
	"hairpin/report"
)

// preflightCommand checks this machine. With --all, or as a kubectl plugin, it checks all nodes.
func preflightCommand() *cobra.Command {
	var s settings
	var all bool
	var o preflight.Options
	var nodes pods.Options
	c := &cobra.Command{
		Use:   "preflight",
		Short: "Check whether Hairpin can be installed on this machine, or on all nodes",
		Args:  exactArgs(),
		Long: `Run it as root before the installation. It reports what other network plugins left, what prevents
an installation, and what Hairpin would change. It changes nothing without --fix. With --all, or
as kubectl hairpin preflight, it creates a Pod on each node and deletes it again.`,
		Example: "  hairpin preflight --config-file hairpin.conf\n  hairpin preflight --gateway-mode detached -o " +
			"json\n  hairpin preflight --gateway-mode detached --fix\n" +
			"  kubectl hairpin preflight --config-file hairpin.conf --image registry.example/net/hairpin:v1",
		RunE: s.run(func(c *cobra.Command, conf config.Config, _ []string) error {
			if all || impliesAll(c) {
				if o.Fix {
					return errors.New("--fix is for one machine: run hairpin preflight --fix on the node")
				}
				nodes.Output = o.Output
				return pods.Run(c.Context(), c.OutOrStdout(), conf, nodes)
			}
			o.Log = c.ErrOrStderr()
			return preflight.Run(c.Context(), c.OutOrStdout(), conf, o)
		})}
	s.addFor(c, clusterFlags("mtu", "gateway-interface", "ovs-run-dir", "run-dir", "kubeconfig")...)
	f := c.Flags()
	f.BoolVar(&o.Fix, "fix", false, "repair what is safe to repair, print each change as a command, and check again")
	f.StringVar(&o.Root, "root", "/", "path of this machine's root file system, in a container")
	addOutput(c, &o.Output, preflight.Outputs(), "")
	f.BoolVarP(&all, "all", "A", false,
		"check every Linux node of the cluster with a Pod on each (implied by --kubeconfig and --context)")
	s.addContext(c, &nodes.Context)
	f.StringVarP(&nodes.Namespace, "namespace", "n", pods.DefaultNamespace,
		"namespace of the Pods; it must admit privileged Pods")
	f.StringVar(&nodes.Image, "image", report.Image(), "container image of the Pods, which must contain hairpin")
	f.StringVar(&nodes.PullSecret, "pull-secret", "",
		"Secret with the credentials of the image's registry, in the same namespace")
	setCompletion(c, "namespace", s.fromAPI(namespaces))
	s.addNodes(c, &nodes.Nodes, "check only these nodes")
	f.StringVarP(&nodes.Selector, "selector", "l", "", "check only nodes with these labels")
	f.DurationVar(&nodes.Timeout, "timeout", 2*time.Minute,
		"maximum time to wait for a node, which includes the pull of the image")
	return annotate(c, noteExit,
		"0 if nothing prevents an installation, 1 if something does or a node could not be checked, 2 after an error")
}
