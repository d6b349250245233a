package page

import (
	"html/template"
	"slices"
	"strconv"
	"strings"

	"hairpin/cluster"
	"hairpin/walk/explain"
	"hairpin/walk/explain/picture"
	"hairpin/walk/explain/question"
	"hairpin/walk/explain/why"
	"hairpin/walk/packet"
)

// Answer is the answer to a question.
type Answer struct {
	Explanation *explain.Explanation
	Fault       *explain.Fault // a difference between real and desired state
	Notes       []string       // failed requests
}

// walkView is the form and, if it is filled in, the answer.
type walkView struct {
	Q        Query
	Sources  []group
	Targets  []group
	Nodes    []string
	Families []string
	Protos   []string
	Long     bool // too many sources or Services for a list
	Result   *result
}

// group is a part of a list.
type group struct {
	Label   string
	Options []option
}

type option struct {
	Value  string
	Chosen bool
}

type result struct {
	*explain.Explanation
	Fault     *explain.Fault
	Notes     []string
	Picture   template.HTML
	Command   string
	Endpoints []endpointRow
	Paths     []pathView
	Families  []choice
	Live      *choice
	ByHost    []hostConnections
	Policies  []decisionRow
	// PictureLink and JSONLink are the addresses of the picture and of the steps alone.
	PictureLink, JSONLink string
}

// hostConnections has the connections in the kernel of one host.
type hostConnections struct {
	Node        string
	Connections []explain.HostConnection
}

// decisionRow is a decision of policies, with the page of its pod.
type decisionRow struct {
	*why.Decision
	Link string
}

type endpointRow struct {
	explain.Endpoint
	Link string
}

type pathView struct {
	Title  string
	Packet packet.Packet
	Places []placeView
}

// placeView has successive hops in one place.
type placeView struct {
	Node, Name, Kind, Class string
	Hops                    []hopView
}

type hopView struct {
	explain.Hop
	Number  int
	Choices string
	Fault   bool
}

// longList is the number of entries from which a list is not usable.
const longList = 400

// Walk renders the page of a packet's path. It has an Answer, or the error in the question, or
// neither before a question.
func Walk(f Frame, s *cluster.Snapshot, q Query, a *Answer, bad *question.BadArgument,
	problems []string) ([]byte, error) {
	v := &walkView{Q: q, Families: []string{"", "4", "6"}, Protos: []string{"", "tcp", "udp", "sctp"}}
	v.lists(s)
	title := "Follow a packet"
	if a != nil {
		v.Result = newResult(f, s, q, a)
		title = q.From + " → " + q.To
	}
	if bad != nil { // the command line names the field differently than the form
		bad = &question.BadArgument{Field: strings.ToLower(strings.TrimLeft(bad.Field, "-")), Word: bad.Word,
			Err: bad.Err}
	}
	p := &view{Frame: f, Title: title, Bad: bad, Walk: v}
	return p.render(problems)
}

// lists fills in the lists of sources and targets.
func (v *walkView) lists(s *cluster.Snapshot) {
	if v.Long = len(s.Pods)+len(s.Nodes) > longList || len(s.Frontends) > 2*longList; v.Long {
		return
	}
	for _, n := range s.Nodes {
		v.Nodes = append(v.Nodes, n.Name)
	}
	v.Sources, v.Targets = withWord(sources(s, v.Q.From), v.Q.From), withWord(services(s, v.Q.To), v.Q.To)
}

// sources returns "outside", then the host and the pods of each node.
func sources(s *cluster.Snapshot, chosen string) []group {
	pods := map[string][]option{}
	for _, p := range s.Pods {
		pods[p.Node] = append(pods[p.Node], option{podWord(p), podWord(p) == chosen})
	}
	list := []group{{"anywhere else", []option{{"outside", chosen == "outside"}}}}
	for _, n := range s.Nodes {
		host := option{"host/" + n.Name, "host/"+n.Name == chosen}
		list = append(list, group{n.Name, append([]option{host}, pods[n.Name]...)})
	}
	return list
}

// services returns the Services of each namespace, with a line for each port if there are several.
func services(s *cluster.Snapshot, chosen string) (list []group) {
	for frontends := s.Frontends; len(frontends) > 0; {
		owner := frontends[0].Owner
		var ports []string
		for ; len(frontends) > 0 && frontends[0].Owner == owner; frontends = frontends[1:] {
			if p := portWord(frontends[0]); !slices.Contains(ports, p) {
				ports = append(ports, p)
			}
		}
		if n := len(list); n == 0 || list[n-1].Label != owner.Namespace {
			list = append(list, group{Label: owner.Namespace})
		}
		g := &list[len(list)-1]
		for _, p := range ports {
			word := "svc/" + owner.Namespace + "/" + owner.Name
			if len(ports) > 1 {
				word += ":" + p
			}
			g.Options = append(g.Options, option{word, word == chosen})
		}
	}
	return list
}

