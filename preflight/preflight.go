// Package preflight checks a machine before the installation of Hairpin: remains of other networks,
// what Hairpin would change, and what prevents it from working. It only reads, except with
// Options.Fix, which fixes what is safe to fix.
package preflight

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"hairpin/config"
	"hairpin/report"
)

// Severity is the meaning of a finding for an installation.
type Severity string

const (
	Stops   Severity = "stops"   // Services or pods will not work until it is fixed
	Warning Severity = "warning" // they may not work, or not after a boot
	Info    Severity = "info"    // what Hairpin will do about it
)

// Finding is a fact about the machine that affects Hairpin.
type Finding struct {
	Severity Severity `json:"severity"`
	Object   string   `json:"object"`          // what it is, as in "link flannel.1"
	Message  string   `json:"message"`         // what it means
	Remedy   string   `json:"remedy,omitzero"` // what an administrator can do
	// Fix has commands equivalent to --fix; none = --fix does nothing about it.
	Fix []string `json:"fix,omitzero"`

	// fix does what Fix says, and returns the commands equivalent to what it has done.
	fix      func(context.Context) (did []string, err error)
	fixOrder int // fixes of a lower one come first
}

func finding(s Severity, object, message, remedy string) Finding {
	return Finding{Severity: s, Object: object, Message: message, Remedy: remedy}
}

// check examines one part of the machine. An error means that the result is unknown.
type check struct {
	name string
	run  func(context.Context, *machine) ([]Finding, error)
}

// findings runs all checks. A failed check is a finding, too, because its result is unknown. The
// list is not nil: it is [] in JSON.
func (m *machine) findings(ctx context.Context) []Finding {
	list := []Finding{}
	for _, k := range []check{
		{"nftables", nftables}, {"Open vSwitch's kernel module", datapath}, {"links", links},
		{"CNI configurations", cniConfigs},
		{"nftables of other programs", tables}, {"Open vSwitch", bridges}, {"NetworkManager", profiles},
		{"MicroShift", microshift},
		{"address ranges", ranges}, {"MTU", mtu}, {"ports", ports}, {"advertise-address", advertised},
	} {
		found, err := k.run(ctx, m)
		if err != nil {
			found = append(found, Finding{Severity: Warning, Object: k.name, Message: "could not be checked: " +
				err.Error()})
		}
		list = append(list, found...)
	}
	slices.SortFunc(list, Compare)
	return list
}

// Compare orders findings: those that stop an installation first.
func Compare(a, b Finding) int {
	rank := map[Severity]int{Stops: 0, Warning: 1, Info: 2}
	return cmp.Or(cmp.Compare(rank[a.Severity], rank[b.Severity]), strings.Compare(a.Object, b.Object),
		strings.Compare(a.Message, b.Message))
}

// Options select the output and the actions of Run.
type Options struct {
	Output string    // one of Outputs
	Fix    bool      // fix what is safe to fix, and check again
	Root   string    // the root of the machine's files: "/", or a container's mount of it
	Log    io.Writer // for the commands of fixes, if the output is JSON or YAML
}

// Outputs returns the output formats of Run.
func Outputs() []string { return []string{"text", "json", "yaml"} }

// Run checks the machine, and prints the findings. It returns report.ErrProblems if
// a finding stops an installation.
func Run(ctx context.Context, w io.Writer, c config.Config, o Options) error {
	m := &machine{c, o.Root}
	if o.Fix && m.root != "/" {
		return errors.New("--fix changes this machine's own files: run it on the machine, without --root")
	}
	list := m.findings(ctx)
	var err error
	if o.Fix {
		if !report.ForPrograms(o.Output) {
			o.Log = w
		}
		err = applyFixes(ctx, o.Log, c, list)
		list = m.findings(ctx)
	}
	done, printErr := report.PrintAs(w, o.Output, list)
	if !done {
		printErr = write(w, list)
	}
	if err = errors.Join(err, printErr); err != nil {
		return fmt.Errorf("preflight: %w", err)
	}
	if len(list) > 0 && list[0].Severity == Stops {
		return report.ErrProblems
	}
	return nil
}

func write(w io.Writer, list []Finding) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "no problems found, and nothing of another network")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range list {
		f.Print(t, "", "")
	}
	return t.Flush()
}

// Print writes the rows of a finding to a tabwriter. The first row starts with lead, the others
// with indent, which has the same number of cells.
func (f Finding) Print(t io.Writer, lead, indent string) {
	fmt.Fprintf(t, "%s%s\t%s\t%s\n", lead, report.Plain(string(f.Severity), ""), report.Plain(f.Object, ""),
		report.Plain(f.Message, ""))
	if f.Remedy != "" {
		fmt.Fprintf(t, "%s\t\t→ %s\n", indent, report.Plain(f.Remedy, ""))
	}
	for i, command := range f.Fix {
		word := "      "
		if i == 0 {
			word = "--fix:"
		}
		fmt.Fprintf(t, "%s\t\t  %s %s\n", indent, word, report.Plain(command, ""))
	}
}
