// Command prepare gets what a demo is made of; see package prepare. Run it as root in the top folder of the sources.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"hairpin/lab/prepare"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := prepare.Run(ctx, os.Stdout, "bin")
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "prepare:", err)
		os.Exit(1)
	}
}
