package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"hairpin/preflight"
)

func preflightCommand() *cobra.Command {
	var s settings
	var format string
	c := &cobra.Command{Use: "preflight", Short: "look at this machine before Hairpin comes to it", Args: cobra.NoArgs,
		Long: "Looks at this machine, as root, before Hairpin comes to it: what other networks left, what stands in the way, and what Hairpin would change.\n" +
			"It changes nothing. Exit code 0 if nothing stops an installation, 1 if something does, 2 after an error.",
		Example: "  hairpin preflight --config-file hairpin.conf\n  hairpin preflight --gateway-mode detached -o json",
		RunE: func(c *cobra.Command, _ []string) error {
			conf, err := s.load(c)
			if err != nil {
				return err
			}
			if format != "text" && format != "json" {
				return fmt.Errorf("--output %q is not one of text, json", format)
			}
			return preflight.Run(c.Context(), c.OutOrStdout(), conf, format == "json")
		}}
	s.addFor(c, append(ofCluster[:], "mtu", "gateway-interface", "ovs-run-dir")...)
	c.Flags().StringVarP(&format, "output", "o", "text", "text or json")
	return c
}
