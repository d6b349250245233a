package main

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// withAll has the commands that the kubectl plugin runs with --all. No code changes it.
var withAll = []string{"status", "diff", "explain", "policies", "ui", "collect", "preflight"}

// arguments returns the program's arguments. As the plugin kubectl-hairpin, it adds --all. kubectl
// runs it as kubectl_complete-hairpin to complete a command line.
func arguments(args []string) []string {
	words := args[1:]
	switch strings.TrimSuffix(filepath.Base(args[0]), ".exe") {
	case "kubectl-hairpin":
	case "kubectl_complete-hairpin":
		words = append([]string{cobra.ShellCompRequestCmd}, words...)
	default:
		return words
	}
	command, end := 0, len(words) // the command is at index command, if that is before end
	if end > 0 && strings.HasPrefix(words[0], cobra.ShellCompRequestCmd) {
		command, end = 1, end-1 // the last word is still being typed
	}
	if command < end && slices.Contains(withAll, words[command]) {
		return slices.Insert(slices.Clone(words), command+1, "--all")
	}
	return words
}
