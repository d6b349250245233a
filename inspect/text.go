package inspect

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"hairpin/report"
)

// Limits of the lists in the output text of a cluster that is not healthy.
const (
	maxRows   = 20 // states of components, problems, egress addresses with a reason
	maxEgress = 10 // all egress addresses are listed up to this number
)

// printText writes components that are not healthy and problems, then lines of totals, versions and
// hints. The text of a healthy cluster has the same length for any number of nodes. If wide, it
// writes every component, problem and egress address instead, the counters of eBPF programs, and
// the known faults of Open vSwitch.
func (s *ClusterStatus) printText(w io.Writer, wide bool) error {
	now, egress, problems := time.Now(), s.egress(), maxRows
	listed := egress
	if wide {
		problems = math.MaxInt
		if err := s.printComponents(w, now); err != nil {
			return err
		}
	} else {
		if len(egress) > maxEgress {
			listed = slices.DeleteFunc(slices.Clone(egress), func(e report.Egress) bool { return e.Why == "" })
			listed = listed[:min(len(listed), maxRows)]
		}
		if err := s.printUnhealthy(w, now); err != nil {
			return err
		}
	}
	t := s.totals()
	if err := s.printProblems(w, t.answers, problems); err != nil {
		return err
	}
	if err := printEgress(w, listed); err != nil {
		return err
	}
	lines := s.nodesLines(now)
	if t.answers > 0 {
		lines = append(lines, t.objects())
		if len(egress) > 0 {
			lines = append(lines, countEgress(egress, wide))
		}
		lines = append(lines, s.versionLine(&t))
	}
	if wide {
		lines = append(lines, s.redirected()...)
	}
	for _, l := range append(lines, s.hints(wide)...) {
		if _, err := fmt.Fprintln(w, l); err != nil {
			return err
		}
	}
	return nil
}

// printComponents writes a table with a line per component and node.
func (s *ClusterStatus) printComponents(w io.Writer, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "NODE\tCOMPONENT\tSTATE\tSINCE\tREADS\tAPPLIES\tWRITTEN\tDRIFT REPAIRED\tERRORS\tLAST ERROR\n")
	line := func(r row, p *report.Part) {
		counters := "\t\t\t\t"
		if p != nil {
			counters = fmt.Sprintf("%d\t%d\t%d\t%d\t%d", p.Reads, p.Applies, p.Written, p.Drift, p.Errors)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", r.node, r.component, r.state, ago(now, r.since), counters,
			FirstLine(r.reason))
	}
	for _, n := range s.Nodes {
		for _, r := range n.rows() {
			line(r, n.part(r.component))
		}
	}
	if s.Controller != nil {
		line(s.Controller.row(), nil)
	}
	return t.Flush()
}

// printUnhealthy writes a table of the components that are not healthy. A line stands for all nodes
// with the same component, state and reason; its time is the longest.
func (s *ClusterStatus) printUnhealthy(w io.Writer, now time.Time) error {
	type key struct{ component, state, reason string }
	var g groups[key]
	since := map[key]time.Time{}
	add := func(r row) {
		if r.healthy {
			return
		}
		k := key{r.component, r.state, FirstLine(r.reason)}
		g.add(k, r.node)
		if old, ok := since[k]; !ok || r.since.Before(old) {
			since[k] = r.since
		}
	}
	for _, n := range s.Nodes {
		for _, r := range n.rows() {
			add(r)
		}
	}
	if s.Controller != nil {
		add(s.Controller.row())
	}
	if len(g.keys) == 0 {
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "NODE\tCOMPONENT\tSTATE\tSINCE\tREASON\n")
	for i, k := range g.keys {
		if i == maxRows {
			fmt.Fprintf(t, "and %d more: see status -o wide\n", len(g.keys)-maxRows)
			break
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", firstAndCount(g.names[k]), k.component, k.state, ago(now, since[k]),
			k.reason)
	}
	return t.Flush()
}

// printProblems writes each problem with the nodes that have it, but at most limit of them.
func (s *ClusterStatus) printProblems(w io.Writer, answers, limit int) (err error) {
	var g groups[string]
	for _, n := range s.Nodes {
		if n.Report == nil {
			continue
		}
		for _, p := range n.Report.Problems {
			g.add(p, n.Node)
		}
	}
	for i, p := range g.keys {
		if i == limit {
			_, err = fmt.Fprintf(w, "and %d more problems: see status -o wide\n", len(g.keys)-limit)
			break
		}
		where := ""
		if s.Controller != nil && len(g.names[p]) < answers {
			where = fmt.Sprintf(" (on %s)", firstAndCount(g.names[p]))
		}
		_, err = fmt.Fprintf(w, "problem: %s%s\n", p, where)
	}
	return err
}

// nodesLines counts the nodes by state, and names the controller that leads.
func (s *ClusterStatus) nodesLines(now time.Time) []string {
	if s.Controller == nil { // one node
		n := s.Nodes[0]
		return []string{fmt.Sprintf("%s: %s, %d components", n.Node, n.State(), len(n.Report.Parts))}
	}
	var states groups[string]
	for _, n := range s.Nodes {
		states.add(n.State(), n.Node)
	}
	slices.SortStableFunc(states.keys, func(a, b string) int { return len(states.names[b]) - len(states.names[a]) })
	var counts []string
	for _, state := range states.keys {
		counts = append(counts, fmt.Sprintf("%d %s", len(states.names[state]), state))
	}
	lines := []string{fmt.Sprintf("%s: %s", report.Counted(len(s.Nodes), "node"), strings.Join(counts, ", "))}
	if s.Controller.Error == "" {
		lines = append(lines, fmt.Sprintf("controller: %s leads since %s", s.Controller.Holder,
			ago(now, s.Controller.Since)))
	}
	return lines
}

