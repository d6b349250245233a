package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"hairpin/run"
)

func explainCommand() *cobra.Command {
	var s settings
	var o run.ExplainOptions
	c := &cobra.Command{
		Use:   "explain FROM TO",
		Short: "follow a packet through every table, and its reply; exit code 0 if both arrive, 1 if not, 2 after an error",
		Long: `Follow a packet through every table, chain and logical stage of every node on its way, and its reply.

FROM is pod/NAMESPACE/NAME, host/NODE, outside or outside/ADDRESS.
TO is svc/NAMESPACE/NAME[:PORT], pod/NAMESPACE/NAME:PORT, outside/ADDRESS[:PORT] or ADDRESS:PORT.

The cluster is read from a folder of manifests (-f), from the API (--all, --kubeconfig, kubectl hairpin explain), or else from
the agent of this node.`,
		Example: "  hairpin explain -f examples/demo host/node-a svc/default/hostself\n" +
			"  hairpin explain -f examples/demo outside svc/default/web --via node-b --endpoint pod/default/pod-c1",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return fmt.Errorf("FROM and TO are needed, and nothing else; there are %d words", len(args))
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			conf, err := s.load(c)
			if err != nil {
				return err
			}
			o.From, o.To, o.Flags = args[0], args[1], given(c)
			o.EveryNode = o.EveryNode || c.Flags().Changed("kubeconfig") || c.Flags().Changed("context")
			o.Colour = c.OutOrStdout() == os.Stdout && terminal(os.Stdout)
			return run.Explain(c.Context(), c.OutOrStdout(), c.ErrOrStderr(), o, conf)
		}}
	s.addFor(c, append(ofCluster[:], "run-dir", "kubeconfig")...)
	f := c.Flags()
	f.StringVarP(&o.Dir, "filename", "f", "", "folder with the manifests of Nodes, Pods, Services and EndpointSlices")
	f.StringVar(&o.Diff, "diff", "", "folder with the manifests after a change: tell what it does to this packet")
	f.StringVar(&o.Proto, "proto", "", "tcp, udp or sctp")
	f.StringVar(&o.IPFamily, "family", "", "4 or 6")
	f.StringVar(&o.Endpoint, "endpoint", "", "endpoint to follow: ADDRESS, ADDRESS:PORT, pod/NAMESPACE/NAME or host/NODE")
	f.BoolVar(&o.NodePort, "node-port", false, "ask the Service at its NodePort")
	f.StringVar(&o.Via, "via", "", "node whose NodePort is asked, to which an outside client's packet is routed, or by which a pod's packet leaves that has several egress addresses")
	f.BoolVar(&o.Live, "live", false, "read the node back and name the first difference from what it must be on the packet's way")
	f.BoolVar(&o.Send, "send", false, "send the packet (a TCP handshake or a datagram) from where it starts, and compare what the nodes saw of it; implies --live")
	f.BoolVarP(&o.EveryNode, "all", "A", false, "read the cluster from the API, and with --live and --send every node on the packet's way (also with --kubeconfig)")
	f.StringVar(&o.Context, "context", "", "of the kubeconfig; empty = its current one")
	f.StringVarP(&o.Namespace, "namespace", "n", run.DefaultNamespace, "of the agents' pods, with --live and --send")
	f.DurationVar(&o.Timeout, "timeout", 10*time.Second, "how long a node may take to answer, and with --send how long a packet from outside is waited for")
	f.StringVarP(&o.Output, "output", "o", "text", "one of "+strings.Join(run.ExplainOutputs(), ", "))
	return c
}

func collect() *cobra.Command {
	var s settings
	var o run.CollectOptions
	var file string
	c := &cobra.Command{
		Use:   "collect",
		Short: "write one archive of everything that helps to debug this node, or all nodes, without secrets",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			conf, err := s.load(c)
			if err != nil {
				return err
			}
			o.EveryNode = o.EveryNode || c.Flags().Changed("kubeconfig") || c.Flags().Changed("context")
			if file == "-" {
				return run.Collect(c.Context(), c.OutOrStdout(), c.ErrOrStderr(), conf, o)
			}
			out, err := os.OpenFile(file, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
			if err != nil {
				return err
			}
			err = run.Collect(c.Context(), out, c.ErrOrStderr(), conf, o)
			if err = errors.Join(err, out.Close()); err == nil {
				fmt.Fprintln(c.ErrOrStderr(), "written to", file)
			}
			return err
		}}
	s.addFor(c, "run-dir", "kubeconfig")
	f := c.Flags()
	f.StringVar(&file, "file", "hairpin-"+time.Now().UTC().Format("20060102-150405")+".tar.gz", "where to; - is standard output")
	f.BoolVarP(&o.EveryNode, "all", "A", false, "every node of the cluster, through the API server (also with --kubeconfig)")
	f.StringVar(&o.Context, "context", "", "of the kubeconfig; empty = its current one")
	f.StringVarP(&o.Namespace, "namespace", "n", run.DefaultNamespace, "of the agents' pods")
	f.DurationVar(&o.Timeout, "timeout", time.Minute, "how long a node may take to answer")
	return c
}

// ask is what explain and collect run in the agents' containers.
func ask() *cobra.Command {
	var s settings
	c := &cobra.Command{Use: "ask PATH", Short: "print what this node's agent answers to a path of its socket", Args: cobra.ExactArgs(1), Hidden: true,
		RunE: func(c *cobra.Command, args []string) error {
			conf, err := s.load(c)
			if err != nil {
				return err
			}
			return run.Ask(c.Context(), c.OutOrStdout(), args[0], conf)
		}}
	s.add(c)
	return c
}

// terminal tells whether a file shows colours: it is a terminal, and nobody has asked for none (no-color.org).
func terminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}
