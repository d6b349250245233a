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
	var o install.CleanupOptions
	c := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove Hairpin from this node and return the uplink's addresses and routes",
		Args:  exactArgs(),
		Long: `It deletes flows and bridges, nft tables, routes, rules, pod links, the CNI plugin and the
databases. A bridge that an administrator made stays. The command waits for the agent to end. Open
vSwitch should run; otherwise the command lists what it could not do and exits with code 2.`,
		Example: "  hairpin cleanup --config-file hairpin.conf",
		RunE: s.run(func(c *cobra.Command, conf config.Config, _ []string) error {
			return install.Cleanup(c.Context(), conf, o, c.OutOrStdout(), config.Logger(conf, os.Stderr))
		})}
	s.addFor(c, "gateway-mode", "gateway-interface", "run-dir")
	f := c.Flags()
	f.StringVar(&o.BinDir, "bin-dir", "/opt/cni/bin", "directory of the container runtime's CNI plugins")
	f.StringVar(&o.ConfDir, "conf-dir", claims.CNIConfDir,
		"directory of the container runtime's network configurations")
	f.StringVar(&o.ConfFile, "conf-file", claims.CNIConfFile, "name of Hairpin's file in --conf-dir")
	f.StringVar(&o.StateDir, "state-dir", "/var/lib/hairpin", "directory of the OVN and Open vSwitch databases")
	f.BoolVar(&o.Stay, "stay", false,
		"hold the agent's lock until the command is stopped, so that no agent starts on the node")
	return c
}
