package main

import (
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"hairpin/inspect"
)

// status asks this node's agent or, as a plugin of kubectl or with --all or --kubeconfig, those of all nodes.
func status() *cobra.Command {
	var s settings
	var o inspect.StatusOptions
	c := &cobra.Command{
		Use:   "status",
		Short: "show the health of this node, or of all nodes: one line per part; exit code 0 if all is well, 1 if not, 2 after an error",
		Args:  cobra.NoArgs,
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
	f.BoolVarP(&o.All, "all", "A", false, "ask every node of the cluster, through the API server (also with --kubeconfig)")
	f.StringVar(&o.Context, "context", "", "context of the kubeconfig; empty = its current one")
	f.StringVarP(&o.Namespace, "namespace", "n", inspect.DefaultNamespace, "namespace of the agents' pods")
	f.DurationVar(&o.Timeout, "timeout", 10*time.Second, "how long to wait for a node's answer")
	f.StringVarP(&o.Output, "output", "o", "text", "text or json")
	f.BoolVar(&o.Brief, "brief", false, "leave out what every node says alike: the cluster's egress addresses")
	f.DurationVar(&o.Wait, "wait", 0, "wait until all is well, at most this long; without a value 5m")
	f.Lookup("wait").NoOptDefVal = "5m"
	return c
}

// asPlugin adds --all to the arguments of `kubectl hairpin …`, which is about the whole cluster.
func asPlugin(args []string) []string {
	if strings.TrimSuffix(filepath.Base(args[0]), ".exe") == "kubectl-hairpin" && len(args) > 1 && slices.Contains([]string{"status", "explain", "ui", "collect", "preflight"}, args[1]) {
		return append([]string{args[1], "--all"}, args[2:]...)
	}
	return args[1:]
}

// probe is for exec probes.
func probe() *cobra.Command {
	var s settings
	var controller bool
	c := &cobra.Command{
		Use:       "probe livez|readyz|healthz|metrics",
		Short:     "ask the agent of this node, or the controller of this container, through its socket; exit code 0 if it is healthy",
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"livez", "readyz", "healthz", "metrics"},
		RunE: func(c *cobra.Command, args []string) error {
			conf, err := s.load(c)
			if err != nil {
				return err
			}
			return inspect.Probe(c.Context(), c.OutOrStdout(), conf, controller, args[0])
		}}
	s.addFor(c, "run-dir")
	c.Flags().BoolVar(&controller, "controller", false, "ask the controller")
	return c
}
