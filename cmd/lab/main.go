// Command lab runs Hairpin nodes on one machine; see package lab. It needs root.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"hairpin/image"
	"hairpin/lab"
	"hairpin/lab/chaos"
	"hairpin/lab/conformance"
	"hairpin/lab/demo"
	"hairpin/lab/probe"
	"hairpin/lab/progress"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := root().ExecuteContext(ctx)
	stop()
	if err != nil {
		if !errors.Is(err, demo.ErrFailed) && !errors.Is(err, conformance.ErrFailed) &&
			!errors.Is(err, chaos.ErrFailed) { // its last line has reported it
			fmt.Fprintln(os.Stderr, "lab:", err)
		}
		os.Exit(1)
	}
}

func root() *cobra.Command {
	c := &cobra.Command{
		Use: "lab", Short: "Hairpin nodes on one machine: real Open vSwitch, OVN, kernel and Kubernetes API",
		SilenceUsage: true, SilenceErrors: true,
	}
	name := c.PersistentFlags().String("lab", demo.DefaultName, "name of the lab")
	slow := c.PersistentFlags().Int("slow", 1, "how many times slower than usual this machine is")
	c.AddCommand(imageCommand(), kubeCommand(), up(name, slow), show(name, slow), check(name, slow), down(name),
		execute(name), restart(name), status(name), probes(name), clusterCommand(name), benchmark(name, slow),
		scaleCommand(name, slow), chaosCommand(name))
	return c
}

func imageCommand() *cobra.Command {
	var out, lock, apt, arch, ovs string
	var container image.Container
	c := &cobra.Command{Use: "image",
		Short: "make the node image, if it is not there, and print where it is; or write the container images",
		Args:  cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			step, end := begin(c, "node image")
			defer end()
			progress := func(line string) { step.Say("%s", line) }
			if out != "" {
				container.OVS = ovs
				names, err := image.WriteOCI(c.Context(), image.DefaultDir, out, container, progress)
				if err != nil {
					return err
				}
				fmt.Fprintf(c.OutOrStdout(), "%s has the images %s\n", out, strings.Join(names, " and "))
				return nil
			}
			if apt != "" {
				config, err := image.Apt(c.Context(), apt, arch)
				if err != nil {
					return err
				}
				fmt.Fprintln(c.OutOrStdout(), config)
				return nil
			}
			list, err := image.Node(ovs)
			if err != nil {
				return err
			}
			if lock != "" {
				return list.WriteLock(c.Context(), image.DefaultDir, lock, progress)
			}
			dir, err := list.Build(c.Context(), image.DefaultDir, progress)
			if err != nil {
				return err
			}
			fmt.Fprintln(c.OutOrStdout(), dir)
			return nil
		}}
	c.Flags().StringVar(&out, "oci", "", "write the container images to this file, as an OCI archive")
	c.Flags().StringVar(&lock, "lock", "", "build the node image anew and write its packages' versions to this file")
	ovsFlag(c, &ovs)
	c.Flags().StringVar(&apt, "apt", "", "make a configuration of apt for an architecture's packages of Debian "+
		image.Suite+" in this folder, and print its file, for $APT_CONFIG")
	c.Flags().StringVar(&arch, "arch", runtime.GOARCH, "that architecture")
	c.Flags().StringVar(&container.Name, "name", "hairpin:dev", "repository and tag of the one that has the program")
	c.Flags().StringSliceVar(&container.Hairpin, "hairpin", []string{"bin/hairpin"},
		"its program; once for each architecture that the images are to be for")
	c.Flags().StringSliceVar(&container.Portmap, "portmap", []string{"bin/portmap"},
		"its CNI plugin for host ports, likewise")
	c.Flags().BoolVar(&container.Locked, "locked", false,
		"fail if the versions of Open vSwitch or OVN are not in the lock")
	return c
}

func ovsFlag(c *cobra.Command, ovs *string) {
	c.Flags().StringVar(ovs, "ovs", "", "Open vSwitch and OVN of the node image: "+image.Debian13+
		" = those of Debian 13; empty = those of unstable")
}

func kubeCommand() *cobra.Command {
	return &cobra.Command{Use: "kube",
		Short: "build the Kubernetes API server, if it is not there, and print where it is", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			step, end := begin(c, "Kubernetes "+lab.KubeVersion)
			defer end()
			file, err := lab.BuildKube(c.Context(), image.DefaultDir, func(line string) { step.Say("%s", line) })
			if err != nil {
				return err
			}
			fmt.Fprintln(c.OutOrStdout(), file)
			return nil
		}}
}

