package walk

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/walk/conntrack"
	"hairpin/walk/ovn"
	"hairpin/walk/packet"
	"hairpin/walk/path"
)

// clientPort is the source port of a packet without one: the first of Linux' ip_local_port_range.
const clientPort = 32768

// maxRecirculations limits the recirculations of a packet in the userspace datapath, which then
// drops it ("Max recirculation depth exceeded", MAX_RECIRC_DEPTH since Open vSwitch 3.4).
const maxRecirculations = 8

// maxSteps limits the steps of one path; the longest path in the documents has about 40.
const maxSteps = 300

// Walker walks packets through one World. It keeps what it derives from the States between walks,
// so the States must not change. It is not safe for concurrent use.
type Walker struct {
	world  World
	nodes  map[string]*node
	owners map[netip.Addr]string // node that answers for an address on the external network
	texts  *path.Texts
}

// New returns a Walker for a World. It reads a State only when a packet reaches the node.
func New(w World) *Walker {
	if w.Snapshot == nil {
		w.Snapshot = &cluster.Snapshot{}
	}
	return &Walker{world: w, nodes: map[string]*node{}, texts: path.NewTexts()}
}

// Walk follows a packet from where it starts to where it ends, then the reply back. Without a
// source address, it uses the one that the sender would choose; without a source port, 32768.
//
// Where a load balancer or an equal-cost route has several targets, Walk takes the first element of
// prefer that is among them, else the first target. A next hop is given with port 0.
//
// An error means that the packet met something that walk does not know, or looped. The Trace then
// has the steps up to that point.
func (w *Walker) Walk(at Point, p packet.Packet, prefer ...netip.AddrPort) (Trace, error) {
	return w.run(prefer).walk(at, p)
}

// Connections are the conntrack entries of all nodes that walks of Send left behind. The zero value
// has none.
type Connections struct{ table conntrack.Table }

// Send follows one packet without its reply. It meets connections of earlier packets, also of walks
// through another World, and adds its own.
func (w *Walker) Send(c *Connections, at Point, p packet.Packet) (Trace, error) {
	r := w.run(nil)
	r.Connections = c.table
	t, err := r.oneWay(at, p)
	c.table = r.Connections
	return t, err
}

// run is one walk: one connection, without any others.
type run struct {
	path.Path
	w *Walker

	tunnel    flow.Tunnel // by which this packet arrived
	flags     ovn.Flags   // of this packet in its last router
	visits    []Visit
	visiting  bool // the last of visits is not finished
	firstStep int  // number of steps before it
	verdict   Verdict
	done      bool
	rejection *rejection
}

func (w *Walker) run(prefer []netip.AddrPort) *run {
	return &run{w: w, Path: path.Path{Prefer: prefer, Texts: w.texts}}
}

// walk is Walker.Walk.
func (r *run) walk(at Point, p packet.Packet) (Trace, error) {
	t, err := r.oneWay(at, p)
	if err != nil || !t.Verdict.Delivered && r.rejection == nil {
		return t, err
	}
	err = r.answer(&t)
	return t, err
}

// oneWay follows a packet to where it ends.
func (r *run) oneWay(at Point, p packet.Packet) (Trace, error) {
	if p.SrcPort == 0 {
		p.SrcPort = clientPort
	}
	start, err := r.start(at, &p)
	t := Trace{From: at, Sent: p}
	if err == nil {
		t.Verdict, err = r.follow(start, p)
	}
	t.Forward, t.ForwardVisits, t.Costs.First = r.Steps, r.visits, r.Cost
	if r.Sent != nil {
		t.Sent = *r.Sent
	}
	return t, err
}

// rejection is the packet with which a load balancer or nft rejects another one.
type rejection struct {
	from       location
	packet     packet.Packet
	connection *conntrack.Connection // of the packet that nft rejects
}

// place is a kind of location.
type place uint8

// The places. After the semicolon: the port or the node of the location.
const (
	hostSends       place = iota + 1 // a process of the host sends; no port
	hostReceives                     // a frame arrives at the host; the link
	bridgeReceives                   // the gateway bridge or one of our bridges; its port
	plainReceives                    // a plainBridge; its patch port, or a link of the host on it
	switchReceives                   // a logical switch; its port
	tunnelReceives                   // a packet arrives by a tunnel; the port of one of our bridges
	switchOutput                     // all pipelines of a logical switch are done; the egress port
	routerReceives                   // a logical router; its port
	routerRejects                    // the egress pipeline of a logical router from lr_out_snat on; the egress port
	outsideReceives                  // the external network; the sending node, nil: an external machine
	podSends                         // a pod; its logical port
)

