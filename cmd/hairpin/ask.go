package main

import (
	"github.com/spf13/cobra"

	"hairpin/config"
	"hairpin/inspect"
)

// askCommand is the command that explain and collect run in the agents' containers.
func askCommand() *cobra.Command {
	var s settings
	c := &cobra.Command{
		Use:    "ask PATH",
		Short:  "Print the agent's answer to a path of its socket",
		Args:   exactArgs("PATH"),
		Hidden: true,
		RunE: s.run(func(c *cobra.Command, conf config.Config, args []string) error {
			return inspect.Ask(c.Context(), c.OutOrStdout(), args[0], conf)
		})}
	s.add(c)
	return c
}
