// Command hairpin is the Service, gateway and egress network of a Kubernetes node.
//
// Started by a container runtime (CNI_COMMAND is set), it is the CNI plugin.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"hairpin/cni"
	"hairpin/run"
)

func main() {
	if os.Getenv("CNI_COMMAND") != "" && len(os.Args) == 1 {
		cni.Main("hairpin " + run.Version())
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	c := root()
	c.SetArgs(asPlugin(os.Args))
	err := c.ExecuteContext(ctx)
	stop()
	if err != nil {
		if !errors.Is(err, run.ErrNotWell) { // it has said what is not well
			fmt.Fprintln(os.Stderr, "hairpin:", err)
		}
		os.Exit(1)
	}
}

func root() *cobra.Command {
	c := &cobra.Command{
		Use:           "hairpin",
		Short:         "Service, gateway and egress network of a Kubernetes node, on OVN and Open vSwitch",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	c.AddCommand(
		process("node", "run the agent of this node", run.Node),
		process("controller", "decide what is the cluster's to decide: node ids (one of several is the leader)", run.Controller),
		installCommand(), cleanupCommand(), plugin(), planCommand(), explainCommand(), ui(), ask(), collect(), status(), probe(), diff(), version(),
	)
	return c
}

// settings are the configuration file and the flags that every command with a configuration has.
type settings struct {
	file  string
	flags map[string]*string
}

func (s *settings) add(c *cobra.Command) {
	s.flags = map[string]*string{}
	c.Flags().StringVar(&s.file, "config-file", "", "configuration file (INI)")
	for _, o := range run.Options() {
		s.flags[o.Flag()] = c.Flags().String(o.Flag(), o.Default(), o.Usage)
	}
}

// load reads the file and then the flags that were given.
func (s *settings) load(c *cobra.Command) (run.Config, error) {
	config, err := run.Load(s.file)
	if err != nil {
		return config, err
	}
	for _, o := range run.Options() {
		if c.Flags().Changed(o.Flag()) {
			if err := o.Set(&config, *s.flags[o.Flag()]); err != nil {
				return config, fmt.Errorf("--%s: %w", o.Flag(), err)
			}
		}
	}
	return config, nil
}

func process(name, short string, start func(context.Context, run.Config, *slog.Logger) error) *cobra.Command {
	var s settings
	c := &cobra.Command{Use: name, Short: short, Args: cobra.NoArgs, RunE: func(c *cobra.Command, _ []string) error {
		config, err := s.load(c)
		if err != nil {
			return err
		}
		return start(c.Context(), config, run.Logger(config, os.Stderr))
	}}
	s.add(c)
	return c
}

func plugin() *cobra.Command {
	return &cobra.Command{Use: "cni", Short: "the CNI plugin: parameters in the environment, configuration on standard input", Args: cobra.NoArgs,
		Run: func(*cobra.Command, []string) { cni.Main("hairpin " + run.Version()) }}
}

func planCommand() *cobra.Command {
	var s settings
	var dir string
	c := &cobra.Command{Use: "plan -f DIR --node NAME", Short: "print what a node must have, from a folder of manifests", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			config, err := s.load(c)
			if err != nil {
				return err
			}
			return run.Plan(c.OutOrStdout(), c.ErrOrStderr(), dir, config)
		}}
	s.add(c)
	c.Flags().StringVarP(&dir, "filename", "f", "", "folder with the manifests of Nodes, Pods, Services and EndpointSlices")
	if err := c.MarkFlagRequired("filename"); err != nil {
		panic(err) // the flag is defined above
	}
	return c
}

func diff() *cobra.Command {
	var s settings
	c := &cobra.Command{Use: "diff", Short: "read this node back and print where it differs from what it must have; exit code 0 only if nowhere", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			config, err := s.load(c)
			if err != nil {
				return err
			}
			return run.Diff(c.Context(), c.OutOrStdout(), config)
		}}
	s.add(c)
	return c
}

func version() *cobra.Command {
	return &cobra.Command{Use: "version", Short: "print the version", Args: cobra.NoArgs,
		Run: func(c *cobra.Command, _ []string) { fmt.Fprintln(c.OutOrStdout(), run.Version()) }}
}
