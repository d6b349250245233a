package lab

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
)

// Environment is the environment of commands in a lab.
func Environment() []string { return nodeEnv() }

// Argv returns the command line that runs a command in a place of the lab, by its name: a node, a
// pod, a host.
func (l *Lab) Argv(place string, args ...string) ([]string, error) {
	if n := l.Node(place); n != nil {
		return n.Argv(args...), nil
	}
	p, err := l.place(place)
	if err != nil {
		return nil, err
	}
	return p.(interface{ Argv(...string) []string }).Argv(args...), nil
}

// place returns a place where traffic can start: a pod, a host, the host of a node.
func (l *Lab) place(name string) (Place, error) {
	var names []string
	for _, h := range l.Hosts() {
		if h.name == name {
			return h, nil
		}
		names = append(names, h.name)
	}
	for _, n := range l.Nodes() {
		for _, p := range n.Pods() {
			if p.Name() == name {
				return p, nil
			}
			names = append(names, p.Name())
		}
	}
	return nil, fmt.Errorf("lab %s has no %q; it has %s", l.Name(), name, strings.Join(names, ", "))
}

// Probe runs a probe command in a place; see probe.Main.
func (l *Lab) Probe(ctx context.Context, from string, args []string, stdout, stderr io.Writer) error {
	p, err := l.place(from)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := p.onMachine(ctx, append([]string{self, probeName}, args...)...)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	return cmd.Run()
}

// Print writes a line for each host, daemon and pod of the lab.
func (l *Lab) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	for _, h := range l.Hosts() {
		state := "runs"
		if !h.Running() {
			state = "is gone"
		}
		fmt.Fprintf(t, "%s\t%s\tprocess %d\t%s\n", h.name, state, h.holder.PID, prefixList(h))
		n := l.Node(h.name)
		if n == nil {
			continue
		}
		for _, name := range n.DaemonNames() {
			if pid := n.Pid(name); pid != 0 {
				fmt.Fprintf(t, "  %s\truns\tprocess %d of the node\tlog %s\n", name, pid, n.LogFile(name))
			} else {
				fmt.Fprintf(t, "  %s\tis down\t\tlog %s\n", name, n.LogFile(name))
			}
		}
		for _, p := range n.Pods() {
			fmt.Fprintf(t, "  pod %s/%s\t\t%s\t%s\n", p.Namespace(), p.Name(), p.netnsName(), fmt.Sprint(p.IPs()))
		}
	}
	return t.Flush()
}

func prefixList(h *Host) string {
	var words []string
	for _, a := range h.addresses {
		words = append(words, a.String())
	}
	return strings.Join(words, " ")
}
