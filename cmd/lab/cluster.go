package main

import (
	"fmt"
	"os"
	"syscall"

	"github.com/spf13/cobra"

	"hairpin/lab/cluster"
	"hairpin/lab/conformance"
)

// clusterCommand runs a cluster with real kubelets. Its lab is named "cluster" unless --lab sets a
// name.
func clusterCommand(name *string) *cobra.Command {
	c := &cobra.Command{Use: "cluster", Short: "a whole cluster on this machine, with Hairpin from its chart"}
	options := func(c *cobra.Command) cluster.Options {
		o := cluster.Options{Out: c.OutOrStdout()}
		if c.Flags().Changed("lab") {
			o.Name = *name
		}
		return o
	}
	c.AddCommand(clusterUp(options), clusterDown(options), clusterReboot(options), clusterKubectl(options),
		clusterImport(options), clusterConformance(options))
	return c
}

func clusterUp(options func(*cobra.Command) cluster.Options) *cobra.Command {
	var values, nodes []string
	var release string
	var bare, test bool
	c := &cobra.Command{Use: "up", Short: "start it and leave it up", Args: cobra.NoArgs}
	c.Flags().StringArrayVar(&values, "set", nil, "a value of the chart, as helm --set takes it")
	c.Flags().StringSliceVar(&nodes, "nodes", nil,
		"names of the nodes, node-a to node-z; empty = node-a, node-b, node-c")
	c.Flags().StringVar(&release, "release", "",
		"folder of a release to install, such as dist/hairpin-v0.1.0; empty = what make built")
	c.Flags().BoolVar(&bare, "bare", false, "install nothing, as in a new cluster")
	c.Flags().BoolVar(&test, "test", true, "test its network at the end")
	c.RunE = func(c *cobra.Command, _ []string) error {
		o := options(c)
		o.Values, o.Nodes, o.Release, o.Bare = values, nodes, release, bare
		up, err := cluster.Start(c.Context(), o)
		if err != nil {
			return fmt.Errorf("%w\n(what was started is left to look at; `make cluster-down` removes it)", err)
		}
		fmt.Fprintf(c.OutOrStdout(),
			"\nThe cluster stays up until `make cluster-down`. To use it:\n  export KUBECONFIG=%s PATH=$PWD/bin:$PATH\n"+
				"  kubectl get nodes,pods,services -A -o wide\n  lab --lab %s exec node-a            "+
				"a shell on a node\n",
			up.Kubeconfig(), up.Lab().Name())
		err = up.LinkKubectl()
		if err == nil && test && !bare {
			fmt.Fprintln(c.OutOrStdout(), "\nhairpin test:")
			err = up.Test(c.Context(), c.OutOrStdout())
		}
		return err
	}
	return c
}

func clusterDown(options func(*cobra.Command) cluster.Options) *cobra.Command {
	return &cobra.Command{Use: "down", Short: "end it and remove everything of it", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			name := options(c).Name
			if name == "" {
				name = cluster.DefaultName
			}
			return cluster.Remove(name)
		}}
}

func clusterReboot(options func(*cobra.Command) cluster.Options) *cobra.Command {
	return &cobra.Command{Use: "reboot NODE", Short: "kill every process of a node and boot it again",
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			up, err := cluster.Open(options(c))
			if err != nil {
				return err
			}
			return up.Reboot(c.Context(), args[0])
		}}
}

func clusterKubectl(options func(*cobra.Command) cluster.Options) *cobra.Command {
	return &cobra.Command{Use: "kubectl -- ARGS…", Short: "kubectl as the cluster's administrator",
		RunE: func(c *cobra.Command, args []string) error {
			up, err := cluster.Open(options(c))
			if err != nil {
				return err
			}
			path, argv := up.KubectlArgv(args...)
			return syscall.Exec(path, argv, os.Environ()) // keeps the terminal
		}}
}

func clusterImport(options func(*cobra.Command) cluster.Options) *cobra.Command {
	return &cobra.Command{Use: "import ARCHIVE", Short: "give all nodes the images of an archive, as a registry would",
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			up, err := cluster.Open(options(c))
			if err != nil {
				return err
			}
			return up.Import(c.Context(), args[0])
		}}
}

func clusterConformance(options func(*cobra.Command) cluster.Options) *cobra.Command {
	opt := conformance.Options{Root: "."}
	c := &cobra.Command{Use: "conformance", Short: "run network tests of other projects on the cluster that is up",
		Args: cobra.NoArgs}
	c.Flags().StringVar(&opt.Suite, "suite", "kubernetes", "tests to run: kubernetes, network-policy-api or cyclonus")
	c.Flags().StringVar(&opt.Focus, "focus", "", "kubernetes, cyclonus: regular expression of the names of what to run")
	c.Flags().StringVar(&opt.Skip, "skip", "", "kubernetes: regular expression: specs to leave out")
	c.Flags().StringVar(&opt.Tags, "tags", "", "cyclonus: tags of the cases to run, separated by commas; empty = all")
	c.Flags().StringVar(&opt.Record, "record", "", "file that keeps what became of each test, over several runs")
	c.Flags().IntVar(&opt.Procs, "procs", 4, "kubernetes: how many specs at once")
	c.RunE = func(c *cobra.Command, _ []string) error {
		up, err := cluster.Open(options(c))
		if err != nil {
			return fmt.Errorf("%w (make cluster starts it)", err)
		}
		opt.Out = c.OutOrStdout()
		return conformance.Run(c.Context(), up, opt)
	}
	return c
}
