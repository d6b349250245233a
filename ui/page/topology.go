package page

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/nb"
)

// topology is the picture of a node: the path of packets, from the pods at the top to the external
// network at the bottom. Each possible source of a packet is a link.
type topology struct {
	Width, Height int
	Shapes        []shape
	Lines         []link
	Wire          shape
}

// shape is a box with lines of text.
type shape struct {
	X, Y, W, H  int
	Title, Kind string
	Lines       []string
	Link, Tip   string
	Chosen      bool
}

// link connects two shapes; its label is beside it.
type link struct {
	X1, Y1, X2, Y2 int
	Label          string
	LX, LY         int
}

// Dimensions, in pixels.
const (
	edge       = 16
	hostWidth  = 262
	stackX     = 372
	stackWidth = 350
	rightX     = 796
	rightWidth = 268
	boxHeight  = 46
	boxTitle   = 36 // from the top of a box to the first line below its title
	gap        = 38
	line       = 16
	podsAcross = 4
	podHeight  = 42
	mostPods   = 8
	letters    = 40 // of a line of a box
)

// axis is the x coordinate of the line through the logical network.
const axis = stackX + 36

// painter draws one node.
type painter struct {
	topology
	s     *cluster.Snapshot
	n     *cluster.Node
	state datapath.State
	q     Query
	y     int // the lower end of the picture so far
}

func draw(s *cluster.Snapshot, n *cluster.Node, state datapath.State, q Query) *topology {
	p := &painter{s: s, n: n, state: state, q: q, y: edge}
	p.Width = rightX + rightWidth + edge
	p.pods()
	top := p.stack()
	p.host(top)
	p.bridge()
	p.Height = p.y + edge
	return &p.topology
}

// start makes a shape a link that selects it as the source.
func (p *painter) start(x shape, word string) shape {
	c := p.q.source(word, p.n.Name)
	x.Link, x.Chosen, x.Tip = c.Link, c.Chosen, "choose "+word+" as the source"
	return x
}

func (p *painter) pods() {
	var own []*cluster.Pod
	for _, x := range p.s.Pods {
		if x.Node == p.n.Name {
			own = append(own, x)
		}
	}
	title := fmt.Sprintf("%d pods", len(own))
	if len(own) == 1 {
		title = "1 pod"
	}
	if n := len(own); n > mostPods {
		title += fmt.Sprintf(", the first %d of them", mostPods)
		own = own[:mostPods]
	}
	frame := shape{X: stackX, Y: p.y, W: rightX + rightWidth - stackX, Title: title, Kind: "pods",
		Lines: []string{addrs(p.n.PodCIDRs)}}
	across := (len(own) + podsAcross - 1) / podsAcross
	frame.H = 2*line + 20 + across*(podHeight+8)
	p.Shapes = append(p.Shapes, frame)
	width := (frame.W - 8) / podsAcross
	for i, x := range own {
		at := shape{X: frame.X + 8 + i%podsAcross*width, Y: frame.Y + 2*line + 14 + i/podsAcross*(podHeight+8),
			W: width - 8, H: podHeight, Kind: "pod",
			Title: cut(x.Owner.Name, 20)}
		if len(x.IPs) > 0 {
			at.Lines = []string{cut(x.IPs[0].String(), 23)}
		}
		p.Shapes = append(p.Shapes, p.start(at, podWord(x)))
	}
	p.y = frame.Y + frame.H
}

// networks returns the addresses of a logical router's port.
func (p *painter) networks(port string) string {
	r, ok := p.state.NB[nb.Key{Table: nb.TableRouterPort, Name: port}].(*nb.RouterPort)
	if !ok {
		return ""
	}
	return port + "  " + addrs(r.Networks)
}

// stack draws the logical network, from the node's switch down to the external one. It returns the
// y coordinate of the node switch.
func (p *painter) stack() int {
	name := p.n.Name
	top := p.y + gap
	for _, x := range []struct{ title, kind, above string }{
		{name, "logical switch of the pods", ""},
		{"ovn_cluster_router", "logical router", "rtos-" + name},
		{"join", "logical switch", "rtoj-ovn_cluster_router"},
		{"GR_" + name, "gateway router", "rtoj-GR_" + name},
		{"ext_" + name, "logical switch to the bridge", "rtoe-GR_" + name},
	} {
		above := p.networks(x.above)
		if x.above != "" && above == "" {
			continue // the node does not have it
		}
		y := p.y + gap
		p.Lines = append(p.Lines, link{X1: axis, Y1: p.y, X2: axis, Y2: y, Label: above, LX: axis + 10, LY: y - gap/2 +
			4})
		kind := "switch"
		if strings.Contains(x.kind, "router") {
			kind = "router"
		}
		p.Shapes = append(p.Shapes, shape{X: stackX, Y: y, W: stackWidth, H: boxHeight, Title: x.title, Kind: kind,
			Lines: []string{x.kind}})
		if x.title == "ovn_cluster_router" {
			p.transit(y)
		}
		p.y = y + boxHeight
	}
	return top
}