// totals are sums over the nodes that answer.
type totals struct {
	answers                                         int // number of these nodes
	pods, services, policies, clusterwide, isolated int
	restarts                                        uint64
	versions                                        []string
}

func (s *ClusterStatus) totals() (t totals) {
	for _, n := range s.Nodes {
		r := n.Report
		if r == nil {
			continue
		}
		t.answers++
		t.pods, t.services, t.restarts = t.pods+r.Pods, max(t.services, r.Services), t.restarts+r.Restarts
		t.policies = max(t.policies, r.NetworkPolicies)
		t.clusterwide = max(t.clusterwide, r.ClusterNetworkPolicies)
		t.isolated += r.IsolatedPods
		if !slices.Contains(t.versions, r.Version) {
			t.versions = append(t.versions, r.Version)
		}
	}
	return t
}

// objects lists how many objects Hairpin serves.
func (t *totals) objects() string {
	text := fmt.Sprintf("%d pods, %d service frontends", t.pods, t.services)
	if t.policies > 0 {
		text += fmt.Sprintf(", %d NetworkPolicies", t.policies)
	}
	if t.clusterwide > 0 {
		text += fmt.Sprintf(", %d ClusterNetworkPolicies", t.clusterwide)
	}
	if t.policies+t.clusterwide > 0 {
		text += fmt.Sprintf(", isolated pods: %d", t.isolated)
	}
	return text
}

func countEgress(list []report.Egress, wide bool) string {
	assigned, open := 0, 0
	for _, e := range list {
		if e.Node != "" {
			assigned++
		}
		if e.Why != "" {
			open++
		}
	}
	text := fmt.Sprintf("egress addresses: %d, %d on a node", len(list), assigned)
	if open > 0 {
		text += fmt.Sprintf(", %d with a reason", open)
		if !wide {
			text += " in status -o wide"
		}
	}
	return text
}

// versionLine lists the versions and engines that are in use.
func (s *ClusterStatus) versionLine(t *totals) string {
	var switches groups[string]
	var ovn []string
	for _, n := range s.Nodes {
		if n.Report == nil {
			continue
		}
		if n.Report.Switch != nil {
			switches.add(describeSwitch(n.Report.Switch), n.Node)
		}
		if !n.Report.OpenFlow() {
			ovn = append(ovn, n.Node)
		}
	}
	text := strings.Join(append([]string{"hairpin " + strings.Join(t.versions, " ")}, switches.keys...), "; ")
	if t.restarts > 0 {
		text += fmt.Sprintf(", restarts repaired: %d", t.restarts)
	}
	if len(ovn) > 0 {
		text += fmt.Sprintf("; %s: load balancers of OVN serve Services (service-engine = ovn)", firstAndCount(ovn))
	}
	return text
}

// redirected returns the counters of the nodes with eBPF programs.
func (s *ClusterStatus) redirected() (lines []string) {
	for _, n := range s.Nodes {
		if n.Report != nil && n.Report.Redirect != nil {
			r := n.Report.Redirect
			lines = append(lines, fmt.Sprintf("%s: packets of clients outside redirected: %d requests, %d replies; left "+
				"to the host: %d fragments, %d replies without a route", n.Node, r.Requests, r.Replies, r.Fragments,
				r.NoRoute))
		}
	}
	return lines
}

// hints returns one line for each thing that an administrator can improve, and if wide the known
// faults themselves.
func (s *ClusterStatus) hints(wide bool) (lines []string) {
	var slow []string // nodes with a userspace datapath that does not use TSO
	var faulty groups[string]
	for _, n := range s.Nodes {
		if n.Report == nil || n.Report.Switch == nil {
			continue
		}
		x := n.Report.Switch
		if x.Userspace && !x.TSO {
			slow = append(slow, n.Node)
		}
		if len(x.Faults) > 0 {
			text := fmt.Sprintf("%s has known faults (%d): docs/reference/compatibility.md", describeSwitch(x),
				len(x.Faults))
			if wide {
				text += "\n  " + strings.Join(x.Faults, "\n  ")
			}
			faulty.add(text, n.Node)
		}
	}
	if len(slow) > 0 {
		lines = append(lines, fmt.Sprintf("hint: %s: TSO is off, so streams are slow; it needs userspaceTSO=true and "+
			"Open vSwitch newer than 3.5.0", firstAndCount(slow)))
	}
	for _, text := range faulty.keys {
		lines = append(lines, fmt.Sprintf("hint: %s: %s", firstAndCount(faulty.names[text]), text))
	}
	return lines
}

func describeSwitch(x *report.Switch) string {
	return fmt.Sprintf("Open vSwitch %s (%s datapath)", x.Version,
		map[bool]string{true: "userspace", false: "kernel"}[x.Userspace])
}
