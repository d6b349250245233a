// Command prepare gets the components of a demo; see package prepare. Run it as root in the top
// folder of the sources.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"hairpin/lab/prepare"
)

func main() {
	ovs := flag.String("ovs", "", "Open vSwitch and OVN of the node image; empty = those of Debian's unstable")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := prepare.Run(ctx, os.Stdout, "bin", *ovs)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "prepare:", err)
		os.Exit(1)
	}
}
