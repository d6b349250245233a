// Command coredns is the cluster DNS of the lab: CoreDNS with the plugins that a cluster's usual
// configuration names, and without those that bring the clients of clouds with them. It lives in a
// Go module of its own so that the product's go.mod stays small.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/bind"
	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/forward"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/loadbalance"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
	_ "github.com/coredns/coredns/plugin/template"
)

func main() {
	// The order in which a query passes them, whatever the order in the Corefile is.
	dnsserver.Directives = []string{
		"reload", "bind", "health", "ready", "errors", "log", "loadbalance", "cache", "template", "hosts", "kubernetes",
		"forward",
	}
	coremain.Run()
}
