package main

import (
	"time"

	"github.com/spf13/cobra"

	"hairpin/run"
)

func ui() *cobra.Command {
	var s settings
	var o run.UIOptions
	c := &cobra.Command{
		Use:   "ui",
		Short: "show nodes and the ways of packets in a browser, on this machine only",
		Long: `Serve pages on a loopback address: what is on each node, and the way of any packet, as explain tells it.

The cluster is read from a folder of manifests (-f), from the API (--all, --kubeconfig, kubectl hairpin ui), or else from the
agent of this node. Nothing can be changed by the pages. Everybody who is logged in on this machine can read them.`,
		Example: "  hairpin ui -f examples/demo\n  kubectl hairpin ui",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			conf, err := s.load(c)
			if err != nil {
				return err
			}
			o.Flags = given(c)
			o.EveryNode = o.EveryNode || c.Flags().Changed("kubeconfig") || c.Flags().Changed("context")
			return run.UI(c.Context(), c.OutOrStdout(), o, conf)
		}}
	s.addFor(c, append(ofCluster[:], "run-dir", "kubeconfig")...)
	f := c.Flags()
	f.StringVar(&o.Listen, "listen", "127.0.0.1:8090", "loopback address and port; port 0 = any that is free")
	f.StringVarP(&o.Dir, "filename", "f", "", "folder with the manifests of Nodes, Pods, Services and EndpointSlices")
	f.BoolVarP(&o.EveryNode, "all", "A", false, "read the cluster from the API (also with --kubeconfig)")
	f.StringVar(&o.Context, "context", "", "of the kubeconfig; empty = its current one")
	f.StringVarP(&o.Namespace, "namespace", "n", run.DefaultNamespace, "of the agents' pods")
	f.DurationVar(&o.Timeout, "timeout", 10*time.Second, "how long a node may take to answer")
	return c
}
