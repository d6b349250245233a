package main

import (
	"os"

	"github.com/spf13/cobra"

	"hairpin/claims"
	"hairpin/config"
	"hairpin/install"
)

func cleanupCommand() *cobra.Command {
	var s settings
	var what install.Remains
	c := &cobra.Command{Use: "cleanup", Short: "remove Hairpin from this node and return the uplink's addresses and routes", Args: cobra.NoArgs,
		Long: "Removes Hairpin from this node: flows and bridges, nft tables, routes, rules, pod links, the CNI plugin and the databases. The\n" +
			"uplink gets its addresses and routes back; a bridge that an administrator made stays. The command waits for the agent to end.\n" +
			"Open vSwitch should run; otherwise the command lists what it could not do and exits with code 2.",
		RunE: func(c *cobra.Command, _ []string) error {
			conf, err := s.load(c)
			if err != nil {
				return err
			}
			return install.Cleanup(c.Context(), conf, what, c.OutOrStdout(), config.Logger(conf, os.Stderr))
		}}
	s.add(c)
	f := c.Flags()
	f.StringVar(&what.BinDir, "bin-dir", "/opt/cni/bin", "directory of the container runtime's plugins")
	f.StringVar(&what.ConfDir, "conf-dir", claims.CNIConfDir, "directory of its network configurations")
	f.StringVar(&what.ConfFile, "conf-file", claims.CNIConfFile, "file name of the configuration in it")
	f.StringVar(&what.State, "state-dir", "/var/lib/hairpin", "directory of the databases")
	f.BoolVar(&what.Stay, "stay", false, "when done, keep the agent's lock until stopped, so that no agent takes over the node")
	return c
}
