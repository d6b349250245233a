package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"hairpin/cluster"
	"hairpin/config"
	"hairpin/hostnet"
	"hairpin/report"
)

func configCommand() *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "convert settings of other networks", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return hinted(c, errors.New("needs convert FILE…")) }}
	var mode string
	convert := &cobra.Command{Use: "convert FILE…", Short: "print the configuration that means what MicroShift's ovn.yaml and config.yaml, or a Node of OVN-Kubernetes, say", Args: cobra.MinimumNArgs(1),
		Long: "Prints a configuration file that means what other files say: MicroShift's /etc/microshift/ovn.yaml and config.yaml, a Node of OVN-Kubernetes\n" +
			"(kubectl get node NAME -o yaml: its annotation k8s.ovn.org/node-primary-ifaddr). A later file overrides one before it. Comments say what has\n" +
			"no option here; keys that nothing is known of are listed on standard error.",
		Example: "  hairpin config convert /etc/microshift/ovn.yaml /etc/microshift/config.yaml > hairpin.conf",
		RunE: func(c *cobra.Command, files []string) error {
			all, err := config.NewConversion(mode)
			if err != nil {
				return err
			}
			for _, f := range files {
				text, err := os.ReadFile(f)
				if err != nil {
					return err
				}
				if err := all.Add(f, text); err != nil {
					return err
				}
			}
			for _, key := range all.Unknown {
				fmt.Fprintf(c.ErrOrStderr(), "unknown: %s\n", report.Plain(key, ""))
			}
			_, err = fmt.Fprint(c.OutOrStdout(), all)
			return err
		}}
	convert.Flags().StringVar(&mode, "gateway-mode", cluster.ModeDetached, "gateway mode to convert for: detached, which MicroShift's documents describe, or local or shared")
	c.AddCommand(convert)
	return c
}

// advertise is for a unit that runs at every boot, before the API server.
func advertise() *cobra.Command {
	var s settings
	c := &cobra.Command{Use: "advertise", Short: "in mode detached, put advertise-address on the gateway bridge, or on lo while there is none", Args: cobra.NoArgs,
		Long: "Puts the addresses of [gateway] advertise-address on the gateway bridge, or on lo while there is none, so that an API server that advertises\n" +
			"one can start before the agent, which moves them to the bridge. It prints what it did: nothing, where the machine has them or the mode is another.",
		RunE: func(c *cobra.Command, _ []string) error {
			conf, err := s.load(c)
			if err != nil {
				return err
			}
			did, err := hostnet.Advertise(conf.Cluster)
			for _, command := range did {
				fmt.Fprintf(c.OutOrStdout(), "# %s\n", command)
			}
			return err
		}}
	s.addFor(c, "gateway-mode", "gateway-advertise-address", "gateway-interface")
	return c
}
