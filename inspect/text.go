package inspect

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"hairpin/report"
)

// print writes the table, and below it the data that is not in a column.
func (s *ClusterStatus) print(w io.Writer) error {
	now := time.Now()
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "NODE\tPART\tSTATE\tSINCE\tREADS\tAPPLIES\tWRITTEN\tDRIFT REPAIRED\tERRORS\tLAST ERROR\n")
	for _, n := range s.Nodes {
		if n.Report == nil {
			line(t, n.Node, "agent", "no answer", "", n.Error)
			continue
		}
		printReport(t, n.Report, now)
	}
	if s.Controller != nil {
		s.Controller.print(t, now)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if err := s.printEgress(w); err != nil {
		return err
	}
	return s.printRest(w)
}

// line writes a row without counters.
func line(w io.Writer, node, part, state, since, err string) {
	fmt.Fprintf(w, "%s\t%s\t%s\t%s\t\t\t\t\t\t%s\n", node, part, state, since, FirstLine(err))
}

// ago returns the time since t, rounded to a second.
func ago(now, t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return max(0, now.Sub(t)).Round(time.Second).String()
}

func printReport(w io.Writer, r *report.Report, now time.Time) {
	state, why := "ready", r.Reason
	switch {
	case !r.Ready:
		state = "not ready"
	case r.Neglected != "":
		state, why = "neglected", r.Neglected
	case r.Leaving:
		state, why = "leaving", "the Node is being deleted, or about to be"
	}
	line(w, r.Node, "agent", state, "", why)
	if r.API != nil && r.API.Away {
		line(w, r.Node, "api", "away", ago(now, r.API.Since), r.API.Error)
	}
	for _, d := range r.Doors {
		if d.Error != "" {
			line(w, r.Node, d.For, "closed", "", d.Address+": "+d.Error)
		}
	}
	for _, p := range r.Parts {
		state := "in sync"
		if !p.InSync {
			state = "not in sync"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\n", r.Node, p.System, state, ago(now, p.Since),
			p.Reads, p.Applies, p.Written, p.Drift, p.Errors, FirstLine(p.Error))
	}
}

func (l *LeaderStatus) print(w io.Writer, now time.Time) {
	state := "leading"
	if l.Error != "" {
		state = "no leader"
	}
	name := l.Holder
	if name == "" {
		name = "-"
	}
	line(w, name, "controller", state, ago(now, l.Since), l.Error)
}

// printRest writes a line of totals, and each problem with the nodes that have it.
func (s *ClusterStatus) printRest(w io.Writer) error {
	pods, services, policies, clusterwide, isolated, answers := 0, 0, 0, 0, 0, 0
	var restarts uint64
	var versions, problems []string
	who := map[string][]string{}
	for _, n := range s.Nodes {
		r := n.Report
		if r == nil {
			continue
		}
		answers++
		pods, services, restarts = pods+r.Pods, max(services, r.Services), restarts+r.Restarts
		policies, clusterwide = max(policies, r.NetworkPolicies), max(clusterwide, r.ClusterNetworkPolicies)
		isolated += r.IsolatedPods
		if !slices.Contains(versions, r.Version) {
			versions = append(versions, r.Version)
		}
		for _, p := range r.Problems {
			if len(who[p]) == 0 {
				problems = append(problems, p)
			}
			who[p] = append(who[p], r.Node)
		}
	}
	if s.Controller != nil {
		fmt.Fprintf(w, "%d of %d nodes answer", answers, len(s.Nodes))
		if answers > 0 {
			fmt.Fprint(w, ", ")
		}
	}
	if answers > 0 {
		fmt.Fprintf(w, "%d pods, %d service frontends, ", pods, services)
		if policies > 0 {
			fmt.Fprintf(w, "%d NetworkPolicies, ", policies)
		}
		if clusterwide > 0 {
			fmt.Fprintf(w, "%d ClusterNetworkPolicies, ", clusterwide)
		}
		if policies+clusterwide > 0 {
			fmt.Fprintf(w, "isolated pods: %d, ", isolated)
		}
		fmt.Fprintf(w, "Open vSwitch restarts repaired: %d, hairpin", restarts)
		for _, v := range versions {
			fmt.Fprintf(w, " %s", v)
		}
	}
	_, err := fmt.Fprintln(w)
	for _, n := range s.Nodes {
		if r := n.Report; r != nil && r.Redirect != nil {
			_, err = fmt.Fprintf(w,
				"%s: packets of clients outside redirected: %d requests, %d replies; left to the host: %d "+
					"fragments, %d replies without a route\n",
				r.Node, r.Redirect.Requests, r.Redirect.Replies, r.Redirect.Fragments, r.Redirect.NoRoute)
		}
	}
	if err := errors.Join(err, s.printEngines(w), s.printSwitches(w)); err != nil {
		return err
	}
	for _, p := range problems {
		where := ""
		if n := len(who[p]); s.Controller != nil && n < answers {
			where = fmt.Sprintf(" (on %s)", some(who[p]))
		}
		_, err = fmt.Fprintf(w, "problem: %s%s\n", p, where)
	}
	return err
}

// printEngines lists the nodes where OVN serves Services, which is not the default.
func (s *ClusterStatus) printEngines(w io.Writer) error {
	var who []string
	for _, n := range s.Nodes {
		if n.Report != nil && !n.Report.OpenFlow() {
			who = append(who, n.Report.Node)
		}
	}
	if len(who) == 0 {
		return nil
	}
	_, err := fmt.Fprintf(w, "%s: load balancers of OVN serve Services (service-engine = ovn)\n", some(who))
	return err
}

// printSwitches lists the nodes whose userspace datapath does not use TSO, and warns of Open
// vSwitch versions with known bugs.
func (s *ClusterStatus) printSwitches(w io.Writer) error {
	var slow []string
	for _, n := range s.Nodes {
		if n.Report != nil && n.Report.Switch != nil && n.Report.Switch.Userspace && !n.Report.Switch.TSO {
			slow = append(slow, n.Report.Node)
		}
	}
	if len(slow) > 0 {
		if _, err := fmt.Fprintf(w,
			"%s: TSO is off, so streams are slow: the chart's userspaceTSO, or Open vSwitch 3.5.0 "+
				"(docs/reference/performance.md)\n", some(slow)); err != nil {
			return err
		}
	}
	var order []string // texts
	who := map[string][]string{}
	for _, n := range s.Nodes {
		if n.Report == nil || n.Report.Switch == nil || len(n.Report.Switch.Faults) == 0 {
			continue
		}
		x := n.Report.Switch
		text := fmt.Sprintf("Open vSwitch %s (%s datapath) has known faults (docs/reference/compatibility.md):\n  %s\n",
			x.Version,
			map[bool]string{true: "userspace", false: "kernel"}[x.Userspace], strings.Join(x.Faults, "\n  "))
		if len(who[text]) == 0 {
			order = append(order, text)
		}
		who[text] = append(who[text], n.Report.Node)
	}
	for _, text := range order {
		if _, err := fmt.Fprintf(w, "warning: %s: %s", some(who[text]), text); err != nil {
			return err
		}
	}
	return nil
}

// some returns the first of nodes and the number of the others.
func some(nodes []string) string {
	if n := len(nodes) - 1; n > 0 {
		return fmt.Sprintf("%s and %d more", nodes[0], n)
	}
	return nodes[0]
}

func FirstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}
