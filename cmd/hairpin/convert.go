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
	c := &cobra.Command{Use: "config", Short: "Convert the configuration of another network plugin"}
	needsCommand(c, errors.New("needs convert FILE… or pools FILE…"))
	var mode string
	convert := &cobra.Command{
		Use:   "convert FILE…",
		Short: "Print a Hairpin configuration with the settings of MicroShift or OVN-Kubernetes files",
		Args:  needsFiles,
		Long: `FILE is MicroShift's /etc/microshift/ovn.yaml or config.yaml, or a Node of OVN-Kubernetes (kubectl
get node NAME -o yaml, of which the annotation k8s.ovn.org/node-primary-ifaddr is read). A later
file overrides an earlier one. Comments in the output list settings that Hairpin has no option
for; unknown keys are listed on standard error.`,
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
	convert.Flags().StringVar(&mode, "gateway-mode", cluster.ModeDetached,
		"gateway mode of the result: detached (as MicroShift), local or shared")
	c.AddCommand(convert, convertPools())
	return c
}

func convertPools() *cobra.Command {
	return &cobra.Command{
		Use:   "pools FILE…",
		Short: "Convert MetalLB's pools, advertisements and BGP peers",
		Args:  needsFiles,
		Long: `FILE has objects of MetalLB:

  IPAddressPool, L2Advertisement   become a LoadBalancerPool
  BGPAdvertisement                 becomes a BGPAdvertisement of Hairpin
  BGPPeer, BFDProfile              become an FRRConfiguration of frr-k8s

Comments in the output say what these do differently, and which fields are not converted. Objects
of other kinds are listed on standard error.`,
		Example: "  kubectl get ipaddresspools,l2advertisements,bgpadvertisements.metallb.io,bgppeers,bfdprofiles " +
			"-n metallb-system -o yaml > metallb.yaml\n" +
			"  hairpin config pools metallb.yaml > pools.yaml",
		RunE: func(c *cobra.Command, files []string) error {
			var pools config.MetalLB
			for _, f := range files {
				text, err := os.ReadFile(f)
				if err != nil {
					return err
				}
				others, err := pools.Add(f, text)
				if err != nil {
					return err
				}
				for _, o := range others {
					fmt.Fprintf(c.ErrOrStderr(), "not converted: %s\n", report.Plain(o, ""))
				}
			}
			text, err := pools.Convert()
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(c.OutOrStdout(), text)
			return err
		}}
}

// advertise is for a unit that runs at every boot, before the API server.
func advertise() *cobra.Command {
	var s settings
	c := &cobra.Command{
		Use:   "advertise",
		Short: "Add the advertised addresses of gateway mode detached to this node, before the agent starts",
		Args:  needs(),
		Long: `The addresses of [gateway] advertise-address go to the gateway bridge, or to lo if there is no
bridge yet; the agent later moves them to the bridge. An API server that advertises one of them
can then start before the agent. The command prints what it changed. It changes nothing if the
node has the addresses, or in another gateway mode.`,
		Example: "  hairpin advertise --gateway-mode detached",
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
