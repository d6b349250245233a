package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// Annotations of a command that its help prints at the end.
const (
	noteExit    = "exit codes"
	noteOptions = "options" // which flags the help leaves out
)

const (
	exitCodes     = "0 on success, 2 after an error"
	otherOptions  = "Every other option of the configuration is also a flag: `hairpin node --help` lists them."
	columnsOfHelp = 120
)

// annotate sets an annotation.
func annotate(c *cobra.Command, key, text string) *cobra.Command {
	if c.Annotations == nil {
		c.Annotations = map[string]string{}
	}
	c.Annotations[key] = text
	return c
}

// exitCodesOf returns the meaning of each exit code of a command.
func exitCodesOf(c *cobra.Command) string {
	if text := c.Annotations[noteExit]; text != "" {
		return text
	}
	return exitCodes
}

// printHelp writes what a command does in one sentence, then its usage, details, examples,
// subcommands by group, flags and exit codes.
func printHelp(w io.Writer, c *cobra.Command) {
	fmt.Fprintf(w, "%s.\n\nUsage:\n  %s\n", c.Short, useLine(c))
	if c.Long != "" {
		fmt.Fprintf(w, "\n%s\n", c.Long)
	}
	if c.Example != "" {
		fmt.Fprintf(w, "\nExamples:\n%s\n", c.Example)
	}
	for _, g := range c.Groups() {
		printCommands(w, c, g.Title, g.ID)
	}
	if len(c.Groups()) > 0 {
		printCommands(w, c, "Other commands", "")
	} else {
		printCommands(w, c, "Commands", "")
	}
	fmt.Fprintf(w, "\nFlags:\n%s", c.LocalFlags().FlagUsagesWrapped(columnsOfHelp))
	if text := c.Annotations[noteOptions]; text != "" {
		fmt.Fprintf(w, "\n%s\n", text)
	}
	if c.HasAvailableSubCommands() {
		fmt.Fprintf(w, "\n`%s COMMAND --help` describes a command.\n", c.CommandPath())
		return
	}
	fmt.Fprintf(w, "\nExit codes: %s.\n", exitCodesOf(c))
}

func useLine(c *cobra.Command) string {
	if c.HasAvailableSubCommands() {
		return c.CommandPath() + " COMMAND"
	}
	return c.UseLine()
}

func printCommands(w io.Writer, c *cobra.Command, title, group string) {
	var lines strings.Builder
	for _, sub := range c.Commands() {
		if sub.GroupID == group && sub.IsAvailableCommand() {
			fmt.Fprintf(&lines, "  %-*s %s\n", sub.NamePadding(), sub.Name(), sub.Short)
		}
	}
	if lines.Len() > 0 {
		fmt.Fprintf(w, "\n%s:\n%s", title, &lines)
	}
}