// transit draws the transit switch beside the cluster router.
func (p *painter) transit(y int) {
	const most = 3
	ports := p.networks("rtots-" + p.n.Name)
	if ports == "" {
		return
	}
	x := shape{X: rightX, Y: y, W: rightWidth, Title: "transit_switch", Kind: "switch",
		Lines: []string{"Geneve to the other nodes:"}}
	var others []string
	for _, n := range p.s.Nodes {
		if n.Name != p.n.Name {
			others = append(others, n.Name+"  "+addrs(n.Addresses))
		}
	}
	for i, o := range others {
		if i == most {
			x.Lines = append(x.Lines, fmt.Sprintf("… and %d more", len(others)-most))
			break
		}
		x.Lines = append(x.Lines, cut(o, letters))
	}
	x.H = boxHeight + line*(len(x.Lines)-1)
	p.Shapes = append(p.Shapes, x)
	p.Lines = append(p.Lines, link{X1: stackX + stackWidth, Y1: y + boxHeight/2, X2: rightX, Y2: y + boxHeight/2,
		Label: ports, LX: rightX, LY: y - 8})
}

// host draws the machine beside the logical network.
func (p *painter) host(top int) {
	const most = 8
	p.y = max(p.y, top+4*boxHeight)
	x := shape{X: edge, Y: top, W: hostWidth, H: p.y - top, Title: "host " + p.n.Name, Kind: "host"}
	x.Lines = append(x.Lines, "ovn-k8s-mp0")
	for _, a := range p.linkAddresses("ovn-k8s-mp0") {
		x.Lines = append(x.Lines, "  "+a)
	}
	x.Lines = append(x.Lines, "addresses")
	for i, a := range p.n.HostAddresses {
		if i == most {
			x.Lines = append(x.Lines, fmt.Sprintf("  … and %d more", len(p.n.HostAddresses)-most))
			break
		}
		x.Lines = append(x.Lines, "  "+cut(a.String(), letters))
	}
	p.Shapes = append(p.Shapes, p.start(x, "host/"+p.n.Name))
	p.Lines = append(p.Lines, link{X1: edge + hostWidth, Y1: top + boxHeight/2, X2: stackX, Y2: top + boxHeight/2,
		Label: "ovn-k8s-mp0", LX: edge + hostWidth + 6, LY: top + boxHeight/2 - 8})
}

func (p *painter) linkAddresses(name string) []string {
	var list []netip.Prefix
	for k := range p.state.Host.Addresses {
		if k.Link == name {
			list = append(list, k.Prefix)
		}
	}
	slices.SortFunc(list, netip.Prefix.Compare)
	var words []string
	for _, a := range list {
		words = append(words, a.String())
	}
	return words
}

// bridge draws the gateway bridge and the external network.
func (p *painter) bridge() {
	g := &p.n.Gateway
	name := g.Bridge
	if name == "" {
		name = p.s.Config.Gateway.Interface
	}
	y := p.y + gap
	below := y + boxHeight + gap
	x := shape{X: edge, Y: y, W: stackX + stackWidth - edge, H: boxHeight, Title: name, Kind: "bridge",
		Lines: []string{strings.TrimSuffix("Open vSwitch bridge  "+addrs(g.Addresses), "  ")}}
	p.Lines = append(p.Lines, link{X1: axis, Y1: p.y, X2: axis, Y2: y, Label: "patch port", LX: axis + 10,
		LY: y - gap/2 + 4},
		link{X1: edge + hostWidth/2, Y1: p.y, X2: edge + hostWidth/2, Y2: y, Label: "LOCAL", LX: edge + hostWidth/2 +
			10, LY: y - gap/2 + 4})
	if !p.s.Config.ModeOf(p.n).Uplink {
		const aside = 60 // here the host's own link bypasses the bridge
		x.X, x.W = x.X+aside, x.W-aside
		p.Lines = append(p.Lines, link{X1: edge + aside/2, Y1: p.y, X2: edge + aside/2, Y2: below, Label: g.Device,
			LX: edge + aside/2 + 8, LY: below - 10})
	} else {
		p.Lines = append(p.Lines, link{X1: axis, Y1: y + boxHeight, X2: axis, Y2: below, Label: g.Uplink, LX: axis + 10,
			LY: below - gap/2 + 4})
	}
	wire := "external network"
	if len(g.NextHops) > 0 {
		wire += ", next hop " + addrs(g.NextHops)
	}
	p.Shapes = append(p.Shapes, x)
	p.Wire = shape{X: edge, Y: below, W: p.Width - 2*edge, Title: wire}
	out := shape{X: rightX, Y: y, W: rightWidth, H: boxHeight, Title: "outside", Kind: "outside",
		Lines: []string{"a client on the external network"}}
	p.Shapes = append(p.Shapes, p.start(out, "outside"))
	p.Lines = append(p.Lines, link{X1: rightX + rightWidth/2, Y1: y + boxHeight, X2: rightX + rightWidth/2, Y2: below})
	p.y = below + 2*line
}

// cut shortens a text that does not fit.
func cut(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}
