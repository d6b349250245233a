package main

import (
	"time"

	"github.com/spf13/cobra"

	"hairpin/lab/scale"
)

func scaleCommand(name *string, slow *int) *cobra.Command {
	var opt scale.Options
	c := &cobra.Command{Use: "scale", Short: "measure what a node pays for the others, up to so many nodes",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if c.Flags().Changed("lab") {
				opt.Name = *name
			}
			opt.Slow, opt.Out = *slow, c.OutOrStdout()
			if opt.Hairpin, err = findHairpin(c.Context(), opt.Hairpin); err != nil {
				return err
			}
			_, err = scale.Run(c.Context(), opt)
			return err
		}}
	c.Flags().IntVar(&opt.Nodes, "nodes", 100, "nodes at the end; measured at 10, 100, … on the way")
	c.Flags().IntVar(&opt.Services, "services", 100, "Services, from the beginning")
	c.Flags().IntVar(&opt.Pods, "pods", 500, "Pods at the end")
	c.Flags().IntVar(&opt.EgressIPs, "egressips", 10, "EgressIPs at the end")
	c.Flags().StringVar(&opt.Engine, "engine", "",
		"what serves Services on the nodes: ovn or openflow; empty = the default")
	c.Flags().IntVar(&opt.Slices, "slices", 50, "EndpointSlices that change per second of churn")
	c.Flags().IntVar(&opt.Rounds, "rounds", 3,
		"joins and leaves for each size; five times as many changes, and joins whose CPU is measured")
	c.Flags().DurationVar(&opt.Window, "window", 20*time.Second, "how long rest and churn are measured")
	c.Flags().StringVar(&opt.Push, "push", "",
		"with so many nodes, let one kind of object grow instead: services, endpoints (of one Service), nodeports, "+
			"egressips (ten pods each), egresspods (of one EgressIP)")
	c.Flags().IntSliceVar(&opt.Sizes, "sizes", []int{500, 1000, 2000}, "how many of what is pushed, ascending")
	c.Flags().StringVar(&opt.CRDs, "crds", "charts/hairpin/crds", "folder of the resource definitions")
	c.Flags().DurationVar(&opt.Away, "away", 0,
		"how long the API server is away, after a cold start of OVN; 0: neither is measured")
	c.Flags().StringVar(&opt.SVG, "svg", "", "file for graphs of the table; empty = none")
	c.Flags().StringVar(&opt.JSON, "json", "", "file for the table; empty = none")
	c.Flags().StringVar(&opt.Hairpin, "hairpin", "",
		"binary under test; empty = beside this program, else built from the sources here")
	return c
}
