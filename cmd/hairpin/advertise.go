package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"hairpin/config"
	"hairpin/hostnet"
)

// advertiseCommand is for a unit that runs at every boot, before the API server.
func advertiseCommand() *cobra.Command {
	var s settings
	c := &cobra.Command{
		Use:   "advertise",
		Short: "Add the advertised addresses of gateway mode detached to this node, before the agent starts",
		Args:  exactArgs(),
		Long: `The addresses of [gateway] advertise-address go to the gateway bridge, or to lo if there is no
bridge yet; the agent later moves them to the bridge. An API server that advertises one of them
can then start before the agent. The command prints what it changed. It changes nothing if the
node has the addresses, or in another gateway mode.`,
		Example: "  hairpin advertise --gateway-mode detached",
		RunE: s.run(func(c *cobra.Command, conf config.Config, _ []string) error {
			did, err := hostnet.Advertise(conf.Cluster)
			for _, command := range did {
				fmt.Fprintf(c.OutOrStdout(), "# %s\n", command)
			}
			return err
		})}
	s.addFor(c, "gateway-mode", "gateway-advertise-address", "gateway-interface")
	return c
}