// withWord adds the word of the question if it is not in the list.
func withWord(list []group, word string) []group {
	if word == "" || slices.ContainsFunc(list,
		func(g group) bool { return slices.Contains(g.Options, option{word, true}) }) {
		return list
	}
	return append([]group{{"as asked", []option{{word, true}}}}, list...)
}

// portWord returns the name of a Service's port.
func portWord(f *cluster.Frontend) string {
	if f.PortName != "" {
		return f.PortName
	}
	return strconv.Itoa(int(f.Port))
}

// More reports whether one of the less usual fields is set.
func (v *walkView) More() bool { return v.Q.Proto != "" || v.Q.Via != "" || v.Q.NodePort }

func newResult(f Frame, s *cluster.Snapshot, q Query, a *Answer) *result {
	e := a.Explanation
	// Drawing escapes
	r := &result{Explanation: e, Fault: a.Fault, Notes: a.Notes, Picture: template.HTML(picture.Drawing(e)),
		Command: q.Command(f.Flags)}
	for _, x := range e.Endpoints {
		p := q
		p.Endpoint = x.Addr.String()
		r.Endpoints = append(r.Endpoints, endpointRow{x, p.Link()})
	}
	back, reply := e.ReplyHops()
	r.Paths = append(r.Paths, pathOf("There", e.Trace.Sent, e.ForwardHops(), a.Fault, ""))
	if len(back) > 0 {
		r.Paths = append(r.Paths, pathOf("Back", reply, back, a.Fault, "reply: "))
	}
	for _, fam := range families(s, e) {
		p := q
		p.Family, p.Endpoint = fam, ""
		r.Families = append(r.Families, choice{Text: "IPv" + fam, Link: p.Link(),
			Chosen: e.Trace.Sent.Dst.Is4() == (fam == "4")})
	}
	for i := range e.Policies {
		d := &e.Policies[i]
		r.Policies = append(r.Policies, decisionRow{d, podPath(d.Pod)})
	}
	r.PictureLink, r.JSONLink = q.Picture(), q.JSON()
	for _, b := range e.HostConnections {
		if n := len(r.ByHost); n == 0 || r.ByHost[n-1].Node != b.Node {
			r.ByHost = append(r.ByHost, hostConnections{Node: b.Node})
		}
		last := &r.ByHost[len(r.ByHost)-1]
		last.Connections = append(last.Connections, b)
	}
	if f.Live {
		p := q
		p.Live = !q.Live
		r.Live = &choice{Text: "what is really there", Link: p.Link(), Chosen: q.Live}
	}
	return r
}

// families returns the families of the Service, if it has two.
func families(s *cluster.Snapshot, e *explain.Explanation) []string {
	name, _, _ := strings.Cut(e.Service, ":")
	var four, six bool
	for _, f := range s.Frontends {
		if f.Owner.Namespace+"/"+f.Owner.Name == name && strings.HasPrefix(e.Question.To, "svc/") {
			four, six = four || f.Family == cluster.IPv4, six || f.Family == cluster.IPv6
		}
	}
	if four && six {
		return []string{"4", "6"}
	}
	return nil
}

// pathOf groups successive hops in one place.
func pathOf(title string, sent packet.Packet, hops []explain.Hop, fault *explain.Fault, prefix string) pathView {
	w := pathView{Title: title, Packet: sent}
	for i, h := range hops {
		p := placeView{Node: h.Node, Name: h.Place.Name}
		p.Kind, p.Class = kinds(h.Place.Kind)
		if p.Name == "" {
			p.Name = h.Stage
		}
		if n := len(w.Places); n == 0 || w.Places[n-1].Node != p.Node || w.Places[n-1].Name != p.Name {
			w.Places = append(w.Places, p)
		}
		x := hopView{Hop: h, Number: i + 1, Fault: fault != nil && fault.Node == h.Node && fault.Stage == prefix+
			h.Stage}
		var words []string
		for _, c := range h.Choices {
			words = append(words, c.String())
		}
		if len(words) > 1 {
			x.Choices = strings.Join(words, ", ")
		}
		last := &w.Places[len(w.Places)-1]
		last.Hops = append(last.Hops, x)
	}
	return w
}

// kinds returns the name of a kind of place, and its class in the style sheet.
func kinds(k explain.Kind) (words, class string) {
	switch k {
	case explain.Host:
		return "kernel", "host"
	case explain.Bridge:
		return "bridge", "bridge"
	case explain.Switch:
		return "logical switch", "switch"
	case explain.Router:
		return "logical router", "router"
	case explain.Tunnel:
		return "tunnel", "tunnel"
	case explain.Unknown:
	}
	return "place", "unknown"
}
