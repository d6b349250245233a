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
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"hairpin/agent"
	"hairpin/cni"
	"hairpin/config"
	"hairpin/controller"
	"hairpin/inspect"
	"hairpin/report"
	"hairpin/ui"
)

func main() {
	if os.Getenv("CNI_COMMAND") != "" && len(os.Args) == 1 {
		cni.Main("hairpin " + report.Version())
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	c := root()
	c.SetArgs(asPlugin(os.Args))
	err := c.ExecuteContext(ctx)
	stop()
	switch {
	case errors.Is(err, report.ErrNotWell): // it has printed what is not well
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "hairpin:", err)
		os.Exit(2)
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
		process("node", "run the agent of this node", agent.Run),
		process("controller", "assign node IDs and egress addresses for the cluster (with leader election)", controller.Run),
		preflightCommand(), advertise(), configCommand(), installCommand(), cleanupCommand(), plugin(), planCommand(), explainCommand(), uiCommand(), ask(), collect(), status(), probe(), diff(), version(),
	)
	for _, sub := range c.Commands() {
		if args := sub.Args; args != nil {
			sub.Args = func(c *cobra.Command, words []string) error { return hinted(c, args(c, words)) }
		}
	}
	c.SetFlagErrorFunc(hinted)
	return c
}

// hinted adds the usage to an error about the command line.
func hinted(c *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w\nusage: %s\nsee %s --help", err, c.UseLine(), c.CommandPath())
}

// settings are the configuration file and the flags that every command with a configuration has.
type settings struct {
	file  string
	flags map[string]*string
}

func (s *settings) add(c *cobra.Command) {
	s.flags = map[string]*string{}
	c.Flags().StringVar(&s.file, "config-file", "", "configuration file (INI)")
	for _, o := range config.Options() {
		s.flags[o.Flag()] = c.Flags().String(o.Flag(), o.Default(), o.Usage)
	}
}

// addFor is add for a command that only reads: its help lists just the options that matter to it.
func (s *settings) addFor(c *cobra.Command, few ...string) {
	s.add(c)
	for _, o := range config.Options() {
		if !slices.Contains(few, o.Flag()) {
			_ = c.Flags().MarkHidden(o.Flag()) // it was just added
		}
	}
	if c.Long == "" {
		c.Long = strings.ToUpper(c.Short[:1]) + c.Short[1:] + "."
	}
	c.Long += "\n\nThe other options of the configuration are flags as well: hairpin node --help lists them."
}

// load reads the file and then the flags that were given.
func (s *settings) load(c *cobra.Command) (config.Config, error) {
	conf, err := config.Load(s.file)
	if err != nil {
		return conf, err
	}
	for _, o := range config.Options() {
		if c.Flags().Changed(o.Flag()) {
			if err := o.Set(&conf, *s.flags[o.Flag()]); err != nil {
				return conf, fmt.Errorf("--%s: %w", o.Flag(), err)
			}
		}
	}
	return conf, nil
}

// ofCluster are the flags for settings that manifests do not have. It is read-only.
var ofCluster = [...]string{ui.FlagGatewayMode, "cluster-subnets", "service-cidrs"}

// given lists those set on the command line.
func given(c *cobra.Command) (list []string) {
	for _, f := range ofCluster {
		if c.Flags().Changed(f) {
			list = append(list, f)
		}
	}
	return list
}

func process(name, short string, start func(context.Context, config.Config, *slog.Logger) error) *cobra.Command {
	var s settings
	c := &cobra.Command{Use: name, Short: short, Args: cobra.NoArgs, RunE: func(c *cobra.Command, _ []string) error {
		conf, err := s.load(c)
		if err != nil {
			return err
		}
		return start(c.Context(), conf, config.Logger(conf, os.Stderr))
	}}
	s.add(c)
	return c
}

func plugin() *cobra.Command {
	return &cobra.Command{Use: "cni", Short: "the CNI plugin: parameters in the environment, configuration on standard input", Args: cobra.NoArgs,
		Run: func(*cobra.Command, []string) { cni.Main("hairpin " + report.Version()) }}
}

func planCommand() *cobra.Command {
	var s settings
	var dir string
	c := &cobra.Command{Use: "plan -f DIR --node NAME", Short: "print a node's desired state, from a directory of manifests", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			conf, err := s.load(c)
			if err != nil {
				return err
			}
			if dir == "" {
				return hinted(c, errors.New("needs manifests: -f DIR"))
			}
			return ui.Plan(c.OutOrStdout(), c.ErrOrStderr(), dir, given(c), conf)
		}}
	s.addFor(c, append(ofCluster[:], "node")...)
	c.Flags().StringVarP(&dir, "filename", "f", "", "directory with the manifests of Nodes, Pods, Services and EndpointSlices")
	return c
}

func diff() *cobra.Command {
	var s settings
	c := &cobra.Command{Use: "diff", Short: "read this node back and print its differences from the desired state; exit code 0 if there are none, 1 if there are some, 2 after an error", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			conf, err := s.load(c)
			if err != nil {
				return err
			}
			return inspect.Diff(c.Context(), c.OutOrStdout(), conf)
		}}
	s.addFor(c, "run-dir")
	return c
}

func version() *cobra.Command {
	return &cobra.Command{Use: "version", Short: "print the version", Args: cobra.NoArgs,
		Run: func(c *cobra.Command, _ []string) { fmt.Fprintln(c.OutOrStdout(), report.Version()) }}
}
