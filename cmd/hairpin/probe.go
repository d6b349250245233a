package main

import (
	"github.com/spf13/cobra"

	"hairpin/config"
	"hairpin/inspect"
)

// probeCommand is for exec probes.
func probeCommand() *cobra.Command {
	var s settings
	var controller bool
	c := &cobra.Command{
		Use:       "probe livez|readyz|healthz|metrics",
		Short:     "Query a health endpoint of this node's agent or this container's controller",
		Example:   "  hairpin probe readyz\n  hairpin probe livez --controller",
		Args:      cobra.MatchAll(exactArgs("one endpoint"), cobra.OnlyValidArgs),
		ValidArgs: []string{"livez", "readyz", "healthz", "metrics"},
		RunE: s.run(func(c *cobra.Command, conf config.Config, args []string) error {
			return inspect.Probe(c.Context(), c.OutOrStdout(), conf, controller, args[0])
		})}
	s.addFor(c, "run-dir")
	c.Flags().BoolVar(&controller, "controller", false, "query the controller instead of the agent")
	return annotate(c, noteExit, "0 if the answer is 200 OK, 1 if it is another, 2 after an error")
}
