package page

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"hairpin/claims"
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

// link connects two shapes; the lines of its label are beside it. Full is the label if it had to be
// shortened.
type link struct {
	X1, Y1, X2, Y2 int
	Label          []string
	Full           string
	LX, LY         int
}

// Dimensions, in pixels.
const (
	edge             = 16
	hostWidth        = 262
	stackX           = 372
	stackWidth       = 350
	rightX           = 796
	rightWidth       = 268
	boxHeight        = 46
	boxTitle         = 36 // from the top of a box to the first line below its title
	gap              = 38
	line             = 16
	podsAcross       = 4
	podHeight        = 42
	maxPods          = 8
	boxLetters       = 40 // letters of a line of the host's box
	sideLetters      = 42 // letters of a line of a box beside the stack
	labelLetters     = 44 // letters of a line of a label
	labelLine        = 14
	titleLetters     = 34 // letters of a box's title
	sideTitleLetters = 26 // letters of a box's title beside the stack
	beside           = 44 // width of the service bridge beside the stack
)

// The x coordinates of the line through the logical network, and of that from the service bridge
// to the gateway bridge, beside the logical network.
const (
	axis   = stackX + 36
	bypass = stackX + stackWidth + beside/2
)

// painter draws one node.
type painter struct {
	topology
	s     *cluster.Snapshot
	n     *cluster.Node
	state datapath.State
	q     Query
	y     int // the lower end of the stack so far
	// tunnels is the lower end of the boxes beside the stack.
	tunnels int
}