// begin begins a step that may take minutes, and shows it.
func begin(c *cobra.Command, name string) (step *progress.Step, end func()) {
	board := progress.New(c.ErrOrStderr())
	step = board.Begin(name)
	return step, func() {
		step.End()
		board.Close()
	}
}

// start adds the flags of a demo to a command, and returns the function that starts it.
func start(c *cobra.Command, name *string, slow *int) func() (*demo.Demo, error) {
	var opt demo.Options
	c.Flags().StringVar(&opt.Objects, "objects", "examples/demo", "folder of manifests")
	c.Flags().StringVar(&opt.Hairpin, "hairpin", "",
		"binary under test; empty = beside this program, else built from the sources here")
	c.Flags().StringVar(&opt.API, "api", "",
		"kubernetes = with an API server, built when it is not there (minutes); empty = the agents read the manifests")
	c.Flags().StringVar(&opt.Mode, "mode", "", "gateway mode of the nodes: shared, local or detached; empty = shared")
	ovsFlag(c, &opt.OVS)
	c.Flags().BoolVar(&opt.TSO, "tso", false, "TSO of Open vSwitch's userspace datapath")
	c.Flags().StringVar(&opt.NodePortPath, "nodeport-path", "", "of the nodes: nft or redirect; empty = nft")
	c.Flags().StringVar(&opt.Engine, "engine", "",
		"of the nodes: what serves Services, ovn or openflow, or one for each in turn, as ovn,openflow; "+
			"empty = the default")
	c.Flags().StringVar(&opt.NodeLocal, "node-local", "", "of the nodes: policy or dgp; empty = policy")
	return func() (*demo.Demo, error) {
		opt.Name, opt.Slow, opt.Out = *name, *slow, c.OutOrStdout()
		var err error
		if opt.Hairpin, err = findHairpin(c.Context(), opt.Hairpin); err != nil {
			return nil, err
		}
		d, err := demo.Start(c.Context(), opt)
		if err != nil {
			return nil, fmt.Errorf("%w\n(what was started is left to look at; `lab down` removes it)", err)
		}
		return d, nil
	}
}

func up(name *string, slow *int) *cobra.Command {
	c := &cobra.Command{Use: "up", Short: "start the demo's nodes, pods and Services, and leave them up",
		Args: cobra.NoArgs}
	begin := start(c, name, slow)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if _, err := begin(); err != nil {
			return err
		}
		hints(c, *name)
		return nil
	}
	return c
}

func show(name *string, slow *int) *cobra.Command {
	c := &cobra.Command{Use: "demo", Short: "up and check: exit code 0 only if every packet arrived as it must",
		Args: cobra.NoArgs}
	begin, only := start(c, name, slow), onlyFlag(c)
	without := c.Flags().String("without", "^$", "leave out those with a name that matches this regular expression")
	c.RunE = func(c *cobra.Command, _ []string) error {
		fits, err := regexp.Compile(*only)
		if err != nil {
			return err
		}
		leaves, err := regexp.Compile(*without)
		if err != nil {
			return err
		}
		d, err := begin()
		if err != nil {
			return err
		}
		egress := d.ShowEgress(c.Context())
		if egress != nil {
			egress = fmt.Errorf("egress addresses: %w", egress)
		}
		matrix := demo.Check(c.Context(),
			demo.Checks{Name: *name, Slow: *slow, Only: fits, Without: leaves, Out: c.OutOrStdout(),
				Before: func() { hints(c, *name) }})
		return cmp.Or(egress, matrix)
	}
	return c
}

func onlyFlag(c *cobra.Command) *string {
	return c.Flags().String("only", "",
		`only those whose name has this regular expression, such as "NodePort.*sctp" or "^clash"`)
}

func check(name *string, slow *int) *cobra.Command {
	c := &cobra.Command{Use: "check", Short: "run the traffic matrix and the trials again in a demo that is up",
		Args: cobra.NoArgs}
	only := onlyFlag(c)
	every := c.Flags().Bool("every", false, "also trials that are known to fail here")
	c.RunE = func(c *cobra.Command, _ []string) error {
		fits, err := regexp.Compile(*only)
		if err != nil {
			return err
		}
		return demo.Check(c.Context(), demo.Checks{Name: *name, Slow: *slow, Only: fits, Every: *every,
			Out: c.OutOrStdout()})
	}
	return c
}

