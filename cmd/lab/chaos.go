package main

import (
	"fmt"
	"path/filepath"
	"regexp"
	"time"

	"github.com/spf13/cobra"

	"hairpin/lab/chaos"
	"hairpin/lab/cluster"
)

func chaosCommand(name *string) *cobra.Command {
	opt := chaos.Options{Root: "."}
	var schedule, faults string
	var minimise, list bool
	c := &cobra.Command{Use: "chaos",
		Short: "inject faults at random into the cluster that is up, under traffic: exit code 0 only if " +
			"nothing else failed",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			opt.Out = c.OutOrStdout()
			if opt.Dir == "" {
				opt.Dir = filepath.Join("dist", "chaos", fmt.Sprint("seed-", opt.Seed))
			}
			if list {
				chaos.PrintKinds(opt.Out)
				return nil
			}
			var err error
			if opt.Faults, err = regexp.Compile(faults); err != nil {
				return fmt.Errorf("--faults: %w", err)
			}
			if schedule != "" {
				if opt.Schedule, err = chaos.Load(schedule); err != nil {
					return err
				}
			}
			o := cluster.Options{Out: opt.Out}
			if c.Flags().Changed("lab") {
				o.Name = *name
			}
			up, err := cluster.Open(o)
			if err != nil {
				return fmt.Errorf("%w (make cluster starts it)", err)
			}
			if minimise {
				return chaos.RunMinimise(c.Context(), up, opt)
			}
			return chaos.Run(c.Context(), up, opt)
		}}
	c.Flags().Uint64Var(&opt.Seed, "seed", 1, "which faults")
	c.Flags().DurationVar(&opt.For, "for", 10*time.Minute, "how long faults are injected")
	c.Flags().StringVar(&faults, "faults", "", "regular expression: only kinds of faults with such names; empty = all")
	c.Flags().StringVar(&schedule, "schedule", "",
		"file with the schedule of an earlier run, in place of that of the seed")
	c.Flags().StringVar(&opt.Dir, "dir", "", "folder for the report; empty = dist/chaos/seed-SEED")
	c.Flags().BoolVar(&minimise, "minimise", false,
		"find the smallest part of the schedule that still fails, in many runs")
	c.Flags().BoolVar(&list, "list", false, "print the kinds of faults")
	return c
}
