package page

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"hairpin/cluster"
	"hairpin/report"
)

// Health is what the agents report. It is nil if none is asked.
type Health struct {
	Nodes map[string]NodeHealth
	// Controller is the node whose controller leads, empty if that is not known.
	Controller string
	Error      string // why the reports, or the controller, could not be read
}

// NodeHealth is the report of a node's agent.
type NodeHealth struct {
	Report *report.Report // nil: the agent did not answer
	State  string         // in a few words
	Error  string         // why the agent did not answer
	// Unhealthy lists what is not healthy, with reasons.
	Unhealthy []string
}

// good reports whether every component of the node is healthy.
func (h NodeHealth) good() bool { return h.Report != nil && h.Report.Healthy() }

// homeView is the health of the cluster.
type homeView struct {
	Find       string
	Health     *Health
	Summary    string
	Good       bool // all nodes are healthy
	Counts     []count
	Rows       []nodeRow
	More       int
	Egress     []egressAddress
	MoreEgress int
	Command    string // prints the health in a terminal
}

// count is a number of objects, with the page that lists them.
type count struct {
	Number     int
	Text, Link string
	Bad        bool
}

type nodeRow struct {
	Name, Link, Mode, Engine, Datapath, Switch, Version, State, Error string
	Good, Known                                                       bool
	ID, Pods                                                          int
	Addresses                                                         []string
}

// egressAddress is an egress address with its node.
type egressAddress struct{ Address, Object, Node, Link, Why, Next, BGP string }

// maxEgress is the largest number of egress addresses on the first page.
const maxEgress = 20

// Home renders the first page: the health of the cluster. find is a part of the names of nodes.
func Home(f Frame, s *cluster.Snapshot, h *Health, find string, problems []string) ([]byte, error) {
	v := &homeView{Find: find, Health: h, Command: command("status", f.Flags)}
	v.nodes(s)
	v.summary(f, s, h)
	v.Counts = counts(s, len(slices.Compact(slices.Sorted(slices.Values(problems)))))
	for _, a := range egressAddresses(s, h) {
		if len(v.Egress) == maxEgress {
			v.MoreEgress++
			continue
		}
		v.Egress = append(v.Egress, a)
	}
	return (&view{Frame: f, Title: "Cluster", Home: v}).render(problems)
}

func (v *homeView) summary(f Frame, s *cluster.Snapshot, h *Health) {
	if h == nil {
		v.Summary = report.Counted(len(s.Nodes), "node") + " " + f.NoHealth
		return
	}
	good, asked := 0, 0
	for _, x := range h.Nodes {
		if asked++; x.good() {
			good++
		}
	}
	v.Good = good == asked && asked > 0 && h.Error == ""
	switch {
	case asked == 0:
		v.Summary = "The health of the nodes is not known"
	case good == asked:
		v.Summary = fmt.Sprintf("%s healthy", report.Counted(asked, "node"))
	default:
		v.Summary = fmt.Sprintf("%d of %s not healthy", asked-good, report.Counted(asked, "node"))
	}
}

func counts(s *cluster.Snapshot, problems int) []count {
	services := map[cluster.Owner]bool{}
	for _, f := range s.Frontends {
		services[f.Owner] = true
	}
	egress := 0
	for _, e := range s.EgressIPs {
		egress += len(e.Addresses)
	}
	of := func(n int, one, many, link string) count {
		if n != 1 {
			one = many
		}
		return count{Number: n, Text: one, Link: link}
	}
	list := []count{
		of(len(s.Nodes), "node", "nodes", "#nodes"),
		of(len(s.Pods), "pod", "pods", "#nodes"),
		of(len(services), "Service", "Services", "/services"),
		of(egress, "egress address", "egress addresses", "/egress"),
		of(len(s.Policies), "policy", "policies", "/policies"),
		of(problems, "problem", "problems", "/problems"),
	}
	list[len(list)-1].Bad = problems > 0
	return list
}

// nodes lists the nodes, those with problems first.
func (v *homeView) nodes(s *cluster.Snapshot) {
	pods := map[string]int{}
	for _, p := range s.Pods {
		pods[p.Node]++
	}
	for _, x := range s.Nodes {
		if strings.Contains(x.Name, v.Find) {
			v.Rows = append(v.Rows, v.row(s, x, pods[x.Name]))
		}
	}
	slices.SortStableFunc(v.Rows, func(a, b nodeRow) int {
		return cmp.Compare(rank(a), rank(b))
	})
	if n := len(v.Rows); n > maxRows {
		v.More, v.Rows = n-maxRows, v.Rows[:maxRows]
	}
}

func rank(r nodeRow) int {
	if r.Known && !r.Good {
		return 0
	}
	return 1
}

func (v *homeView) row(s *cluster.Snapshot, x *cluster.Node, pods int) nodeRow {
	r := nodeRow{Name: x.Name, Link: nodePath(x.Name), Mode: mode(s, x), Engine: cluster.EngineOVN, Datapath: "kernel",
		ID: x.ID, Pods: pods}
	if x.Gateway.OpenFlow {
		r.Engine = cluster.EngineOpenFlow
	}
	if x.Gateway.Userspace {
		r.Datapath = "userspace"
	}
	for _, a := range x.Addresses {
		r.Addresses = append(r.Addresses, a.String())
	}
	if v.Health == nil {
		return r
	}
	h, ok := v.Health.Nodes[x.Name]
	if !ok {
		return r
	}
	r.Known, r.Good, r.State, r.Error = true, h.good(), h.State, h.Error
	if h.Report == nil {
		return r
	}
	r.Version = h.Report.Version
	if !r.Good {
		r.Error = strings.Join(h.Unhealthy, "; ")
	}
	if w := h.Report.Switch; w != nil {
		r.Switch = w.Version
	}
	return r
}

// egressAddresses lists the egress addresses of the cluster, those with a problem first.
func egressAddresses(s *cluster.Snapshot, h *Health) (list []egressAddress) {
	reported := map[string]report.Egress{} // by object and address
	if h != nil {
		for _, x := range h.Nodes {
			if x.Report == nil {
				continue
			}
			for _, e := range x.Report.Egress {
				reported[e.EgressIP+" "+e.Address] = e
			}
		}
	}
	var good []egressAddress
	for _, e := range s.EgressIPs {
		for _, a := range e.Addresses {
			r := reported[e.DisplayName()+" "+a.String()]
			x := egressAddress{Address: a.String(), Object: e.DisplayName(), Why: r.Why, Next: r.Next, BGP: r.BGP}
			for _, on := range e.Assigned {
				if on.Address == a {
					x.Node, x.Link = on.Node, nodePath(on.Node)
				}
			}
			if x.Node == "" {
				x.Why = cmp.Or(x.Why, "no node has it")
			}
			if x.Why != "" {
				list = append(list, x)
			} else {
				good = append(good, x)
			}
		}
	}
	return append(list, good...)
}
