// Command hairpin is a Kubernetes network plugin that also replaces kube-proxy.
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
	"syscall"

	"github.com/spf13/cobra"

	"hairpin/agent"
	"hairpin/cni"
	"hairpin/config"
	"hairpin/controller"
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
	case errors.Is(err, report.ErrProblems): // it has printed the problems
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "hairpin:", err)
		os.Exit(2)
	}
}

func root() *cobra.Command {
	c := &cobra.Command{
		Use:           "hairpin",
		Short:         "Hairpin is a Kubernetes network plugin that also replaces kube-proxy, on OVN and Open vSwitch",
		Version:       report.Version(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	for _, g := range []struct {
		title    string
		commands []*cobra.Command
	}{
		{"Inspect", []*cobra.Command{
			status(), testCommand(), explainCommand(), policiesCommand(), uiCommand(), diff(), planCommand(), collect(),
		}},
		{"Install", []*cobra.Command{preflightCommand(), configCommand(), advertise(), cleanupCommand()}},
		{"Run by the chart", []*cobra.Command{
			process("node", "Run the agent of this node", agent.Run),
			process("controller", "Assign node IDs and egress addresses for the cluster", controller.Run),
			installCommand(), plugin(), probe(),
		}},
	} {
		c.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		for _, sub := range g.commands {
			sub.GroupID = g.title
			c.AddCommand(sub)
		}
	}
	c.AddCommand(ask(), testPod(), version())
	c.SetVersionTemplate("{{.Version}}\n")
	c.SetHelpFunc(func(c *cobra.Command, _ []string) { printHelp(c.OutOrStdout(), c) })
	needsCommand(c, nil)
	hintArgs(c)
	c.SetFlagErrorFunc(hinted)
	return c
}

// settings has the configuration file and the flags of every command with a configuration.
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

// addFor adds the options to a command, and hides them from its help except those listed.
func (s *settings) addFor(c *cobra.Command, listed ...string) {
	s.add(c)
	for _, o := range config.Options() {
		if !slices.Contains(listed, o.Flag()) {
			_ = c.Flags().MarkHidden(o.Flag()) // add has just added it
		}
	}
	note(c, noteOptions, otherOptions)
}

// load reads the file and then the flags of the command line.
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

// ofCluster has the flags of settings that are not in manifests. It is read-only.
var ofCluster = [...]string{"gateway-mode", "cluster-subnets", "service-cidrs"}

// given returns those set on the command line, and those that every Node reports.
func given(c *cobra.Command) (list []string) {
	for _, f := range append(ui.ReportedFlags(), ofCluster[1:]...) {
		if c.Flags().Changed(f) {
			list = append(list, f)
		}
	}
	return list
}

func process(name, short string, start func(context.Context, config.Config, *slog.Logger) error) *cobra.Command {
	var s settings
	c := &cobra.Command{Use: name, Short: short, Args: needs(), RunE: func(c *cobra.Command, _ []string) error {
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
	c := &cobra.Command{
		Use:   "cni",
		Short: "Serve one request of a container runtime as its CNI plugin",
		Args:  needs(),
		Long: `The parameters are in the environment (CNI_COMMAND and others), the network configuration is on
standard input. The program is also the plugin without an argument, if CNI_COMMAND is set.`,
		Run: func(*cobra.Command, []string) { cni.Main("hairpin " + report.Version()) }}
	return note(c, noteExit, "0 on success, 1 after an error, which is printed as CNI specifies")
}

func planCommand() *cobra.Command {
	var s settings
	var o ui.PlanOptions
	c := &cobra.Command{
		Use:   "plan -f DIR --node NAME",
		Short: "Print a node's desired state, computed from a directory of manifests",
		Args:  needs(),
		Long: `The output has the syntax of ovn-nbctl, ovs-ofctl, nft and ip. Problems of the manifests are printed
to standard error.`,
		Example: `  hairpin plan -f examples/demo --node node-a
  hairpin plan -f examples/demo --node node-a --system nft --object Service/default/podlocal`,
		RunE: func(c *cobra.Command, _ []string) error {
			conf, err := s.load(c)
			if err != nil {
				return err
			}
			if o.Dir == "" {
				return hinted(c, errors.New("needs manifests: -f DIR"))
			}
			return ui.Plan(c.OutOrStdout(), c.ErrOrStderr(), o, given(c), conf)
		}}
	s.addFor(c, append(ofCluster[:], "node")...)
	addFilter(c, &o.Systems, &o.Object)
	c.Flags().StringVarP(&o.Dir, "filename", "f", "",
		"directory with manifests of Nodes, Pods, Services and EndpointSlices")
	completes(c, "node", func(c *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		return completed(&s, &ui.ExplainOptions{Dir: o.Dir}, nodeNames)(c, args, word)
	})
	return c
}

func version() *cobra.Command {
	return &cobra.Command{Use: "version", Short: "Print the version of this program", Args: needs(),
		Run: func(c *cobra.Command, _ []string) { fmt.Fprintln(c.OutOrStdout(), report.Version()) }}
}
