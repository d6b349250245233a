package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"hairpin/config"
	"hairpin/inspect"
	"hairpin/report"
)

func collectCommand() *cobra.Command {
	var s settings
	var o inspect.CollectOptions
	var file string
	c := &cobra.Command{
		Use:     "collect",
		Short:   "Write an archive with the state and logs of this node or of all nodes, without secrets",
		Args:    exactArgs(),
		Example: "  hairpin collect\n  kubectl hairpin collect --file support.tar.gz",
		RunE: s.run(func(c *cobra.Command, conf config.Config, _ []string) error {
			o.Kubeconfig = conf.Process.Kubeconfig
			o.All = o.All || impliesAll(c)
			if file == "" {
				file = "hairpin-" + time.Now().UTC().Format("20060102-150405") + ".tar.gz"
			}
			if file == "-" {
				return inspect.Collect(c.Context(), c.OutOrStdout(), c.ErrOrStderr(), conf, o)
			}
			out, err := os.OpenFile(file, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
			if err != nil {
				return err
			}
			err = inspect.Collect(c.Context(), out, c.ErrOrStderr(), conf, o)
			if closed := out.Close(); closed != nil {
				return errors.Join(err, closed)
			}
			if err == nil || errors.Is(err, report.ErrProblems) {
				fmt.Fprintf(c.ErrOrStderr(), "written to %s; review it before you share it\n", file)
			}
			return err
		})}
	s.addFor(c, "run-dir", "kubeconfig")
	f := c.Flags()
	f.StringVar(&file, "file", "",
		"output file; - = standard output; empty = hairpin-TIME.tar.gz in the current directory")
	f.BoolVarP(&o.All, "all", "A", false,
		"collect from every node of the cluster, through the API server (implied by --kubeconfig and --context)")
	s.addContext(c, &o.Context)
	s.addNamespace(c, &o.Namespace)
	f.DurationVar(&o.Timeout, "timeout", time.Minute, "maximum time to wait for a node's answer")
	return annotate(c, noteExit,
		"0 if the archive is complete, 1 if something could not be collected, 2 after an error")
}
