package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"hairpin/lab/bench"
)

func benchmark(name *string, slow *int) *cobra.Command {
	var opt bench.Options
	var only bool
	c := &cobra.Command{Use: "bench", Short: "measure Hairpin beside kube-proxy in nftables mode", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if c.Flags().Changed("lab") {
				opt.Name = *name
			}
			if only {
				_, _, err := bench.Build(c.Context(), func(line string) { fmt.Fprintln(c.OutOrStdout(), line) })
				return err
			}
			opt.Slow, opt.Out = *slow, c.OutOrStdout()
			if opt.Hairpin, err = findHairpin(c.Context(), opt.Hairpin); err != nil {
				return err
			}
			return bench.Run(c.Context(), opt)
		}}
	c.Flags().StringSliceVar(&opt.Only, "only", nil,
		"what to measure: change, create, traffic (empty = these), policies: changes of NetworkPolicies, CNI ADD and "+
			"memory of Hairpin; alone allowed: traffic that NetworkPolicies allow; alone redirect: NodePorts "+
			"by nft and by eBPF "+
			"programs; alone dgp: a node's host by policies and by a distributed gateway port; alone passes: "+
			"conntrack passes and datapath lookups of each packet")
	c.Flags().BoolVar(&only, "build", false, "only build the API server and kube-proxy, which are kept")
	c.Flags().StringVar(&opt.Side, "side", "", "of change and create: hairpin or kube-proxy alone; empty = both")
	ovsFlag(c, &opt.OVS)
	c.Flags().BoolVar(&opt.TSO, "tso", false,
		"TSO of Open vSwitch's userspace datapath, and NICs that offload, also on kube-proxy's side")
	c.Flags().StringVar(&opt.Engine, "engine", "",
		"what serves Services on Hairpin's node: ovn or openflow; with --only traffic both, as ovn,openflow; "+
			"empty = the default")
	c.Flags().StringVar(&opt.Mode, "mode", "",
		"with --only passes: gateway mode of the nodes: shared, local or detached; empty = shared")
	c.Flags().IntSliceVar(&opt.Sizes, "services", []int{100, 1000, 10000}, "numbers of Services, ascending")
	c.Flags().IntSliceVar(&opt.Policies, "policies", []int{10, 1000, 10000}, "numbers of NetworkPolicies, ascending")
	c.Flags().StringVar(&opt.KubeRouter, "kube-router", "",
		"a binary of kube-router, beside which changes of NetworkPolicies are measured")
	c.Flags().IntVar(&opt.Rounds, "rounds", 50, "how many endpoints or policies to change for each number")
	c.Flags().IntVar(&opt.Turns, "turns", 5, "rounds of traffic")
	c.Flags().StringVar(&opt.Ways, "ways", "",
		`of traffic: those whose name matches this regular expression, such as "pod → ClusterIP"; empty = all`)
	c.Flags().StringVar(&opt.Hairpin, "hairpin", "",
		"binary under test; empty = beside this program, else built from the sources here")
	return c
}
