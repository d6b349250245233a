package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// needs returns the check that a command has exactly these arguments.
func needs(names ...string) cobra.PositionalArgs {
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

// needsFiles rejects a command line without a file.
func needsFiles(_ *cobra.Command, args []string) error {
	if len(args) == 0 {
		return errors.New("needs at least one FILE")
	}
	return nil
}

// needsCommand lets a command that only has subcommands reject a word that is none of them. Without
// a word, it prints the help, or fails with what is missing.
func needsCommand(c *cobra.Command, missing error) {
	c.SuggestionsMinimumDistance = 2 // letters that may differ
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
			return hinted(c, missing)
		}
		return c.Help()
	}
}

// hintArgs adds the usage to the errors about arguments of a command and its subcommands.
func hintArgs(c *cobra.Command) {
	if args := c.Args; args != nil {
		c.Args = func(c *cobra.Command, words []string) error { return hinted(c, args(c, words)) }
	}
	for _, sub := range c.Commands() {
		hintArgs(sub)
	}
}

// hinted adds the usage to an error about the command line.
func hinted(c *cobra.Command, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w\nusage: %s\nsee %s --help", err, useLine(c), c.CommandPath())
}
