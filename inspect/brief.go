package inspect

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"hairpin/report"
)

// Limits of the lists in the output of status that are not those of a healthy cluster.
const (
	maxRows   = 20 // states of components, problems, egress addresses with a reason
	maxEgress = 10 // all egress addresses are listed up to this number
)

// printBrief writes what is not healthy, then one line for each kind of total. Its length does not
// depend on the number of healthy nodes.
func (s *ClusterStatus) printBrief(w io.Writer) error {
	t := s.totals()
	if err := s.printUnhealthy(w, time.Now()); err != nil {
		return err
	}
	if err := s.printProblems(w, t.answers, maxRows); err != nil {
		return err
	}
	egress := s.egress()
	listed := egress
	if len(egress) > maxEgress {
		listed = slices.DeleteFunc(slices.Clone(egress), func(e report.Egress) bool { return e.Why == "" })
		listed = listed[:min(len(listed), maxRows)]
	}
	if err := printEgress(w, listed); err != nil {
		return err
	}
	lines := s.nodesLines(time.Now())
	if t.answers > 0 {
		lines = append(lines, t.objects())
		if len(egress) > 0 {
			lines = append(lines, countEgress(egress))
		}
		lines = append(lines, s.versionLine(&t))
	}
	for _, l := range append(lines, s.hints()...) {
		if _, err := fmt.Fprintln(w, l); err != nil {
			return err
		}
	}
	return nil
}

// printUnhealthy writes a table of the components that are not healthy. A line stands for all nodes
// with the same component, state and reason; its time is the longest.
func (s *ClusterStatus) printUnhealthy(w io.Writer, now time.Time) error {
	var g groups
	since := map[string]time.Time{}
	add := func(r row) {
		key := strings.Join([]string{r.part, r.state, FirstLine(r.err)}, "\t")
		g.add(key, r.node)
		if old, ok := since[key]; !ok || r.since.Before(old) {
			since[key] = r.since
		}
	}
	for _, n := range s.Nodes {
		for _, r := range n.rows() {
			if r.bad {
				add(r)
			}
		}
	}
	if l := s.Controller; l != nil && l.Error != "" {
		add(l.row())
	}
	if len(g.texts) == 0 {
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "NODE\tCOMPONENT\tSTATE\tSINCE\tREASON\n")
	for i, key := range g.texts {
		if i == maxRows {
			fmt.Fprintf(t, "and %d more: see status -o wide\n", len(g.texts)-maxRows)
			break
		}
		f := strings.SplitN(key, "\t", 3)
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", firstAndCount(g.nodes[key]), f[0], f[1], ago(now, since[key]), f[2])
	}
	return t.Flush()
}

// nodesLines counts the nodes by state, and names the controller that leads.
func (s *ClusterStatus) nodesLines(now time.Time) []string {
	var states groups
	for _, n := range s.Nodes {
		states.add(n.State(), n.Node)
	}
	slices.SortStableFunc(states.texts, func(a, b string) int { return len(states.nodes[b]) - len(states.nodes[a]) })
	var counts []string
	for _, text := range states.texts {
		counts = append(counts, fmt.Sprintf("%d %s", len(states.nodes[text]), text))
	}
	if s.Controller == nil { // one node
		return []string{fmt.Sprintf("%s: %s, %d components", s.Nodes[0].Node, s.Nodes[0].State(),
			len(s.Nodes[0].Report.Parts))}
	}
	lines := []string{fmt.Sprintf("%s: %s", report.Counted(len(s.Nodes), "node"), strings.Join(counts, ", "))}
	if s.Controller.Error == "" {
		lines = append(lines, fmt.Sprintf("controller: %s leads since %s", s.Controller.Holder,
			ago(now, s.Controller.Since)))
	}
	return lines
}

// State summarizes a node: the first of its rows that is not healthy.
func (n *NodeStatus) State() string {
	for _, r := range n.rows() {
		switch {
		case !r.bad:
		case r.part == "api":
			return "without the API"
		case r.state == "closed":
			return "with an address closed"
		default:
			return r.state
		}
	}
	return "ready"
}

// Unhealthy lists the components of a node that are not healthy, with their states and reasons.
func (n *NodeStatus) Unhealthy() (list []string) {
	for _, r := range n.rows() {
		if r.bad {
			text := r.part + ": " + r.state
			if r.err != "" {
				text += ": " + FirstLine(r.err)
			}
			list = append(list, text)
		}
	}
	return list
}

func countEgress(list []report.Egress) string {
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
		text += fmt.Sprintf(", %d with a reason in status -o wide", open)
	}
	return text
}

// versionLine lists the versions and engines that are in use.
func (s *ClusterStatus) versionLine(t *totals) string {
	var switches, engines groups
	for _, n := range s.Nodes {
		if n.Report == nil {
			continue
		}
		if n.Report.Switch != nil {
			switches.add(describeSwitch(n.Report.Switch), n.Node)
		}
		if !n.Report.OpenFlow() {
			engines.add("ovn", n.Node)
		}
	}
	text := strings.Join(append([]string{"hairpin " + strings.Join(t.versions, " ")}, switches.texts...), "; ")
	if t.restarts > 0 {
		text += fmt.Sprintf(", restarts repaired: %d", t.restarts)
	}
	if nodes := engines.nodes["ovn"]; len(nodes) > 0 {
		text += fmt.Sprintf("; %s: load balancers of OVN serve Services (service-engine = ovn)", firstAndCount(nodes))
	}
	return text
}

// hints returns one line for each thing that an administrator can improve.
func (s *ClusterStatus) hints() (lines []string) {
	if slow := s.slow(); len(slow) > 0 {
		lines = append(lines, fmt.Sprintf("hint: %s: TSO is off, so streams are slow; it needs userspaceTSO=true and "+
			"Open vSwitch newer than 3.5.0", firstAndCount(slow)))
	}
	var g groups
	for _, n := range s.Nodes {
		if n.Report != nil && n.Report.Switch != nil && len(n.Report.Switch.Faults) > 0 {
			x := n.Report.Switch
			g.add(fmt.Sprintf("%s has known faults (%d): docs/reference/compatibility.md", describeSwitch(x),
				len(x.Faults)),
				n.Report.Node)
		}
	}
	for _, text := range g.texts {
		lines = append(lines, fmt.Sprintf("hint: %s: %s", firstAndCount(g.nodes[text]), text))
	}
	return lines
}
