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
	"syscall"

	"github.com/spf13/cobra"

	"hairpin/agent"
	"hairpin/cni"
	"hairpin/config"
	"hairpin/controller"
	"hairpin/report"
)

func main() {
	if os.Getenv("CNI_COMMAND") != "" && len(os.Args) == 1 {
		cni.Main("hairpin " + report.Version())
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	c := root()
	c.SetArgs(arguments(os.Args))
	err := c.ExecuteContext(ctx)
	stop()
	switch {
	case errors.Is(err, report.ErrProblems): // the command has printed the problems
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
			statusCommand(), testCommand(), explainCommand(), policiesCommand(), uiCommand(), diffCommand(),
			planCommand(), collectCommand(),
		}},
		{"Install", []*cobra.Command{preflightCommand(), configCommand(), advertiseCommand(), cleanupCommand()}},
		{"Run by the chart", []*cobra.Command{
			processCommand("node", "Run the agent of this node", agent.Run),
			processCommand("controller", "Assign node IDs and egress addresses for the cluster", controller.Run),
			installCommand(), cniCommand(), probeCommand(),
		}},
	} {
		c.AddGroup(&cobra.Group{ID: g.title, Title: g.title})
		for _, sub := range g.commands {
			sub.GroupID = g.title
			c.AddCommand(sub)
		}
	}
	c.AddCommand(askCommand(), testPodCommand(), versionCommand())
	c.SetVersionTemplate("{{.Version}}\n")
	c.SetHelpFunc(func(c *cobra.Command, _ []string) { printHelp(c.OutOrStdout(), c) })
	requireSubcommand(c, nil)
	addUsage(c)
	c.SetFlagErrorFunc(withUsage)
	return c
}

// processCommand returns a command that runs until a signal ends it.
func processCommand(name, short string, start func(context.Context, config.Config, *slog.Logger) error) *cobra.Command {
	var s settings
	c := &cobra.Command{
		Use:   name,
		Short: short,
		Args:  exactArgs(),
		RunE: s.run(func(c *cobra.Command, conf config.Config, _ []string) error {
			return start(c.Context(), conf, config.Logger(conf, os.Stderr))
		})}
	s.add(c)
	return c
}

func cniCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "cni",
		Short: "Serve one request of a container runtime as its CNI plugin",
		Args:  exactArgs(),
		Long: `The parameters are in the environment (CNI_COMMAND and others), the network configuration is on
standard input. The program is also the plugin without an argument, if CNI_COMMAND is set.`,
		Run: func(*cobra.Command, []string) { cni.Main("hairpin " + report.Version()) }}
	return annotate(c, noteExit, "0 on success, 1 after an error, which is printed as CNI specifies")
}

func versionCommand() *cobra.Command {
	return &cobra.Command{Use: "version", Short: "Print the version of this program", Args: exactArgs(),
		Run: func(c *cobra.Command, _ []string) { fmt.Fprintln(c.OutOrStdout(), report.Version()) }}
}
