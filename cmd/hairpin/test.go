package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"hairpin/config"
	"hairpin/inspect"
	"hairpin/selftest"
	"hairpin/selftest/podside"
)

func testCommand() *cobra.Command {
	var s settings
	var o selftest.Options
	c := &cobra.Command{
		Use:   "test",
		Short: "Test every path of the cluster's network with pods and Services of its own",
		Args:  exactArgs(),
		Long: `It creates a namespace with servers and clients on some nodes, sends TCP and UDP packets of every IP
family from pods and hosts to pods, ClusterIPs, NodePorts and hosts, with full packets, names and a
NetworkPolicy, and measures latency and throughput. A path that fails is explained with the real
state of its nodes (explain --live). The namespace is deleted at the end, also after an interrupt.`,
		Example: "  kubectl hairpin test\n  kubectl hairpin test --nodes node-a,node-c --junit results.xml\n" +
			"  kubectl hairpin test --outside 192.0.2.10:443 --skip 'NetworkPolicy'",
		RunE: s.run(func(c *cobra.Command, conf config.Config, _ []string) error {
			return selftest.Run(c.Context(), c.OutOrStdout(), c.ErrOrStderr(), conf, o)
		})}
	s.addFor(c, "kubeconfig")
	f := c.Flags()
	s.addContext(c, &o.Context)
	f.StringVarP(&o.Namespace, "namespace", "n", selftest.DefaultNamespace,
		"namespace to create and to delete again; it must not exist")
	f.StringVar(&o.Agents, "agent-namespace", inspect.DefaultNamespace, "namespace of the agents' pods")
	f.StringVar(&o.Image, "image", "",
		"image of the pods, which must contain hairpin; empty = that of the agents' pods")
	setCompletion(c, "agent-namespace", s.fromAPI(namespaces))
	s.addNodes(c, &o.Nodes, "test only these nodes; empty = the first that are Ready, by name")
	f.StringVarP(&o.Selector, "selector", "l", "", "test only nodes with these labels")
	f.IntVar(&o.MaxNodes, "max-nodes", 3, "maximum number of nodes to test without --nodes; 0 = all")
	f.Uint16Var(&o.HostPort, "host-port", 29080,
		"first of three TCP and UDP ports for servers in the network of the nodes, which must be free")
	f.StringSliceVar(&o.Outside, "outside", nil,
		"ADDRESS:PORT of TCP servers outside the cluster to connect to from pods and hosts")
	f.BoolVar(&o.FromHere, "from-here", false,
		"send packets to NodePorts from this machine, too, which must reach the nodes' addresses")
	f.StringVar(&o.Skip, "skip", "", "regular expression: leave out checks and groups of checks with such names")
	f.DurationVar(&o.Timeout, "timeout", 10*time.Minute,
		"maximum time of the test, without the deletion of the namespace")
	f.DurationVar(&o.Measure, "measure", 2*time.Second,
		"how long the throughput of each path is measured; 0 = not at all")
	f.IntVar(&o.Explain, "explain", 5, "maximum number of failures to explain")
	f.StringVar(&o.JUnit, "junit", "", "file for the results in JUnit's format")
	f.BoolVar(&o.Keep, "keep", false, "do not delete the namespace")
	f.BoolVarP(&o.Verbose, "verbose", "v", false, "print the checks that passed, too")
	return annotate(c, noteExit, "0 if every check passed, 1 if one failed, 2 after an error")
}

// testPodCommand is the command of the pods of test.
func testPodCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "test-pod",
		Short:  "Carry out a pod's part of the test",
		Args:   exactArgs(),
		Hidden: true,
		RunE: func(c *cobra.Command, _ []string) error {
			work, err := podside.Parse(os.Getenv(podside.Variable))
			if err != nil {
				return fmt.Errorf("test-pod: %w", err)
			}
			return work.Run(c.Context(), c.OutOrStdout())
		}}
}
