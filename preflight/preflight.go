// Package preflight looks at a machine before Hairpin comes to it: what another network left there, what Hairpin would change, and what stands in
// its way. It reads only, unless it is told to mend what it safely can.
package preflight

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"hairpin/config"
	"hairpin/report"
)

// Severity says what a finding means for an installation.
type Severity string

const (
	Stops   Severity = "stops"   // Services or pods will not work until it is mended
	Warning Severity = "warning" // they may not work, or not after a boot
	Info    Severity = "info"    // what Hairpin will do about it
)

// Finding is one thing on the machine that matters.
type Finding struct {
	Severity Severity `json:"severity"`
	Object   string   `json:"object"`        // what it is, as in "link flannel.1"
	Message  string   `json:"message"`       // what it means
	Mend     string   `json:"mend,omitzero"` // what an administrator can do
	// Fix are the commands that do what --fix does; none = it does nothing about it.
	Fix []string `json:"fix,omitzero"`

	fix func(context.Context) (did []string, err error)
}

func found(s Severity, object, message, mend string) Finding {
	return Finding{Severity: s, Object: object, Message: message, Mend: mend}
}

// check looks at one side of the machine. An error says that it could not.
type check struct {
	name string
	look func(context.Context, *config.Config) ([]Finding, error)
}

// Look runs all checks. One that fails is a finding, too: nobody knows what it would have found.
func Look(ctx context.Context, c config.Config) []Finding {
	var list []Finding
	for _, k := range []check{
		{"nftables", nftables}, {"Open vSwitch's kernel module", datapath}, {"links", links}, {"CNI configurations", cniConfigs},
		{"nftables of others", tables}, {"Open vSwitch", bridges}, {"NetworkManager", profiles}, {"MicroShift", microshift},
		{"address ranges", ranges}, {"MTU", mtu}, {"ports", ports}, {"advertise-address", advertised},
	} {
		found, err := k.look(ctx, &c)
		if err != nil {
			found = append(found, Finding{Severity: Warning, Object: k.name, Message: "could not be looked at: " + err.Error()})
		}
		list = append(list, found...)
	}
	rank := map[Severity]int{Stops: 0, Warning: 1, Info: 2}
	slices.SortFunc(list, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(rank[a.Severity], rank[b.Severity]), strings.Compare(a.Object, b.Object), strings.Compare(a.Message, b.Message))
	})
	return list
}

// Options say how to look, and what to do then.
type Options struct {
	JSON bool
	Fix  bool      // mend what can be mended safely, and look again
	Log  io.Writer // of what is mended, when the output is JSON
}

// Run looks, and prints what it found: text, or JSON. Its error is report.ErrNotWell if something stops an installation.
func Run(ctx context.Context, w io.Writer, c config.Config, o Options) error {
	list := Look(ctx, c)
	var err error
	if o.Fix {
		if !o.JSON {
			o.Log = w
		}
		err = mend(ctx, o.Log, c, list)
		list = Look(ctx, c)
	}
	if o.JSON {
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		err = errors.Join(err, encoder.Encode(append([]Finding{}, list...)))
	} else {
		err = errors.Join(err, write(w, list))
	}
	if err != nil {
		return fmt.Errorf("preflight: %w", err)
	}
	if len(list) > 0 && list[0].Severity == Stops {
		return report.ErrNotWell
	}
	return nil
}

func write(w io.Writer, list []Finding) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(w, "nothing stands in the way, and nothing of another network was found")
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range list {
		fmt.Fprintf(t, "%s\t%s\t%s\n", f.Severity, report.Plain(f.Object, ""), report.Plain(f.Message, ""))
		if f.Mend != "" {
			fmt.Fprintf(t, "\t\t→ %s\n", report.Plain(f.Mend, ""))
		}
		for i, command := range f.Fix {
			lead := "      "
			if i == 0 {
				lead = "--fix:"
			}
			fmt.Fprintf(t, "\t\t  %s %s\n", lead, report.Plain(command, ""))
		}
	}
	return t.Flush()
}
