package walk

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/flow"
)

// clientPort is the source port of a packet without one: the first of Linux' ip_local_port_range.
const clientPort = 32768

// maxSteps limits the steps of one path; the longest path in the documents has about 40.
const maxSteps = 300

// Walker walks packets through one World. It keeps what it derives from the States between walks,
// so the States must not change. It is not safe for concurrent use.
type Walker struct {
	world  World
	nodes  map[string]*node
	owners map[netip.Addr]string // node that answers for an address on the external network
	texts  map[any]string        // rules as text
	joined map[[2]string]string
}

// New returns a Walker for a World. It reads a State only when a packet reaches the node.
func New(w World) *Walker {
	if w.Snapshot == nil {
		w.Snapshot = &cluster.Snapshot{}
	}
	return &Walker{world: w, nodes: map[string]*node{}, texts: map[any]string{}, joined: map[[2]string]string{}}
}

// Walk follows a packet from where it starts to where it ends, then the reply back. Without a
// source address, it uses the one that the sender would choose; without a source port, 32768.
//
// Where a load balancer or an equal-cost route has several targets, Walk takes the first element of
// prefer that is among them, else the first target. A next hop is given with port 0.
//
// An error means that the packet met something that walk does not know, or looped. The Trace then
// has the steps up to that point.
func (w *Walker) Walk(at Point, p Packet, prefer ...netip.AddrPort) (Trace, error) {
	return (&run{w: w, prefer: prefer}).walk(at, p)
}

// Connections are the conntrack entries of all nodes that walks of Send left behind. The zero value
// has none.
type Connections struct{ ct conntrack }

// Send follows one packet without its reply. It meets connections of earlier packets, also of walks
// through another World, and adds its own.
func (w *Walker) Send(c *Connections, at Point, p Packet) (Trace, error) {
	r := &run{w: w, ct: c.ct}
	t, err := r.oneWay(at, p)
	c.ct = r.ct
	return t, err
}

// run is one walk: one connection, without any others.
type run struct {
	w      *Walker
	prefer []netip.AddrPort
	ct     conntrack

	p       Packet
	ctState tracking    // of this packet, in Open vSwitch
	tunnel  flow.Tunnel // by which this packet arrived
	// recirculations counts the recirculations of the packet since it entered the node's Open
	// vSwitch.
	recirculations int
	cost           Cost    // of this packet, so far
	sent           *Packet // by the sending host, with the source address that it chose
	steps          []Step
	visits         []Visit
	visiting       bool // the last of visits is not finished
	since          int  // number of steps before it
	verdict        Verdict
	done           bool
	refusal        *refusal
}

// walk is Walker.Walk.
func (r *run) walk(at Point, p Packet) (Trace, error) {
	t, err := r.oneWay(at, p)
	if err != nil || !t.Verdict.Delivered && r.refusal == nil {
		return t, err
	}
	err = r.answer(&t)
	return t, err
}

// oneWay follows a packet to where it ends.
func (r *run) oneWay(at Point, p Packet) (Trace, error) {
	if p.SrcPort == 0 {
		p.SrcPort = clientPort
	}
	start, err := r.start(at, &p)
	t := Trace{From: at, Sent: p}
	if err == nil {
		t.Verdict, err = r.follow(start, p)
	}
	t.Forward, t.ForwardVisits, t.Costs.First = r.steps, r.visits, r.cost
	if r.sent != nil {
		t.Sent = *r.sent
	}
	return t, err
}

// refusal is the packet with which a load balancer or nft rejects another one.
type refusal struct {
	from   location
	packet Packet
	flags  routerFlags // of the router that rejects
	// track is the connection of the packet that nft rejects: the kernel translates the refusal
	// back as it translates the packet (nf_ct_attach).
	track *hostTrack
}

// place is a kind of location.
type place uint8

