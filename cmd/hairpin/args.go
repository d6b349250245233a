package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// exactArgs returns a check for exactly these arguments.
func exactArgs(names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) == len(names):
			return nil
		case len(names) == 0:
			return fmt.Errorf("takes no arguments, and has %q", args[0])
		}
		return fmt.Errorf("needs exactly %s, not %d arguments", strings.Join(names, " and "), len(args))
	}
}

// atLeastOneFile rejects a command line without a file.
func atLeastOneFile(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return errors.New("needs at least one FILE")
	}
	return nil
}

// requireSubcommand makes a command that only has subcommands reject other words. Without a word,
// the command prints its help, or fails with missing if that is not nil.
func requireSubcommand(c *cobra.Command, missing error) {
	c.SuggestionsMinimumDistance = 2 // maximum number of letters that differ
	c.Args = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		err := fmt.Errorf("has no command %q", args[0])
		if list := c.SuggestionsFor(args[0]); len(list) > 0 {
			err = fmt.Errorf("%w; nearest: %s", err, strings.Join(list, ", "))
		}
		return err
	}
	c.RunE = func(c *cobra.Command, _ []string) error {
		if missing != nil {
			return withUsage(c, missing)
		}
		return c.Help()
	}
}

// addUsage adds the usage to the errors about arguments of a command and its subcommands.
func addUsage(c *cobra.Command) {
	if args := c.Args; args != nil {
		c.Args = func(c *cobra.Command, words []string) error { return withUsage(c, args(c, words)) }
	}
	for _, sub := range c.Commands() {
		addUsage(sub)
	}
}

// withUsage adds the usage to an error about the command line.
func withUsage(c *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w\nusage: %s\nsee %s --help", err, useLine(c), c.CommandPath())
}