// inOVS reports whether p is in Open vSwitch and is reached without leaving its datapath. A packet
// at tunnelReceives is in Open vSwitch, too, but has entered it again.
func (p place) inOVS() bool {
	switch p {
	case bridgeReceives, plainReceives, switchReceives, switchOutput, routerReceives, routerRejects:
		return true
	}
	return false
}

// inOVN reports whether a packet at p is in OVN's bridge.
func (p place) inOVN() bool {
	switch p {
	case switchReceives, switchOutput, routerReceives, routerRejects:
		return true
	}
	return false
}

// location is where a packet is between two systems.
type location struct {
	place place
	node  *node
	port  string
}

// follow moves the packet from system to system until it ends.
func (r *run) follow(at location, p packet.Packet) (Verdict, error) {
	r.Start(p)
	r.done, r.verdict, r.visits = false, Verdict{}, make([]Visit, 0, 4)
	defer r.leave()
	inside := false
	for !r.done {
		if at.place == tunnelReceives || at.place.inOVS() && !inside {
			r.Cost.Lookups++
		}
		inside = at.place == tunnelReceives || at.place.inOVS()
		if len(r.Steps) > maxSteps {
			return r.verdict, fmt.Errorf("more than %d steps: routing loop, last at %s", maxSteps, at)
		}
		r.enter(at)
		next, err := r.move(at)
		if err != nil {
			return r.verdict, fmt.Errorf("%s: %w", at, err)
		}
		if r.Userspace && r.Recirculations > maxRecirculations {
			r.drop(packet.Other,
				fmt.Sprintf("%s: Open vSwitch's userspace datapath drops it: %d recirculations, more than %d",
					at, r.Recirculations, maxRecirculations))
		}
		if r.End != nil {
			r.end(at)
		}
		if r.done || !next.place.inOVS() {
			r.Recirculations = 0
		}
		at = next
	}
	return r.verdict, nil
}

// end ends a packet that was dropped or rejected, and keeps the rejection that its sender gets.
func (r *run) end(at location) {
	r.done = true
	r.verdict = Verdict{Rejected: r.End.Rejected, Cause: r.End.Cause, Reason: r.End.Reason}
	if !r.End.Rejected {
		return
	}
	back := r.Reply()
	back.EthSrc, back.EthDst = r.EthDst, r.EthSrc
	switch at.place {
	case switchReceives:
		at.place = switchOutput
	case routerReceives:
		at.place = routerRejects
	default:
		at = location{place: hostSends, node: at.node}
	}
	r.rejection = &rejection{from: at, packet: back, connection: r.End.Connection}
}

// enter begins a visit if the packet enters a bridge, and ends the last one.
func (r *run) enter(at location) {
	r.Node, r.Userspace = "", false
	if at.node != nil {
		r.Node, r.Userspace = at.node.name, at.node.userspace()
	}
	inOVN := at.place.inOVN()
	if !r.visiting || !inOVN || !r.visits[len(r.visits)-1].OVN { // all of OVN's places are one visit
		r.leave()
		if inOVN || at.place == bridgeReceives || at.place == plainReceives || at.place == tunnelReceives {
			r.visits = append(r.visits, Visit{Node: r.Node, OVN: inOVN, Port: at.port, In: r.Packet})
			r.visiting, r.firstStep, r.Passes = true, len(r.Steps), nil
		}
	}
	if r.visiting && inOVN {
		v := &r.visits[len(r.visits)-1]
		if v.Out = ""; at.place == switchOutput {
			v.Out = at.port
		}
	}
}

// leave records where the packet left the bridge of the last visit.
func (r *run) leave() {
	if r.visiting {
		v := &r.visits[len(r.visits)-1]
		v.Steps, v.Passes = r.Steps[r.firstStep:], r.Passes
		r.visiting = false
	}
}

// move passes the packet to the system at a location, and returns where it goes next.
func (r *run) move(at location) (next location, err error) {
	n := at.node
	if at.place.inOVN() && slices.Contains(n.state.Bridge.NoFlows, claims.IntegrationBridge) {
		return r.drop(packet.Other, claims.IntegrationBridge+" drops it: OVN's flows are gone")
	}
	port := ""
	switch at.place {
	case hostSends:
		var rejected *conntrack.Connection
		if r.rejection != nil {
			rejected = r.rejection.connection
		}
		port, err = n.host.Sends(&r.Path, rejected)
		return r.afterHost(n, port, err)
	case hostReceives:
		port, err = n.host.Receives(&r.Path, at.port)
		return r.afterHost(n, port, err)
	case bridgeReceives, tunnelReceives:
		return r.bridgeReceives(n, at.port)
	case plainReceives:
		return r.plainReceives(n, at.port)
	case switchReceives:
		port, err = n.ovn.SwitchReceives(&r.Path, at.port)
		return location{switchOutput, n, port}, err
	case switchOutput:
		return r.switchOutput(n, at.port)
	case routerReceives:
		port, r.flags, err = n.ovn.RouterReceives(&r.Path, at.port)
		return location{switchReceives, n, port}, err
	case routerRejects:
		port, err = n.ovn.RouterRejects(&r.Path, at.port, r.flags)
		return location{switchReceives, n, port}, err
	case outsideReceives:
		return r.outsideReceives(n)
	case podSends:
		return r.podSends(n, at.port)
	}
	return location{}, fmt.Errorf("no such place: %d", at.place)
}

