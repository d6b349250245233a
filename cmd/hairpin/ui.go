package main

import (
	"time"

	"github.com/spf13/cobra"

	"hairpin/config"
	"hairpin/ui"
)

func uiCommand() *cobra.Command {
	var s settings
	var o ui.Options
	c := &cobra.Command{
		Use:   "ui",
		Short: "Serve pages with the state of each node and the path of any packet, for a browser on this machine",
		Long: `The cluster is read from a directory of manifests (-f), from the API (--all, --kubeconfig, kubectl
hairpin ui), or by default from this node's agent. The pages are read-only, and every user of this
machine can read them.

With --secure, in a pod, they show the cluster of the API by TLS, to users who may get ` + ui.AccessPath + `.
The token is a bearer token, or the password that a browser asks for. The chart's value ui.enabled
installs that.`,
		Example: "  hairpin ui -f examples/demo\n  kubectl hairpin ui\n  hairpin ui --secure --listen :8443",
		Args:    exactArgs(),
		RunE: s.run(func(c *cobra.Command, conf config.Config, _ []string) error {
			o.Flags = changedFlags(c)
			if !o.Secure || c.Flags().Changed("context") { // --secure always reads the API, also with --kubeconfig
				o.EveryNode = o.EveryNode || impliesAll(c)
			}
			return ui.Serve(c.Context(), c.OutOrStdout(), o, conf)
		})}
	s.addFor(c, clusterFlags("run-dir", "kubeconfig")...)
	f := c.Flags()
	f.StringVar(&o.Listen, "listen", "127.0.0.1:8090",
		"address and port to listen on, loopback without --secure; port 0 = any free port")
	f.BoolVar(&o.Secure, "secure", false, "serve by TLS, to users with a token that may get "+ui.AccessPath)
	f.StringVar(&o.Certificate, "tls-cert", "", "PEM file with the certificate for --secure; empty = a self-signed one")
	f.StringVar(&o.Key, "tls-key", "", "PEM file with the private key of --tls-cert")
	f.StringVarP(&o.Dir, "filename", "f", "", "directory with manifests of Nodes, Pods, Services and EndpointSlices")
	f.BoolVarP(&o.EveryNode, "all", "A", false, "read the cluster from the API (implied by --kubeconfig and --context)")
	s.addContext(c, &o.Context)
	s.addNamespace(c, &o.Namespace)
	f.DurationVar(&o.Timeout, "timeout", 10*time.Second, "maximum time to wait for a node's answer")
	return c
}
