package main

import (
	"os"

	"github.com/spf13/cobra"

	"hairpin/config"
	"hairpin/run"
)

func cleanupCommand() *cobra.Command {
	var s settings
	var what run.Remains
	c := &cobra.Command{Use: "cleanup", Short: "take everything of Hairpin off this node and give the uplink its network back", Args: cobra.NoArgs,
		Long: "Takes everything of Hairpin off this node: flows and bridges, nft tables, routes, rules, the pods' links, the CNI plugin and the\n" +
			"databases. The uplink gets its addresses and routes back; a bridge that the administrator made stays. It waits until the agent\n" +
			"has ended. Open vSwitch should run; what cannot be done without it is said, and the exit code is 2.",
		RunE: func(c *cobra.Command, _ []string) error {
			conf, err := s.load(c)
			if err != nil {
				return err
			}
			return run.Cleanup(c.Context(), conf, what, c.OutOrStdout(), config.Logger(conf, os.Stderr))
		}}
	s.add(c)
	f := c.Flags()
	f.StringVar(&what.BinDir, "bin-dir", "/opt/cni/bin", "folder of the container runtime's plugins")
	f.StringVar(&what.ConfDir, "conf-dir", "/etc/cni/net.d", "folder of its network configurations")
	f.StringVar(&what.ConfFile, "conf-file", "05-hairpin.conflist", "name of the configuration in it")
	f.StringVar(&what.State, "state-dir", "/var/lib/hairpin", "folder of the databases")
	f.BoolVar(&what.Stay, "stay", false, "when all is done, wait to be ended: meanwhile no agent takes the node again")
	return c
}
