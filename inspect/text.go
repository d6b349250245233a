package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"hairpin/report"
)

// printWide writes a table with a line per component and node, and below it the data that is not in
// a column.
func (s *ClusterStatus) printWide(w io.Writer) error {
	now := time.Now()
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "NODE\tPART\tSTATE\tSINCE\tREADS\tAPPLIES\tWRITTEN\tDRIFT REPAIRED\tERRORS\tLAST ERROR\n")
	for _, n := range s.Nodes {
		for _, r := range n.rows() {
			p := n.part(r.part)
			if p == nil {
				line(t, r.node, r.part, r.state, ago(now, r.since), r.err)
				continue
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\n", r.node, r.part, r.state, ago(now, r.since),
				p.Reads, p.Applies, p.Written, p.Drift, p.Errors, FirstLine(r.err))
		}
	}
	if s.Controller != nil {
		r := s.Controller.row()
		line(t, r.node, r.part, r.state, ago(now, r.since), r.err)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if err := printEgress(w, s.egress()); err != nil {
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

// row is the state of a component of a node. A node that does not answer has the component agent.
type row struct {
	node, part, state string
	since             time.Time
	err               string
	bad               bool
}

// rows returns the states of a node: its agent, what the agent cannot reach, and its components.
func (n *NodeStatus) rows() []row {
	r := n.Report
	if r == nil {
		return []row{{node: n.Node, part: "agent", state: "no answer", err: n.Error, bad: true}}
	}
	agent := row{node: r.Node, part: "agent", state: "ready", err: r.Reason, bad: true}
	switch {
	case !r.Ready:
		agent.state = "not ready"
	case r.Degraded != "":
		agent.state, agent.err = "neglected", r.Degraded
	case r.Leaving:
		agent.state, agent.err = "leaving", "the Node is being deleted, or about to be"
	default:
		agent.bad = false
	}
	list := []row{agent}
	if r.API != nil && r.API.Unreachable {
		list = append(list, row{r.Node, "api", "away", r.API.Since, r.API.Error, true})
	}
	for _, d := range r.Listeners {
		if d.Error != "" {
			list = append(list, row{node: r.Node, part: d.For, state: "closed", err: d.Address + ": " + d.Error,
				bad: true})
		}
	}
	for _, p := range r.Parts {
		if p.InSync {
			list = append(list, row{r.Node, p.System, "in sync", p.Since, p.Error, false})
		} else {
			list = append(list, row{r.Node, p.System, "not in sync", p.Since, p.Error, true})
		}
	}
	return list
}

// part returns a component with its counters, or nil.
func (n *NodeStatus) part(system string) *report.Part {
	if n.Report != nil {
		for i := range n.Report.Parts {
			if n.Report.Parts[i].System == system {
				return &n.Report.Parts[i]
			}
		}
	}
	return nil
}

func (l *LeaderStatus) row() row {
	r := row{cmp.Or(l.Holder, "-"), "controller", "leading", l.Since, l.Error, l.Error != ""}
	if r.bad {
		r.state = "no leader"
	}
	return r
}

// totals are sums over the nodes that answer.
type totals struct {
	answers                                         int
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

// printRest writes a line of totals, and each problem with the nodes that have it.
func (s *ClusterStatus) printRest(w io.Writer) error {
	t := s.totals()
	if s.Controller != nil {
		fmt.Fprintf(w, "%d of %d nodes answer", t.answers, len(s.Nodes))
		if t.answers > 0 {
			fmt.Fprint(w, ", ")
		}
	}
	if t.answers > 0 {
		fmt.Fprintf(w, "%s, Open vSwitch restarts repaired: %d, hairpin %s", t.objects(), t.restarts,
			strings.Join(t.versions, " "))
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
	return s.printProblems(w, t.answers, math.MaxInt)
}

// groups has texts in order, each with the nodes that have it.
type groups struct {
	texts []string
	nodes map[string][]string
}

func (g *groups) add(text, node string) {
	if g.nodes == nil {
		g.nodes = map[string][]string{}
	}
	if len(g.nodes[text]) == 0 {
		g.texts = append(g.texts, text)
	}
	g.nodes[text] = append(g.nodes[text], node)
}

// printProblems writes each problem with the nodes that have it, but at most limit of them.
func (s *ClusterStatus) printProblems(w io.Writer, answers, limit int) (err error) {
	var g groups
	for _, n := range s.Nodes {
		if n.Report == nil {
			continue
		}
		for _, p := range n.Report.Problems {
			g.add(p, n.Report.Node)
		}
	}
	for i, p := range g.texts {
		if i == limit {
			_, err = fmt.Fprintf(w, "and %d more problems: see status -o wide\n", len(g.texts)-limit)
			break
		}
		where := ""
		if n := len(g.nodes[p]); s.Controller != nil && n < answers {
			where = fmt.Sprintf(" (on %s)", firstAndCount(g.nodes[p]))
		}
		_, err = fmt.Fprintf(w, "problem: %s%s\n", p, where)
	}
	return err
}

// printEngines lists the nodes where OVN serves Services, which is not the default.
func (s *ClusterStatus) printEngines(w io.Writer) error {
	var nodes []string
	for _, n := range s.Nodes {
		if n.Report != nil && !n.Report.OpenFlow() {
			nodes = append(nodes, n.Report.Node)
		}
	}
	if len(nodes) == 0 {
		return nil
	}
	_, err := fmt.Fprintf(w, "%s: load balancers of OVN serve Services (service-engine = ovn)\n", firstAndCount(nodes))
	return err
}

// slow returns the nodes whose userspace datapath does not use TSO.
func (s *ClusterStatus) slow() (nodes []string) {
	for _, n := range s.Nodes {
		if n.Report != nil && n.Report.Switch != nil && n.Report.Switch.Userspace && !n.Report.Switch.TSO {
			nodes = append(nodes, n.Report.Node)
		}
	}
	return nodes
}

// printSwitches lists the nodes whose userspace datapath does not use TSO, and warns of Open
// vSwitch versions with known bugs.
func (s *ClusterStatus) printSwitches(w io.Writer) error {
	slow := s.slow()
	if len(slow) > 0 {
		if _, err := fmt.Fprintf(w,
			"%s: TSO is off, so streams are slow: the chart's userspaceTSO, or Open vSwitch 3.5.0 "+
				"(docs/reference/performance.md)\n", firstAndCount(slow)); err != nil {
			return err
		}
	}
	var g groups
	for _, n := range s.Nodes {
		if n.Report != nil && n.Report.Switch != nil && len(n.Report.Switch.Faults) > 0 {
			x := n.Report.Switch
			g.add(fmt.Sprintf("%s has known faults (docs/reference/compatibility.md):\n  %s\n", describeSwitch(x),
				strings.Join(x.Faults, "\n  ")), n.Report.Node)
		}
	}
	for _, text := range g.texts {
		if _, err := fmt.Fprintf(w, "warning: %s: %s", firstAndCount(g.nodes[text]), text); err != nil {
			return err
		}
	}
	return nil
}

func describeSwitch(x *report.Switch) string {
	return fmt.Sprintf("Open vSwitch %s (%s datapath)", x.Version,
		map[bool]string{true: "userspace", false: "kernel"}[x.Userspace])
}

// firstAndCount returns the first of nodes and the number of the others.
func firstAndCount(nodes []string) string {
	if n := len(nodes) - 1; n > 0 {
		return fmt.Sprintf("%s and %d more", nodes[0], n)
	}
	return nodes[0]
}

// FirstLine returns the first line of a text.
func FirstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}
