package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"

	_ "k8s.io/component-base/metrics/prometheus/clientgo" // the kubelet's own metrics of its API client
)

// runAs makes this program Kubernetes' own kubelet or kubectl, with their own command lines, when
// the first argument or the program's name says so. One binary holds what they share with the
// control plane.
func runAs(args []string) (code int, ran bool) {
	var command *cobra.Command
	switch {
	case name(args[0]) == "kubectl":
		command = kubectl.NewDefaultKubectlCommand() // reads os.Args: plugins, and completion
	case name(args[0]) == "kubelet":
		command = kubelet.NewKubeletCommand(context.Background())
	case len(args) > 1 && name(args[1]) == "kubectl", len(args) > 1 && name(args[1]) == "kubelet":
		os.Args = args[1:]
		return runAs(os.Args)
	default:
		return 0, false
	}
	return cli.Run(command), true
}

func name(path string) string {
	for i := len(path) - 1; i >= 0; i-- {
		if path[i] == '/' {
			return path[i+1:]
		}
	}
	return path
}
