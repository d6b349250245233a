package page

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/walk/explain/question"
)

// nodeView is a node with its pods and Services.
type nodeView struct {
	Name, Mode, Find string
	Q                Query
	Self             string // URL of the page
	Clear            string // URL of the page without the choices
	Topology         *topology
	Unplanned        bool // the desired state of the node is not known
	Sources          []choice
	MoreSources      int
	ServiceTable     *servicesView
	EgressIPs        []egressRow
	Addresses        []string
}

// choice is a link that selects something.
type choice struct {
	Text, Detail, Link string
	Chosen             bool
	Policies           string // the page of a pod's policies
}

type serviceRow struct {
	Name                        string
	Ports                       []choice
	Addresses, NodePorts, Marks []string
	Ready, All, Here            int
	counted                     bool
}

type egressRow struct {
	Name      string
	Addresses []string
	Pods      []string
	More      int
}

// Node renders the page of a node. state is its desired or real state. find is a part of the names
// of pods and Services. bad is the error in the query.
func Node(f Frame, s *cluster.Snapshot, n *cluster.Node, state datapath.State, q Query, find string,
	bad *question.BadArgument, problems []string) ([]byte, error) {
	v := &nodeView{Name: n.Name, Mode: mode(s, n), Find: find, Q: q, Self: nodePath(n.Name), Clear: nodePath(n.Name),
		Unplanned: state.NB == nil}
	v.Topology = draw(s, n, state, q)
	v.sources(s, n)
	v.ServiceTable = &servicesView{Find: find}
	v.ServiceTable.Rows, v.ServiceTable.More = serviceRows(s, n, q, find)
	v.egress(s, n)
	for _, a := range n.HostAddresses {
		v.Addresses = append(v.Addresses, a.String())
	}
	p := &view{Frame: f, Title: n.Name, Bad: bad, Node: v}
	return p.render(problems)
}

// source returns a link that selects the packet's source. An external client uses this node.
func (q Query) source(word, node string) choice {
	chosen := q.From == word
	q.From, q.Endpoint, q.Via = word, "", ""
	if word == "outside" {
		q.Via = node
	}
	return choice{Text: word, Link: q.next(node), Chosen: chosen}
}

// target returns a link that selects a Service.
func (q Query) target(word, text, node string) choice {
	chosen := q.To == word
	q.To, q.Endpoint = word, ""
	return choice{Text: text, Link: q.next(node), Chosen: chosen}
}

func podWord(p *cluster.Pod) string { return "pod/" + p.Owner.Namespace + "/" + p.Owner.Name }

func (v *nodeView) sources(s *cluster.Snapshot, n *cluster.Node) {
	add := func(word, detail, policies string) {
		switch {
		case !strings.Contains(word, v.Find) && word != v.Q.From:
		case len(v.Sources) == maxRows:
			v.MoreSources++
		default:
			c := v.Q.source(word, n.Name)
			c.Detail, c.Policies = detail, policies
			v.Sources = append(v.Sources, c)
		}
	}
	var own string
	if len(n.Addresses) > 0 {
		own = n.Addresses[0].String()
	}
	add("host/"+n.Name, own, "")
	add("outside", "a client on the external network", "")
	for _, p := range s.Pods {
		if p.Node == n.Name {
			policies := ""
			if len(s.Policies) > 0 {
				policies = podPath(p.Owner)
			}
			add(podWord(p), addrs(p.IPs), policies)
		}
	}
}

func addrs[T fmt.Stringer](list []T) string {
	words := make([]string, len(list))
	for i, a := range list {
		words[i] = a.String()
	}
	return strings.Join(words, " · ")
}

// serviceRows lists the Services, one row each. Its counts are of the first family and port. n is
// the node for which they are listed, or nil. find is a part of their names, more the number of
// Services that are left out.
func serviceRows(s *cluster.Snapshot, n *cluster.Node, q Query, find string) (rows []serviceRow, more int) {
	var row *serviceRow
	flush := func() {
		switch {
		case row == nil || !strings.Contains(row.Name, find):
		case len(rows) == maxRows:
			more++
		default:
			row.finish(q, n)
			rows = append(rows, *row)
		}
	}
	for _, f := range s.Frontends {
		if name := f.Owner.Namespace + "/" + f.Owner.Name; row == nil || row.Name != name {
			flush()
			row = &serviceRow{Name: name}
		}
		row.add(n, f)
	}
	flush()
	return rows, more
}

func (r *serviceRow) add(n *cluster.Node, f *cluster.Frontend) {
	once := func(list *[]string, word string) {
		if !slices.Contains(*list, word) {
			*list = append(*list, word)
		}
	}
	once(&r.Addresses, f.ClusterIP.String())
	for _, a := range slices.Concat(f.ExternalIPs, f.LoadBalancerIPs) {
		once(&r.Addresses, a.String())
	}
	if f.NodePort != 0 {
		once(&r.NodePorts, strconv.Itoa(int(f.NodePort)))
	}
	for _, m := range []struct {
		is   bool
		word string
	}{{f.ExternalLocal, "external: Local"}, {f.InternalLocal, "internal: Local"}, {f.Affinity != 0, "sticky"},
		{f.Restricted, "restricted"}} {
		if m.is {
			once(&r.Marks, m.word)
		}
	}
	word := portWord(f)
	text := fmt.Sprintf("%d/%s", f.Port, f.Protocol)
	if !slices.ContainsFunc(r.Ports, func(c choice) bool { return c.Detail == word }) {
		r.Ports = append(r.Ports, choice{Text: text, Detail: word})
	}
	if r.counted {
		return
	}
	r.counted, r.All = true, len(f.Backends)
	for _, b := range f.Backends {
		if b.Ready {
			r.Ready++
		}
		if n != nil && (b.Node == n.Name || n.HasAddress(b.Addr)) {
			r.Here++
		}
	}
}

// finish sets the links. They have the port if the Service has several.
func (r *serviceRow) finish(q Query, n *cluster.Node) {
	for i, p := range r.Ports {
		word := "svc/" + r.Name
		if len(r.Ports) > 1 {
			word += ":" + p.Detail
		}
		if n != nil {
			r.Ports[i] = q.target(word, p.Text, n.Name)
			continue
		}
		r.Ports[i] = choice{Text: p.Text, Link: Query{To: word}.Link()}
	}
}

// egress lists the EgressIPs with an address on this node, or with pods on it.
func (v *nodeView) egress(s *cluster.Snapshot, n *cluster.Node) {
	const maxPods = 5
	labels := map[string]map[string]string{}
	for _, ns := range s.Namespaces {
		labels[ns.Name] = ns.Labels
	}
	for _, e := range s.EgressIPs {
		r := egressRow{Name: e.DisplayName()}
		carries := false
		for _, a := range e.Assigned {
			r.Addresses = append(r.Addresses, a.Address.String()+" on "+a.Node)
			carries = carries || a.Node == n.Name
		}
		for _, a := range e.Addresses {
			if !slices.ContainsFunc(e.Assigned, func(x cluster.Assignment) bool { return x.Address == a }) {
				r.Addresses = append(r.Addresses, a.String()+" on no node")
			}
		}
		for _, p := range s.Pods {
			if p.Node != n.Name || !e.Selects(p, labels[p.Owner.Namespace]) {
				continue
			}
			if len(r.Pods) == maxPods {
				r.More++
				continue
			}
			r.Pods = append(r.Pods, podWord(p))
		}
		if carries || len(r.Pods) > 0 {
			v.EgressIPs = append(v.EgressIPs, r)
		}
	}
}
