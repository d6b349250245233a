package main

import (
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"hairpin/config"
	"hairpin/ui"
)

// settings has the configuration file and the option flags of a command.
type settings struct {
	file  string
	flags map[string]*string
}

func (s *settings) add(c *cobra.Command) {
	s.flags = map[string]*string{}
	c.Flags().StringVar(&s.file, "config-file", "", "configuration file (INI)")
	for _, o := range config.Options() {
		s.flags[o.Flag()] = c.Flags().String(o.Flag(), o.Default(), o.Usage)
	}
}

// addFor adds the options to a command. Its help shows only those with the given flags.
func (s *settings) addFor(c *cobra.Command, shown ...string) {
	s.add(c)
	for _, o := range config.Options() {
		if !slices.Contains(shown, o.Flag()) {
			_ = c.Flags().MarkHidden(o.Flag()) // add has just added it
		}
	}
	annotate(c, noteOptions, otherOptions)
}

// run returns a RunE that loads the configuration and calls f with it.
func (s *settings) run(
	f func(c *cobra.Command, conf config.Config, args []string) error,
) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, args []string) error {
		conf, err := s.load(c)
		if err != nil {
			return err
		}
		return f(c, conf, args)
	}
}

// load reads the file and then the flags of the command line.
func (s *settings) load(c *cobra.Command) (config.Config, error) {
	conf, err := config.Load(s.file)
	if err != nil {
		return conf, err
	}
	for _, o := range config.Options() {
		if c.Flags().Changed(o.Flag()) {
			if err := o.Set(&conf, *s.flags[o.Flag()]); err != nil {
				return conf, fmt.Errorf("--%s: %w", o.Flag(), err)
			}
		}
	}
	return conf, nil
}

// clusterFlags returns the flags that the help of a command shows if it can read manifests: the
// given ones, and those of options that no manifest has.
func clusterFlags(flags ...string) []string {
	return append(flags, "gateway-mode", "cluster-subnets", "service-cidrs")
}

// changedFlags returns the flags of the command line that describe the cluster. Package ui rejects
// them if agents or Nodes report the same options, because then they have no effect.
func changedFlags(c *cobra.Command) []string {
	list := append(ui.ReportedFlags(), "cluster-subnets", "service-cidrs")
	return slices.DeleteFunc(list, func(f string) bool { return !c.Flags().Changed(f) })
}

// impliesAll reports whether the command line has a flag that implies --all.
func impliesAll(c *cobra.Command) bool {
	return c.Flags().Changed("kubeconfig") || c.Flags().Changed("context")
}
