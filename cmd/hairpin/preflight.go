package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"hairpin/preflight"
	"hairpin/preflight/pods"
	"hairpin/report"
)

// preflightCommand looks at this machine or, as a plugin of kubectl or with --all or --kubeconfig, at all nodes.
func preflightCommand() *cobra.Command {
	var s settings
	var format string
	var all bool
	var o preflight.Options
	var nodes pods.Options
	c := &cobra.Command{Use: "preflight", Short: "look at this machine, or at all nodes, before Hairpin comes", Args: cobra.NoArgs,
		Long: "Looks at this machine, as root, before Hairpin comes to it: what other networks left, what stands in the way, and what Hairpin would change.\n" +
			"It changes nothing without --fix. With --all, or as kubectl hairpin preflight, a Pod looks at each node, and is deleted again.\n" +
			"Exit code 0 if nothing stops an installation, 1 if something does or a node could not be looked at, 2 after an error.",
		Example: "  hairpin preflight --config-file hairpin.conf\n  hairpin preflight --gateway-mode detached -o json\n  hairpin preflight --gateway-mode detached --fix\n" +
			"  kubectl hairpin preflight --config-file hairpin.conf --image registry.example/net/hairpin:v1",
		RunE: func(c *cobra.Command, _ []string) error {
			conf, err := s.load(c)
			if err != nil {
				return err
			}
			if format != "text" && format != "json" {
				return fmt.Errorf("--output %q is not one of text, json", format)
			}
			if all || c.Flags().Changed("kubeconfig") {
				if o.Fix {
					return errors.New("--fix is for one machine: run hairpin preflight --fix on the node")
				}
				nodes.JSON = format == "json"
				return pods.Run(c.Context(), c.OutOrStdout(), conf, nodes)
			}
			o.JSON, o.Log = format == "json", c.ErrOrStderr()
			return preflight.Run(c.Context(), c.OutOrStdout(), conf, o)
		}}
	s.addFor(c, append(ofCluster[:], "mtu", "gateway-interface", "ovs-run-dir", "run-dir", "kubeconfig")...)
	f := c.Flags()
	f.BoolVar(&o.Fix, "fix", false, "mend what is safe to mend, printing each change as the command that would make it, and look again")
	f.StringVar(&o.Root, "root", "/", "where this machine's files are, in a container that has them elsewhere")
	f.StringVarP(&format, "output", "o", "text", "text or json")
	f.BoolVarP(&all, "all", "A", false, "look at every Linux node of the cluster, by a Pod on each (also with --kubeconfig)")
	f.StringVar(&nodes.Context, "context", "", "context of the kubeconfig; empty = its current one")
	f.StringVarP(&nodes.Namespace, "namespace", "n", pods.DefaultNamespace, "namespace of the Pods; it must take privileged ones")
	f.StringVar(&nodes.Image, "image", report.Image(), "container image with hairpin, for the Pods")
	f.StringVar(&nodes.PullSecret, "pull-secret", "", "secret for the image's registry, in the namespace")
	f.StringSliceVar(&nodes.Nodes, "nodes", nil, "look at these nodes only")
	f.StringVarP(&nodes.Selector, "selector", "l", "", "look at nodes with these labels only")
	f.DurationVar(&nodes.Timeout, "timeout", 2*time.Minute, "how long to wait for a node, its pull of the image included")
	return c
}