func hints(c *cobra.Command, name string) {
	self, flag := os.Args[0], ""
	if name != demo.DefaultName {
		flag = " --lab " + name
	}
	fmt.Fprintf(c.OutOrStdout(), "\nThe lab stays up. To try:\n")
	for _, h := range [][2]string{
		{"exec node-a", "a shell on the node (also on a pod: exec pod-a2, or on the client)"},
		{"exec node-a -- hairpin status", "what the agent says of itself"},
		{"exec node-a -- ovn-nbctl show", "the node's OVN zone"},
		{"exec node-a -- ovs-ofctl dump-flows br-ex table=0", "the gateway bridge"},
		{"probe get --from-place client --to 172.18.0.3:30001", "one request, from anywhere"},
		{"restart node-a ovs-vswitchd", "kill a daemon and start it again"},
		{"check", "the traffic matrix again"},
		{"down", "remove everything"},
	} {
		fmt.Fprintf(c.OutOrStdout(), "  %-60s %s\n", self+flag+" "+h[0], h[1])
	}
	fmt.Fprintln(c.OutOrStdout())
}

func down(name *string) *cobra.Command {
	return &cobra.Command{Use: "down", Short: "remove the lab, and what crashed tests left", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			stale, err := lab.RemoveStale()
			for _, s := range stale {
				fmt.Fprintf(c.OutOrStdout(), "removed lab %s, whose test is gone\n", s)
			}
			return errors.Join(err, lab.Remove(*name))
		}}
}

func execute(name *string) *cobra.Command {
	return &cobra.Command{Use: "exec PLACE [-- COMMAND…]",
		Short: "run a command, or a shell, on a node, in a pod's network, or in a host's network",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			l, err := lab.Open(*name)
			if err != nil {
				return err
			}
			command := args[1:]
			if len(command) == 0 {
				command = []string{"bash"}
			}
			argv, err := l.Argv(args[0], command...)
			if err != nil {
				return err
			}
			program, err := exec.LookPath(argv[0])
			if err != nil {
				return err
			}
			return syscall.Exec(program, argv, lab.Environment()) // keeps the terminal
		}}
}

func restart(name *string) *cobra.Command {
	var term bool
	var after time.Duration
	c := &cobra.Command{Use: "restart NODE DAEMON", Short: "kill a daemon of a node and start it again",
		Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			n, err := node(*name, args[0])
			if err != nil {
				return err
			}
			sig := syscall.SIGKILL
			if term {
				sig = syscall.SIGTERM
			}
			if err := n.Kill(c.Context(), args[1], sig); err != nil {
				return err
			}
			select {
			case <-c.Context().Done():
			case <-time.After(after):
			}
			return n.Start(c.Context(), args[1])
		}}
	c.Flags().BoolVar(&term, "term", false, "SIGTERM instead of SIGKILL")
	c.Flags().DurationVar(&after, "after", 0, "how long it stays away")
	return c
}

func node(labName, name string) (*lab.Node, error) {
	l, err := lab.Open(labName)
	if err != nil {
		return nil, err
	}
	n := l.Node(name)
	if n == nil {
		return nil, fmt.Errorf("lab %s has no node %s", labName, name)
	}
	return n, nil
}

func status(name *string) *cobra.Command {
	return &cobra.Command{Use: "status", Short: "list what is in the lab and what runs", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			l, err := lab.Open(*name)
			if err != nil {
				return err
			}
			return l.Print(c.OutOrStdout())
		}}
}

func probes(name *string) *cobra.Command {
	return &cobra.Command{Use: "probe serve|get|stream [flags]",
		Short:              "make and answer traffic in the present network namespace, or --from-place PLACE of the lab",
		DisableFlagParsing: true,
		RunE: func(c *cobra.Command, args []string) error {
			in, place, rest := ownFlags(*name, args)
			if place != "" {
				l, err := lab.Open(in)
				if err != nil {
					return err
				}
				return l.Probe(c.Context(), place, rest, c.OutOrStdout(), c.ErrOrStderr())
			}
			os.Exit(probe.Main(rest))
			return nil
		}}
}

// ownFlags removes --lab and --from-place from the arguments of a probe and returns the others as
// rest.
func ownFlags(name string, args []string) (labName, place string, rest []string) {
	labName = name
	for i := 0; i < len(args); i++ {
		switch {
		case args[i] == "--from-place" && i+1 < len(args):
			place = args[i+1]
			i++
		case args[i] == "--lab" && i+1 < len(args):
			labName = args[i+1]
			i++
		default:
			rest = append(rest, args[i])
		}
	}
	return labName, place, rest
}

// findHairpin returns the absolute path of the binary under test.
func findHairpin(ctx context.Context, given string) (string, error) {
	if given != "" {
		return filepath.Abs(given)
	}
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), "hairpin")
		if _, err := os.Stat(beside); err == nil {
			return beside, nil
		}
	}
	path := filepath.Join(image.DefaultDir, "hairpin")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", path, "hairpin/cmd/hairpin")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build hairpin: %w\n%s", err, out)
	}
	return path, nil
}