const (
	hostSends      place = iota + 1 // a process of the host sends
	hostReceives                    // a frame arrives by a link; port: the link
	bridgeReceives                  // port: of the gateway bridge
	// port: the patch port of a bridge without our flows, or a link of the host on it
	plainReceives
	switchReceives  // port: of a logical switch
	tunnelReceives  // a packet arrives by a tunnel; port: of one of our bridges
	switchOutput    // out of a port of a logical switch, all pipelines done
	routerReceives  // port: of a logical router
	routerRefuses   // egress pipeline of a logical router from lr_out_snat on; port: the egress port
	outsideReceives // the external network; node: the sender, nil: an external machine
	podSends        // port: the pod's logical port
)

// inOVS reports whether a packet at p is still in the datapath that it came through.
func (p place) inOVS() bool {
	switch p {
	case bridgeReceives, plainReceives, switchReceives, switchOutput, routerReceives, routerRefuses:
		return true
	}
	return false
}

// inOVN reports whether a packet at p is in OVN's bridge.
func (p place) inOVN() bool {
	switch p {
	case switchReceives, switchOutput, routerReceives, routerRefuses:
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
func (r *run) follow(at location, p Packet) (Verdict, error) {
	r.p, r.done, r.verdict, r.cost = p, false, Verdict{}, Cost{}
	r.steps, r.visits = make([]Step, 0, 20), make([]Visit, 0, 4)
	defer r.leave()
	inside := false
	for !r.done {
		if at.place == tunnelReceives || at.place.inOVS() && !inside {
			r.cost.Lookups++
		}
		inside = at.place == tunnelReceives || at.place.inOVS()
		if len(r.steps) > maxSteps {
			return r.verdict, fmt.Errorf("more than %d steps: routing loop, last at %s", maxSteps, at)
		}
		r.enter(at)
		next, err := r.move(at)
		if err != nil {
			return r.verdict, fmt.Errorf("%s: %w", at, err)
		}
		if n := at.node; r.recirculations > maxRecirculations && n != nil && n.userspace() {
			r.drop(Other, fmt.Sprintf("%s: Open vSwitch's userspace datapath drops it: %d recirculations, more than %d",
				at,
				r.recirculations, maxRecirculations))
		}
		if !next.place.inOVS() {
			r.recirculations = 0
		}
		at = next
	}
	return r.verdict, nil
}

// enter records where the packet enters a bridge, and where it leaves the last one.
func (r *run) enter(at location) {
	ovn := at.place.inOVN()
	if !r.visiting || !ovn || !r.visits[len(r.visits)-1].OVN {
		r.leave()
		if ovn || at.place == bridgeReceives || at.place == plainReceives || at.place == tunnelReceives {
			r.visits = append(r.visits, Visit{Node: at.node.name, OVN: ovn, Port: at.port, In: r.p})
			r.visiting, r.since = true, len(r.steps)
		}
	}
	if r.visiting && ovn {
		v := &r.visits[len(r.visits)-1]
		if v.Out = ""; at.place == switchOutput {
			v.Out = at.port
		}
	}
}

func (r *run) leave() {
	if r.visiting {
		r.visits[len(r.visits)-1].Steps = r.steps[r.since:]
		r.visiting = false
	}
}

func (r *run) move(at location) (location, error) {
	if at.place.inOVN() && slices.Contains(at.node.state.Bridge.NoFlows, claims.IntegrationBridge) {
		return r.drop(Other, claims.IntegrationBridge+" drops it: OVN's flows are gone")
	}
	switch at.place {
	case hostSends:
		return r.hostSends(at.node)
	case hostReceives:
		return r.hostReceives(at.node, at.port)
	case bridgeReceives, tunnelReceives:
		return r.bridgeReceives(at.node, at.port)
	case plainReceives:
		return r.plainReceives(at.node, at.port)
	case switchReceives:
		return r.switchReceives(at.node, at.port)
	case switchOutput:
		return r.switchOutput(at.node, at.port)
	case routerReceives:
		return r.routerReceives(at.node, at.port)
	case routerRefuses:
		return r.routerRefuses(at.node, at.port)
	case outsideReceives:
		return r.outsideReceives(at.node)
	case podSends:
		return r.podSends(at.node, at.port)
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
	case routerReceives, routerRefuses:
		return name + ": logical router port " + l.port
	case podSends:
		return name + ": pod " + l.port
	}
	return name + ": external network"
}

// drop ends the packet.
func (r *run) drop(cause Cause, reason string) (location, error) {
	r.done = true
	r.verdict = Verdict{Cause: cause, Reason: reason}
	return location{}, nil
}

// deliver ends the packet at a receiver.
func (r *run) deliver(at Point, reason string) (location, error) {
	r.done = true
	r.verdict = Verdict{Delivered: true, At: at, Seen: r.p, Reason: reason}
	return location{}, nil
}

// refuse ends the packet and stores the refusal that its sender gets.
func (r *run) refuse(from location, flags routerFlags, cause Cause, reason string) (location, error) {
	back := Packet{Protocol: r.p.Protocol, Src: r.p.Dst, Dst: r.p.Src, SrcPort: r.p.DstPort, DstPort: r.p.SrcPort,
		EthSrc: r.p.EthDst, EthDst: r.p.EthSrc}
	r.refusal = &refusal{from: from, packet: back, flags: flags}
	r.done = true
	r.verdict = Verdict{Rejected: true, Cause: cause, Reason: reason}
	return location{}, nil
}

// step adds a step. rule is a value that Walker.rule can print.
func (r *run) step(n *node, stage string, rule any, why cluster.Owner, did string) *Step {
	name := ""
	if n != nil {
		name = n.name
	}
	r.steps = append(r.steps, Step{Node: name, Stage: stage, Rule: r.w.rule(rule), Did: did, Why: why, After: r.p})
	return &r.steps[len(r.steps)-1]
}

// start turns a Point into a location and sets the fields that the sender would choose.
func (r *run) start(at Point, p *Packet) (location, error) {
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

// answer follows the receiver's reply, or the refusal, to the sender.
func (r *run) answer(t *Trace) error {
	v := &t.Verdict
	back, start := Packet{}, location{}
	if r.refusal != nil {
		if t.Sent.Protocol == cluster.UDP {
			v.AnswerReason = "the ICMP error is not followed"
			return nil
		}
		back, start = r.refusal.packet, r.refusal.from
	} else {
		s := v.Seen
		back = Packet{Protocol: s.Protocol, Src: s.Dst, Dst: s.Src, SrcPort: s.DstPort, DstPort: s.SrcPort}
		var err error
		if start, err = r.start(v.At, &back); err != nil {
			return fmt.Errorf("reply: %w", err)
		}
	}
	end, err := r.follow(start, back)
	t.Reply, t.ReplyVisits, t.Costs.Reply = r.steps, r.visits, r.cost
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
	s, got := t.Sent, end.Seen
	switch {
	case !end.Delivered:
		return false, "the reply does not arrive: " + end.Reason
	case end.At != t.From:
		return false, "the reply goes to " + end.At.String() + " instead of " + t.From.String()
	case got.Dst != s.Src || got.DstPort != s.SrcPort:
		return false, "the reply goes to " + endpoint(got.Dst, got.DstPort) + ", the sender is " +
			endpoint(s.Src, s.SrcPort)
	case got.Src != s.Dst || got.SrcPort != s.DstPort:
		return false, "the reply comes from " + endpoint(got.Src, got.SrcPort) + ", but the client called " +
			endpoint(s.Dst, s.DstPort)
	}
	return true, "the reply comes from " + endpoint(got.Src, got.SrcPort) + ", as the client expects"
}

// choose returns the index of the preferred alternative, else 0.
func (r *run) choose(of []netip.AddrPort) int {
	for _, p := range r.prefer {
		for i, a := range of {
			if a == p {
				return i
			}
		}
	}
	return 0
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

func endpoint(a netip.Addr, port uint16) string { return netip.AddrPortFrom(a, port).String() }