func draw(s *cluster.Snapshot, n *cluster.Node, state datapath.State, q Query) *topology {
	p := &painter{s: s, n: n, state: state, q: q, y: edge}
	p.Width = rightX + rightWidth + edge
	p.pods()
	top := p.y + gap
	p.services()
	p.stack(top)
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
	if n := len(own); n > maxPods {
		title += fmt.Sprintf(", the first %d of them", maxPods)
		own = own[:maxPods]
	}
	frame := shape{X: stackX, Y: p.y, W: rightX + rightWidth - stackX, Title: title, Kind: "pods",
		Lines: []string{addrs(p.n.PodCIDRs)}}
	rows := (len(own) + podsAcross - 1) / podsAcross
	frame.H = 2*line + 20 + rows*(podHeight+8)
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

// connect adds a line with its label: a name and, after two spaces, addresses.
func (p *painter) connect(l link, label string) {
	for _, words := range strings.Split(label, "  ") {
		l.Label = append(l.Label, cut(words, labelLetters))
		if len([]rune(words)) > labelLetters {
			l.Full = label
		}
	}
	l.LY -= (len(l.Label) - 1) * labelLine / 2
	p.Lines = append(p.Lines, l)
}

// below adds the line from the last box of the stack to the next one.
func (p *painter) below(label string) (y int) {
	y = p.y + gap
	p.connect(link{X1: axis, Y1: p.y, X2: axis, Y2: y, LX: axis + 10, LY: y - gap/2 + 4}, label)
	return y
}

// services draws the bridge with the pods' ports, if the node has it.
func (p *painter) services() {
	if _, ok := p.state.Bridge.Bridges[claims.ServiceBridge]; !ok {
		return
	}
	y := p.below("ports of the pods")
	p.Shapes = append(p.Shapes, shape{X: stackX, Y: y, W: stackWidth + beside, H: boxHeight,
		Title: claims.ServiceBridge, Kind: "bridge", Lines: []string{"Open vSwitch bridge: pods, Services, policies"}})
	p.connect(link{X1: edge + hostWidth, Y1: y + boxHeight/2, X2: stackX, Y2: y + boxHeight/2,
		LX: edge + hostWidth + 6, LY: y + boxHeight/2 - 8}, claims.ServiceHost)
	p.y = y + boxHeight
}

// stack draws the logical network, from the node's switch down to the external one. top is the y
// coordinate of the boxes beside it.
func (p *painter) stack(top int) {
	name := p.n.Name
	for _, x := range []struct{ title, kind, above string }{
		{name, "logical switch of the pods", ""},
		{claims.ClusterRouter, "logical router", "rtos-" + name},
		{claims.JoinSwitch, "logical switch", "rtoj-" + claims.ClusterRouter},
		{"GR_" + name, "gateway router", "rtoj-GR_" + name},
		{"ext_" + name, "logical switch to the bridge", "rtoe-GR_" + name},
	} {
		above := p.networks(x.above)
		if x.above != "" && above == "" {
			continue // the node does not have it
		}
		if x.above == "" && p.y > top {
			above = claims.ServicePatch
		}
		y := p.below(above)
		kind := "switch"
		if strings.Contains(x.kind, "router") {
			kind = "router"
		}
		p.Shapes = append(p.Shapes, shape{X: stackX, Y: y, W: stackWidth, H: boxHeight,
			Title: cut(x.title, titleLetters), Tip: x.title, Kind: kind, Lines: []string{x.kind}})
		switch x.above {
		case "":
			p.connect(link{X1: edge + hostWidth, Y1: y + boxHeight/2, X2: stackX, Y2: y + boxHeight/2,
				LX: edge + hostWidth + 6, LY: y + boxHeight/2 - 8}, managementPort)
		case "rtos-" + name:
			p.transit(y)
		}
		p.y = y + boxHeight
	}
	p.y = max(p.y, p.tunnels)
}

// managementPort is the host's port on the node's logical switch.
const managementPort = "ovn-k8s-mp0"

// transit draws the transit switch and the tunnels beside the cluster router.
func (p *painter) transit(y int) {
	const most = 3
	ports := p.networks("rtots-" + p.n.Name)
	if ports == "" {
		return
	}
	_, addresses, _ := strings.Cut(ports, "  ")
	p.Shapes = append(p.Shapes, shape{X: rightX, Y: y, W: rightWidth, H: boxHeight, Title: claims.TransitSwitch,
		Kind: "switch", Lines: []string{cut(addresses, sideLetters)}})
	p.connect(link{X1: stackX + stackWidth, Y1: y + boxHeight/2, X2: rightX, Y2: y + boxHeight/2}, "")
	middle := rightX + 24
	p.connect(link{X1: middle, Y1: y + boxHeight, X2: middle, Y2: y + boxHeight + gap, LX: middle + 10,
		LY: y + boxHeight + gap/2 + 4}, claims.TunnelPatch)
	x := shape{X: rightX, Y: y + boxHeight + gap, W: rightWidth, Title: claims.TunnelBridge, Kind: "bridge",
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
		x.Lines = append(x.Lines, cut(o, sideLetters))
	}
	x.H = boxHeight + line*(len(x.Lines)-1)
	p.Shapes = append(p.Shapes, x)
	p.tunnels = x.Y + x.H
}

// host draws the machine beside the logical network.
func (p *painter) host(top int) {
	const most = 8
	x := shape{X: edge, Y: top, W: hostWidth, Title: "host " + cut(p.n.Name, sideTitleLetters), Kind: "host"}
	for _, name := range []string{managementPort, claims.ServiceHost} {
		list := p.linkAddresses(name)
		if len(list) == 0 {
			continue
		}
		x.Lines = append(x.Lines, name)
		for _, a := range list {
			x.Lines = append(x.Lines, "  "+cut(a, boxLetters))
		}
	}
	x.Lines = append(x.Lines, "addresses")
	for i, a := range p.n.HostAddresses {
		if i == most {
			x.Lines = append(x.Lines, fmt.Sprintf("  … and %d more", len(p.n.HostAddresses)-most))
			break
		}
		x.Lines = append(x.Lines, "  "+cut(a.String(), boxLetters))
	}
	p.y = max(p.y, top+boxTitle+line*len(x.Lines))
	x.H = p.y - top
	p.Shapes = append(p.Shapes, p.start(x, "host/"+p.n.Name))
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
	y := p.below("patch port")
	below := y + boxHeight + gap
	x := shape{X: edge, Y: y, W: stackX + stackWidth - edge, H: boxHeight, Title: name, Kind: "bridge",
		Lines: []string{strings.TrimSuffix("Open vSwitch bridge  "+addrs(g.Addresses), "  ")}}
	p.connect(link{X1: edge + hostWidth/2, Y1: p.y, X2: edge + hostWidth/2, Y2: y, LX: edge + hostWidth/2 + 10,
		LY: y - gap/2 + 4}, "LOCAL")
	if _, ok := p.state.Bridge.Ports[claims.ServicesPatch]; ok {
		x.W += beside
		for _, s := range p.Shapes {
			if s.Title == claims.ServiceBridge {
				p.connect(link{X1: bypass, Y1: s.Y + s.H, X2: bypass, Y2: y, LX: bypass + 8, LY: y - gap/2 + 4},
					claims.ServicesPatch)
			}
		}
	}
	if !p.s.Config.ModeOf(p.n).Uplink {
		const aside = 60 // here the host's own link bypasses the bridge
		x.X, x.W = x.X+aside, x.W-aside
		p.connect(link{X1: edge + aside/2, Y1: p.y, X2: edge + aside/2, Y2: below, LX: edge + aside/2 + 8,
			LY: below - 10}, g.Device)
	} else {
		p.connect(link{X1: axis, Y1: y + boxHeight, X2: axis, Y2: below, LX: axis + 10, LY: below - gap/2 + 4},
			g.Uplink)
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
	p.connect(link{X1: rightX + rightWidth/2, Y1: y + boxHeight, X2: rightX + rightWidth/2, Y2: below}, "")
	p.y = below + 2*line
}

// cut shortens a text that does not fit.
func cut(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return s
}
