package main

import (
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"hairpin/config"
	"hairpin/inspect"
	"hairpin/ui"
)

func explainCommand() *cobra.Command {
	var s settings
	var o ui.ExplainOptions
	c := &cobra.Command{
		Use:   "explain FROM TO",
		Short: "Follow a packet and its reply through every table, and report where one is dropped",
		Long: `FROM is ` + ui.FromForms + `.
TO is svc/[NAMESPACE/]NAME[:PORT], NAME.NAMESPACE.svc[:PORT], ADDRESS[:PORT], pod/[NAMESPACE/]NAME:PORT
or outside/ADDRESS[:PORT]. PORT is a number or the name of a port. Without PORT, it is the only one of
the Service.

The cluster is read from a directory of manifests (-f), from the API (--all, --kubeconfig, kubectl
hairpin explain), or by default from this node's agent.`,
		Example: "  hairpin explain -f examples/demo host/node-a svc/default/hostself\n" +
			"  kubectl hairpin explain -n shop pod/client-1 svc/db:sql --live\n" +
			"  hairpin explain -f examples/demo outside svc/default/web --via node-b --endpoint pod/default/pod-c1",
		Args: exactArgs("FROM", "TO"),
		RunE: s.run(func(c *cobra.Command, conf config.Config, args []string) error {
			o.From, o.To, o.Flags = args[0], args[1], changedFlags(c)
			o.EveryNode = o.EveryNode || impliesAll(c)
			o.Colour = c.OutOrStdout() == os.Stdout && terminal(os.Stdout)
			return ui.Explain(c.Context(), c.OutOrStdout(), c.ErrOrStderr(), o, conf)
		})}
	s.addFor(c, clusterFlags("run-dir", "kubeconfig")...)
	f := c.Flags()
	f.StringVarP(&o.Dir, "filename", "f", "", "directory with manifests of Nodes, Pods, Services and EndpointSlices")
	f.StringVar(&o.Diff, "diff", "", "directory with changed manifests: print how the packet's path differs")
	f.StringVar(&o.Proto, "proto", "", "protocol: tcp, udp or sctp")
	f.StringVar(&o.IPFamily, "family", "", "IP family: 4 or 6")
	f.StringVar(&o.Endpoint, "endpoint", "",
		"endpoint to follow: ADDRESS, ADDRESS:PORT, pod/NAMESPACE/NAME or host/NODE")
	f.BoolVar(&o.NodePort, "node-port", false, "send to the Service's NodePort")
	f.StringVar(&o.Via, "via", "",
		"node where a packet to a NodePort or from outside enters, or an EgressIP's leaves")
	f.BoolVar(&o.Live, "live", false,
		"read the nodes' real state and report the first difference on the packet's path")
	f.BoolVar(&o.Send, "send", false,
		"send the packet from FROM and compare what the nodes observe (implies --live)")
	f.BoolVarP(&o.EveryNode, "all", "A", false,
		"read the cluster from the API, and with --live or --send every node on the path "+
			"(implied by --kubeconfig and --context)")
	s.addContext(c, &o.Context)
	f.StringVarP(&o.DefaultNamespace, "namespace", "n", "default", "namespace of names without one in FROM and TO")
	f.StringVar(&o.Namespace, "agent-namespace", inspect.DefaultNamespace, "namespace of the agents' pods")
	f.DurationVar(&o.Timeout, "timeout", 10*time.Second,
		"maximum time to wait for a node's answer, or for a packet from outside")
	f.BoolVarP(&o.Form.All, "verbose", "v", false,
		"print all steps, with rules, packets and conntrack entries")
	f.BoolVar(&o.Form.Costs, "costs", false, "print the number of conntrack passes and datapath lookups")
	addOutput(c, &o.Output, ui.ExplainOutputs(), "")
	c.ValidArgsFunction = clusterNames(&s, &o, ui.Ends)
	setCompletion(c, "via", clusterNames(&s, &o, nodeNames))
	setCompletion(c, "namespace", clusterNames(&s, &o, namespaces))
	setCompletion(c, "agent-namespace", s.fromAPI(namespaces))
	setCompletion(c, "endpoint", clusterNames(&s, &o, endpointNames))
	setValues(c, "proto", "tcp", "udp", "sctp")
	setValues(c, "family", "4", "6")
	return annotate(c, noteExit,
		"0 if packet and reply arrive and nothing differs from the desired state, 1 otherwise, 2 after an error")
}

// terminal reports whether a file supports colours: it is a terminal, and NO_COLOR is not set
// (no-color.org).
func terminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}
