package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"hairpin/preflight"
)

func preflightCommand() *cobra.Command {
	var s settings
	var format string
	var o preflight.Options
	c := &cobra.Command{Use: "preflight", Short: "look at this machine before Hairpin comes to it", Args: cobra.NoArgs,
		Long: "Looks at this machine, as root, before Hairpin comes to it: what other networks left, what stands in the way, and what Hairpin would change.\n" +
			"It changes nothing without --fix. Exit code 0 if nothing stops an installation, 1 if something does, 2 after an error.",
		Example: "  hairpin preflight --config-file hairpin.conf\n  hairpin preflight --gateway-mode detached -o json\n  hairpin preflight --gateway-mode detached --fix",
		RunE: func(c *cobra.Command, _ []string) error {
			conf, err := s.load(c)
			if err != nil {
				return err
			}
			if format != "text" && format != "json" {
				return fmt.Errorf("--output %q is not one of text, json", format)
			}
			o.JSON, o.Log = format == "json", c.ErrOrStderr()
			return preflight.Run(c.Context(), c.OutOrStdout(), conf, o)
		}}
	s.addFor(c, append(ofCluster[:], "mtu", "gateway-interface", "ovs-run-dir", "run-dir")...)
	c.Flags().BoolVar(&o.Fix, "fix", false, "mend what is safe to mend, printing each change as the command that would make it, and look again")
	c.Flags().StringVarP(&format, "output", "o", "text", "text or json")
	return c
}
