package main

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// withAll are the commands that the kubectl plugin runs with --all. It is read-only.
var withAll = []string{"status", "diff", "explain", "policies", "ui", "collect", "preflight"}

// arguments returns the program's arguments. As the plugin kubectl-hairpin, it adds --all. kubectl
// runs it as kubectl_complete-hairpin to complete a command line.
func arguments(args []string) []string {
	words, at := args[1:], 0 // at is the index of the command
	switch strings.TrimSuffix(filepath.Base(args[0]), ".exe") {
	case "kubectl-hairpin":
		if len(words) > 0 && strings.HasPrefix(words[0], cobra.ShellCompRequestCmd) {
			at = 1
		}
	case "kubectl_complete-hairpin":
		words, at = append([]string{cobra.ShellCompRequestCmd}, words...), 1
	default:
		return words
	}
	// The last word of a completion is not a command yet.
	if at < len(words)-at && slices.Contains(withAll, words[at]) {
		return slices.Insert(slices.Clone(words), at+1, "--all")
	}
	return words
}
