// Command hairpin-kube-proxy is Kubernetes' own kube-proxy, what Hairpin is measured against. It is
// a program of its own, not a part of hairpin-kube, because its memory is measured too.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // what it measures of its API client
	"k8s.io/kubernetes/cmd/kube-proxy/app"
)

func main() { os.Exit(cli.Run(app.NewProxyCommand())) }