// String names the location in messages.
func (l location) String() string {
	name := "outside"
	if l.node != nil {
		name = l.node.name
	}
	switch l.place {
	case hostSends:
		return name + ": host"
	case hostReceives:
		return name + ": host, from " + l.port
	case bridgeReceives:
		return name + ": gateway bridge, from " + l.port
	case plainReceives, tunnelReceives:
		return name + ": bridge, from " + l.port
	case switchReceives, switchOutput:
		return name + ": logical switch port " + l.port
	case routerReceives, routerRejects:
		return name + ": logical router port " + l.port
	case podSends:
		return name + ": pod " + l.port
	}
	return name + ": external network"
}

// drop ends the packet.
func (r *run) drop(cause packet.Cause, reason string) (location, error) {
	r.Drop(cause, reason)
	return location{}, nil
}

// deliver ends the packet at a receiver.
func (r *run) deliver(at Point, reason string) (location, error) {
	r.done = true
	r.verdict = Verdict{Delivered: true, At: at, Seen: r.Packet, Reason: reason}
	return location{}, nil
}

// start turns a Point into a location and sets the fields that the sender would choose.
func (r *run) start(at Point, p *packet.Packet) (location, error) {
	switch p.Protocol {
	case cluster.TCP, cluster.UDP, cluster.SCTP:
	default:
		return location{}, fmt.Errorf("%s is not a protocol of Services", p.Protocol)
	}
	switch {
	case !p.Dst.IsValid():
		return location{}, errors.New("the packet has no destination")
	case p.Src.IsValid() && cluster.FamilyOf(p.Src) != cluster.FamilyOf(p.Dst):
		return location{}, fmt.Errorf("from %s to %s: not of one family", p.Src, p.Dst)
	case at.Pod != (cluster.Owner{}):
		return r.startPod(at, p)
	case at.Node == "":
		if !p.Src.IsValid() {
			return location{}, errors.New("a packet from outside needs a source address")
		}
		return location{place: outsideReceives}, nil
	}
	n, err := r.w.node(at.Node)
	return location{place: hostSends, node: n}, err
}

// answer follows the receiver's reply, or the rejection, to the sender.
func (r *run) answer(t *Trace) error {
	v := &t.Verdict
	back, start := packet.Packet{}, location{}
	if r.rejection != nil {
		if t.Sent.Protocol == cluster.UDP {
			v.AnswerReason = "the ICMP error is not followed"
			return nil
		}
		back, start = r.rejection.packet, r.rejection.from
	} else {
		back = v.Seen.Reply()
		var err error
		if start, err = r.start(v.At, &back); err != nil {
			return fmt.Errorf("reply: %w", err)
		}
	}
	end, err := r.follow(start, back)
	t.Reply, t.ReplyVisits, t.Costs.Reply = r.Steps, r.visits, r.Cost
	if err != nil {
		return fmt.Errorf("reply: %w", err)
	}
	v.Answer = end.Seen
	v.Answered, v.AnswerReason = checkReply(t, end)
	v.AnswerCause = end.Cause
	return nil
}

// checkReply reports whether the sender accepts the reply as an answer to its packet.
func checkReply(t *Trace, end Verdict) (bool, string) {
	sent, got := &t.Sent, &end.Seen
	switch {
	case !end.Delivered:
		return false, "the reply does not arrive: " + end.Reason
	case end.At != t.From:
		return false, "the reply goes to " + end.At.String() + " instead of " + t.From.String()
	case got.Destination() != sent.Source():
		return false, "the reply goes to " + got.Destination().String() + ", the sender is " + sent.Source().String()
	case got.Source() != sent.Destination():
		return false, "the reply comes from " + got.Source().String() + ", but the client called " +
			sent.Destination().String()
	}
	return true, "the reply comes from " + got.Source().String() + ", as the client expects"
}

// String names the point as `hairpin explain` does: "host/node-a", "pod/default/web-1", "outside".
func (p Point) String() string {
	switch {
	case p.Pod != (cluster.Owner{}):
		return "pod/" + p.Pod.Namespace + "/" + p.Pod.Name
	case p.Node != "":
		return "host/" + p.Node
	}
	return "outside"
}
