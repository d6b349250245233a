package main

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"hairpin/config"
)

var update = flag.Bool("update", false, "rewrite docs/reference/cli.md and docs/user/explain.svg")

// commandsOf returns the visible commands of a group. A command with subcommands is replaced by
// these.
func commandsOf(c *cobra.Command, group string) (list []*cobra.Command) {
	for _, sub := range c.Commands() {
		switch {
		case sub.GroupID != group || !sub.IsAvailableCommand() || sub.Name() == "completion":
		case sub.HasAvailableSubCommands():
			list = append(list, commandsOf(sub, "")...)
		default:
			list = append(list, sub)
		}
	}
	return list
}

// TestCommandHelp checks that the help of each command has one sentence, usage, flags and exit
// codes.
func TestCommandHelp(t *testing.T) {
	c := root()
	commands := commandsOf(c, "")
	for _, g := range c.Groups() {
		commands = append(commands, commandsOf(c, g.ID)...)
	}
	if len(commands) < 15 {
		t.Fatalf("found %d commands", len(commands))
	}
	for _, sub := range commands {
		var b strings.Builder
		printHelp(&b, sub)
		first, rest, _ := strings.Cut(b.String(), "\n")
		if strings.Count(first, ".") != 1 || !strings.HasSuffix(first, ".") || strings.ToUpper(first[:1]) != first[:1] {
			t.Errorf("%s: the help starts with %q, not with one sentence", sub.CommandPath(), first)
		}
		if !strings.HasPrefix(rest, "\nUsage:\n  "+sub.UseLine()) || !strings.Contains(rest, "\nFlags:\n") ||
			!strings.Contains(rest, "\nExit codes: 0 ") {
			t.Errorf("%s: usage, flags or exit codes are missing:\n%s", sub.CommandPath(), rest)
		}
	}
}

// writeFlags writes a table of a command's flags. Commands that use the whole configuration have
// every option as a flag.
func writeFlags(b *strings.Builder, c *cobra.Command) {
	all := c.Flags().Lookup("config-file") != nil && c.Annotations[noteOptions] == ""
	var rows strings.Builder
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		isOption := slices.ContainsFunc(config.Options(), func(o config.Option) bool { return o.Flag() == f.Name })
		if f.Hidden || f.Name == "help" || all && isOption {
			return
		}
		name := "`--" + f.Name + "`"
		if f.Shorthand != "" {
			name = "`-" + f.Shorthand + "`, " + name
		}
		value := ""
		if f.DefValue != "" && f.DefValue != "[]" {
			value = "`" + f.DefValue + "`"
		}
		fmt.Fprintf(&rows, "| %s | %s | %s |\n", name, value, f.Usage)
	})
	if rows.Len() > 0 {
		fmt.Fprintf(b, "\n| flag | default | meaning |\n|---|---|---|\n%s", &rows)
	}
	if all {
		b.WriteString("\nEvery option of the [configuration](configuration.md) is also a flag.\n")
	}
}

const aboutCLI = "# Command line\n" + `
This page lists every command of the program hairpin. With the name kubectl-hairpin in your PATH,
the program is a plugin of kubectl. The commands status, diff, explain, policies, ui, collect and
preflight then ask all nodes, as with the flag --all. On a node, run the commands in the agent's
container:
` + "\n```\nkubectl --namespace hairpin exec daemonset/hairpin-node -c agent -- hairpin status\n```\n" + `
A command with the flag --config-file also has a flag for every option of the
[configuration](configuration.md). This page lists those that affect what the command prints. A flag
overrides the file.

The command completion prints a completion script for bash, zsh, fish or powershell. It also
completes the names of pods, nodes and Services. kubectl completes the plugin's command lines if a
link kubectl_complete-hairpin to kubectl-hairpin is in your PATH. Without an argument and with
CNI_COMMAND in its environment, the program is the CNI plugin.
`

// TestCLIDocument: docs/reference/cli.md is generated from the commands: `go test ./cmd/hairpin
// -run CLIDocument -update`.
func TestCLIDocument(t *testing.T) {
	var b strings.Builder
	b.WriteString(aboutCLI)
	c := root()
	for _, g := range append(c.Groups(), &cobra.Group{Title: "Other commands"}) {
		commands := commandsOf(c, g.ID)
		fmt.Fprintf(&b, "\n## %s\n\n| command | what it does |\n|---|---|\n", g.Title)
		for _, sub := range commands {
			path := sub.CommandPath()
			fmt.Fprintf(&b, "| [`%s`](#%s) | %s |\n", path, strings.ReplaceAll(path, " ", "-"), sub.Short)
		}
		for _, sub := range commands {
			fmt.Fprintf(&b, "\n### %s\n\n%s.\n\n```\n%s\n```\n", sub.CommandPath(), sub.Short, sub.UseLine())
			if sub.Long != "" {
				fmt.Fprintf(&b, "\n%s\n", sub.Long)
			}
			if sub.Example != "" {
				fmt.Fprintf(&b, "\nExamples:\n\n```\n%s\n```\n", strings.ReplaceAll(sub.Example[2:], "\n  ", "\n"))
			}
			writeFlags(&b, sub)
			fmt.Fprintf(&b, "\nExit codes: %s.\n", exitCodesOf(sub))
		}
	}
	b.WriteString("\n<!-- Made by `go test ./cmd/hairpin -run CLIDocument -update`. -->\n")
	const path = "../../docs/reference/cli.md"
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(text), "\n"), strings.Split(b.String(), "\n")); diff != "" {
		t.Errorf("%s is out of date:\n%s", path, diff)
	}
}
