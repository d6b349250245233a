package inspect

import (
	"cmp"
	"fmt"
	"io"
	"text/tabwriter"
)

// printEgress writes a table of the egress addresses, if there are any. It uses the report of the
// first agent that answers.
func (s *ClusterStatus) printEgress(w io.Writer) error {
	for _, n := range s.Nodes {
		if n.Report == nil || len(n.Report.Egress) == 0 {
			continue
		}
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintf(t, "EGRESSIP\tADDRESS\tNODE\tWHY\n")
		for _, r := range n.Report.Egress {
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", r.EgressIP, r.Address, cmp.Or(r.Node, "-"), r.Why)
		}
		return t.Flush()
	}
	return nil
}
