package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"hairpin/cluster"
	"hairpin/config"
	"hairpin/report"
)

func configCommand() *cobra.Command {
	c := &cobra.Command{Use: "config", Short: "Convert the configuration of another network plugin"}
	requireSubcommand(c, errors.New("needs convert FILE… or pools FILE…"))
	var mode string
	convert := &cobra.Command{
		Use:   "convert FILE…",
		Short: "Print a Hairpin configuration with the settings of MicroShift or OVN-Kubernetes files",
		Args:  atLeastOneFile,
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
	c.AddCommand(convert, poolsCommand())
	return c
}

func poolsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "pools FILE…",
		Short: "Convert MetalLB's pools, advertisements and BGP peers",
		Args:  atLeastOneFile,
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
