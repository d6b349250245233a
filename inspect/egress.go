package inspect

import (
	"cmp"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"hairpin/report"
)

// egress returns the egress addresses from the report of the first agent that answers with some.
func (s *ClusterStatus) egress() []report.Egress {
	for _, n := range s.Nodes {
		if n.Report != nil && len(n.Report.Egress) > 0 {
			return n.Report.Egress
		}
	}
	return nil
}

// printEgress writes a table of egress addresses, if there are any.
func printEgress(w io.Writer, list []report.Egress) error {
	if len(list) == 0 {
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "EGRESSIP\tADDRESS\tNODE\tSINCE\tNEXT\tBGP\tWHY\n")
	for _, r := range list {
		since := "-"
		if !r.Since.IsZero() {
			since = duration.HumanDuration(time.Since(r.Since))
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.EgressIP, r.Address, cmp.Or(r.Node, "-"), since,
			cmp.Or(r.Next, "-"), cmp.Or(r.BGP, "-"), r.Why)
	}
	return t.Flush()
}
