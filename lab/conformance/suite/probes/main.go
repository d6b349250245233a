// Command probes is agnhost with the commands that cyclonus runs, and nothing else: cyclonus starts
// a process for each of the 486 probes of a step, and most of agnhost's CPU time is the
// initialisation of packages that these commands do not use.
package main

import (
	"os"

	"github.com/spf13/cobra"
	"k8s.io/kubernetes/test/images/agnhost/connect"
	"k8s.io/kubernetes/test/images/agnhost/porter"
	servehostname "k8s.io/kubernetes/test/images/agnhost/serve-hostname"
)

func main() {
	root := &cobra.Command{Use: "probes"}
	root.AddCommand(connect.CmdConnect, porter.CmdPorter, servehostname.CmdServeHostname)
	if root.Execute() != nil {
		os.Exit(1)
	}
}
