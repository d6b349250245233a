// Package path holds a packet on its way through nodes, as all interpreters share it: the packet,
// its state in conntrack, and what it has met so far.
//
// Input: the packet as it was sent, the connections of earlier packets, and the preferred choices.
// Output: the steps, the passes through conntrack, the cost, and the end if the packet was dropped
// or rejected.
//
// Invariants: an interpreter changes the packet only through its Path, and adds a step for each
// rule that the packet meets. After a packet has ended, no interpreter changes it.
package path

import (
	"net/netip"

	"hairpin/cluster"
	"hairpin/walk/conntrack"
	"hairpin/walk/packet"
)

// Path is a packet on its way.
type Path struct {
	packet.Packet
	Node      string          // where the packet is
	Userspace bool            // whether Open vSwitch there has the userspace datapath
	CT        conntrack.State // of this packet, in Open vSwitch
	// Recirculations counts the recirculations of the packet since it entered the node's Open
	// vSwitch.
	Recirculations int
	Cost           packet.Cost // of this packet, so far
	Steps          []packet.Step
	Passes         []packet.Pass  // since the packet entered the bridge where it is
	Sent           *packet.Packet // by the sending host, with the source address that it chose
	End            *End           // nil: the packet has not ended, or was delivered

	Connections conntrack.Table
	Prefer      []netip.AddrPort // endpoints and next hops that are chosen if possible
	*Texts
}

// End says why a packet ended before it arrived.
type End struct {
	Rejected bool // its sender gets a TCP reset, an SCTP abort or an ICMP error
	Cause    packet.Cause
	Reason   string // a sentence
	// Connection is that of a packet that nft rejects: the kernel translates the refusal back as it
	// translates the packet (nf_ct_attach).
	Connection *conntrack.Connection
}

// Start begins the path of another packet. Connections stay.
func (p *Path) Start(sent packet.Packet) {
	p.Packet, p.End, p.Cost = sent, nil, packet.Cost{}
	p.Steps, p.Passes = make([]packet.Step, 0, 20), nil
}

// Drop ends the packet. It returns what an interpreter returns then: there is no next port.
func (p *Path) Drop(cause packet.Cause, reason string) (next string, err error) {
	p.End = &End{Cause: cause, Reason: reason}
	return "", nil
}

// Reject ends the packet, and its sender gets a refusal.
func (p *Path) Reject(cause packet.Cause, reason string) {
	p.End = &End{Rejected: true, Cause: cause, Reason: reason}
}

// DropOr drops the packet by a rule, or returns err. A packet that was rejected has already ended.
func (p *Path) DropOr(err error, reason string) (next string, _ error) {
	if err != nil || p.End != nil {
		return "", err
	}
	return p.Drop(packet.ByRule, reason)
}

// Step adds a step. rule is a value that Texts can print.
func (p *Path) Step(stage string, rule any, why cluster.Owner, did string) *packet.Step {
	p.Steps = append(p.Steps,
		packet.Step{Node: p.Node, Stage: stage, Rule: p.Texts.rule(rule), Did: did, Why: why, After: p.Packet})
	return &p.Steps[len(p.Steps)-1]
}

// Choose returns the index of the preferred alternative, else 0.
func (p *Path) Choose(of []netip.AddrPort) int {
	for _, x := range p.Prefer {
		for i, a := range of {
			if a == x {
				return i
			}
		}
	}
	return 0
}

// Zone returns a conntrack zone of Open vSwitch on the node where the packet is.
func (p *Path) Zone(name string) conntrack.Zone {
	return conntrack.Zone{Node: p.Node, Name: name, Userspace: p.Userspace}
}

// Track sends the packet through a zone of Open vSwitch. made is the committed entry, nil if none.
func (p *Path) Track(zone string, t conntrack.Translation) (made *conntrack.Entry) {
	p.Cost.Passes++
	made = p.Connections.Track(&p.Packet, &p.CT, p.Zone(zone), t)
	if !t.Inline {
		p.Recirculate()
		pass := packet.Pass{State: p.CT.Bits, After: p.Packet}
		if e := p.CT.Entry; e != nil {
			pass.Mark, pass.From = e.Mark, e.From
		}
		p.Passes = append(p.Passes, pass)
	}
	return made
}

// Recirculate counts one more lookup in the datapath.
func (p *Path) Recirculate() {
	p.Recirculations++
	p.Cost.Lookups++
}
