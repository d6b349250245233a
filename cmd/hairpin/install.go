package main

import (
	"os"

	"github.com/spf13/cobra"

	"hairpin/claims"
	"hairpin/config"
	"hairpin/install"
)

func installCommand() *cobra.Command {
	var to install.Installation
	var hostPorts bool
	c := &cobra.Command{
		Use:     "install",
		Short:   "Install the CNI plugin and its configuration on this node",
		Args:    exactArgs(),
		Example: "  hairpin install --bin-dir=/host/bin --conf-dir=/host/net.d",
		RunE: func(*cobra.Command, []string) error {
			if !hostPorts {
				to.Portmap = ""
			}
			return install.Install(to, config.Logger(config.DefaultConfig(), os.Stderr))
		}}
	f := c.Flags()
	f.StringVar(&to.BinDir, "bin-dir", "/opt/cni/bin", "directory of the container runtime's CNI plugins")
	f.StringVar(&to.ConfDir, "conf-dir", claims.CNIConfDir,
		"directory of the container runtime's network configurations")
	f.StringVar(&to.ConfFile, "conf-file", claims.CNIConfFile, "name of Hairpin's file in --conf-dir")
	f.StringVar(&to.RunDir, "run-dir", "", "directory of the agent's sockets on the host; empty = /run/hairpin")
	f.BoolVar(&hostPorts, "host-ports", true, "serve hostPort of pods with the plugin portmap")
	f.StringVar(&to.Portmap, "portmap", "/usr/local/lib/hairpin/cni/portmap", "path of the plugin portmap")
	return c
}
