// Package openflow evaluates the flows of one bridge for one packet: tables, matches, conjunctions,
// groups and actions.
//
// Input: the flows and groups of the State, a packet, and its ingress port. Output: the packets
// that leave the bridge, each with its egress port and its tunnel. What is behind a port is not
// known here.
//
// Invariants: an action, a match or a table that the package does not know is an error. Two flows
// of one priority that match with different actions are an error, because the switch may take
// either. A group takes the preferred bucket, not the one that the datapath hashes to.
package openflow

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/pipeline"
	"hairpin/walk/conntrack"
	"hairpin/walk/packet"
	"hairpin/walk/path"
)

// registers hold what flows recorded about a packet on a bridge: the group and its chosen bucket,
// and the profile of policies.
type registers struct{ group, bucket, profile uint32 }

// Output is a packet that left the bridge, with its egress port.
type Output struct {
	Port   string
	Packet packet.Packet
	Tunnel flow.Tunnel // set by flows
}

// Result is what the bridge does with a packet: it drops it if there is no output.
type Result struct {
	Outputs []Output
	Denied  string // which policies drop the packet, and in which direction
}

// crossing is a packet's path through a bridge.
type crossing struct {
	*path.Path
	b  *Bridge
	in string
	Result
	tables int // lookups so far
	registers
	tunnel flow.Tunnel // by which the packet arrived, or will leave
}

// NoFlow is the rule of a step in a table that has no flow for the packet.
const NoFlow = "no flow"

// maxTables limits the lookups of one packet: Open vSwitch gives up at 64 resubmits.
const maxTables = 64

// Receive takes a packet through the bridge, from its ingress port. tunnel is how it arrived.
func (b *Bridge) Receive(pkt *path.Path, in string, tunnel flow.Tunnel) (Result, error) {
	for _, u := range b.state.Unknown {
		if u.Bridge == b.Key {
			return Result{}, fmt.Errorf("%s has a flow that cannot be parsed: %s", b.Name, u.Flow)
		}
	}
	pkt.CT = conntrack.State{}
	c := &crossing{Path: pkt, b: b, in: in, tunnel: tunnel}
	err := c.table(0)
	pkt.CT = conntrack.State{}
	return c.Result, err
}

// table looks the packet up in a table and applies the flow's actions.
func (c *crossing) table(number uint8) error {
	if c.tables++; c.tables > maxTables {
		return fmt.Errorf("%s: more than %d lookups", c.b.Name, maxTables)
	}
	t := c.b.tables[number]
	if t == nil {
		t = newTable(c.b, number)
	}
	f, rival, err := t.lookup(c.match())
	switch {
	case err != nil:
		return err
	case f == nil && number == pipeline.SvcSessionAffinity: // learned flows are not read
		c.Step(t.stage, NoFlow, cluster.Owner{}, "a client that is not remembered")
		return nil
	case f == nil:
		c.Step(t.stage, NoFlow, cluster.Owner{}, "drops it")
		return nil
	case rival != nil:
		return fmt.Errorf("%s: two flows of one priority match, the switch may take either: %s; %s", t.stage, f, rival)
	}
	i := len(c.Steps)
	if c.b.Key == claims.ServiceBridge && number == pipeline.SvcPolicyDrop && i > 0 {
		c.Denied = denial(&c.Steps[i-1])
	}
	c.Step(t.stage, f, f.Owner, "")
	did, err := c.actions(f, i)
	c.Steps[i].Did = did
	return err
}

// denial describes which policies drop a packet, and in which direction. last is the step in a
// table of policies that sends the packet to SvcPolicyDrop.
func denial(last *packet.Step) string {
	direction := "egress"
	if strings.Contains(last.Stage, " Ingress") {
		direction = "ingress"
	}
	if last.Why.Kind == "ClusterNetworkPolicy" {
		return fmt.Sprintf("%s denied by %s", direction, last.Why)
	}
	return fmt.Sprintf("%s of %s: no rule of its policies accepts it", direction, last.Why)
}

// match returns the packet's fields for a table lookup. The packet is no fragment and has a high
// TTL. No field says how its connection began.
func (c *crossing) match() flow.Match {
	p, ct := &c.Packet, &c.CT
	m := flow.Match{
		InPort: c.in, Protocol: flow.ProtocolOf(cluster.FamilyOf(p.Dst), p.Protocol),
		Tagged: p.VLAN != 0, EthSrc: p.EthSrc, EthDst: p.EthDst, PktMark: p.Mark,
		Src: netip.PrefixFrom(p.Src, p.Src.BitLen()), Dst: netip.PrefixFrom(p.Dst, p.Dst.BitLen()),
		SrcPort: p.SrcPort, DstPort: p.DstPort,
		CTState: flow.CTState{Set: ct.Bits},
		CTMark:  ct.Mark(),
		Group:   c.group, Bucket: c.bucket, Profile: c.profile, Tunnel: c.tunnel,
	}
	if p.Protocol == cluster.TCP {
		m.TCPFlags = flow.NoSYN
		if ct.Bits&(flow.CTEst|flow.CTRpl) == 0 { // a walk begins with a SYN
			m.TCPFlags = flow.SYN
		}
	}
	return m
}

// actions applies a flow's actions in order. i is the index of the flow's step. After of the step
// is the packet as the last action finds it; a ct action changes After as well.
func (c *crossing) actions(f *flow.Flow, i int) (did string, err error) {
	add := func(words string) {
		if did != "" && words != "" {
			did += ", "
		}
		did += words
	}
	if err := actionsKnown(f); err != nil {
		return "unknown actions", err
	}
	for k, action := range f.Actions {
		c.Steps[i].After = c.Packet
		switch a := action.(type) {
		case flow.Output:
			if a.Port == c.in {
				add("not back out of " + a.Port)
				continue // output to the ingress port needs in_port
			}
			add("out of " + a.Port)
			c.Outputs = append(c.Outputs, Output{a.Port, c.Packet, c.tunnel})
		case flow.InPort:
			add("back out of " + c.in)
			c.Outputs = append(c.Outputs, Output{c.in, c.Packet, c.tunnel})
		case flow.Normal:
			port := c.normal()
			if port == "" || port == c.in {
				add("switched to no other port")
				continue
			}
			add("switched to " + port)
			c.Outputs = append(c.Outputs, Output{port, c.Packet, c.tunnel})
		case flow.Drop:
			add("drops it")
		case flow.Resubmit:
			c.Steps[i].Did = did
			err := c.table(a.Table)
			add("resubmitted to " + pipeline.Name(pipeline.Bridge(c.b.Key), a.Table))
			if err != nil {
				return did, err
			}
		case flow.SetGroup, flow.SetProfile, flow.SetTunnel:
			add(c.setRegister(a))
		case flow.Learn:
			add(fmt.Sprintf("remembers the client's bucket for %s", time.Duration(a.Timeout)*time.Second))
		case flow.CT:
			if a.Table != 0 && k < len(f.Actions)-1 {
				return did, fmt.Errorf("%s: actions after a ct with a table are not known", f.Key)
			}
			add(c.ctAction(a, i))
			c.Steps[i].After = c.Packet
			if a.Table == 0 {
				continue
			}
			c.Steps[i].Did = did
			return did, c.table(a.Table)
		case flow.ToGroup:
			if k < len(f.Actions)-1 {
				return did, fmt.Errorf("%s: actions after a group are not known", f.Key)
			}
			add("group " + strconv.FormatUint(uint64(a.ID), 10))
			c.Steps[i].Did = did
			return did, c.toGroup(a.ID)
		default:
			words, known := c.rewrite(action)
			if !known {
				return did, fmt.Errorf("%s: action %T is not known", f.Key, action)
			}
			add(words)
		}
	}
	return did, nil
}

// actionsKnown returns an error for a flow that was read back with actions that did not parse.
func actionsKnown(f *flow.Flow) error {
	if len(f.Actions) == 0 {
		return fmt.Errorf("%s: the actions are not known", f.Key)
	}
	switch a := f.Actions[0].(type) { // TestClosedSets reads the cases
	case flow.UnknownActions:
		return fmt.Errorf("%s: the actions are not known: %s", f.Key, cmp.Or(a.Attributes, a.Text))
	}
	return nil
}

// setRegister records what a flow sets besides fields of the packet: the group, the profile or the
// tunnel.
func (c *crossing) setRegister(action flow.Action) (did string) {
	switch a := action.(type) {
	case flow.SetGroup:
		c.group = a.ID
		return "for group " + strconv.FormatUint(uint64(a.ID), 10)
	case flow.SetProfile:
		c.profile = a.ID
		return fmt.Sprintf("by profile 0x%x", a.ID)
	case flow.SetTunnel:
		c.tunnel = a.Tunnel
		return "for the tunnel to " + a.Peer.String()
	}
	return ""
}

// rewrite applies an action that only changes the packet.
func (c *crossing) rewrite(action flow.Action) (did string, known bool) {
	switch a := action.(type) {
	case flow.SetEthDst:
		c.EthDst = a.MAC
		return "to MAC " + packet.MACText(a.MAC), true
	case flow.SetEthSrc:
		c.EthSrc = a.MAC
		return "from MAC " + packet.MACText(a.MAC), true
	case flow.SetSrc:
		c.Src = a.Addr
		return "from " + a.Addr.String(), true
	case flow.MoveEthDstToSrc:
		c.EthSrc = c.EthDst
		return "from MAC " + packet.MACText(c.EthSrc), true
	case flow.SetEthDstByCT:
		if c.CT.Entry == nil {
			return "", false
		}
		c.EthDst = c.CT.Entry.From
		return "to MAC " + packet.MACText(c.EthDst), true
	case flow.SetTTL: // no field of a walked packet, which has a high TTL
		return "", true
	case flow.MarkLonger: // a walked packet is short
		return "", true
	case flow.SetPktMark:
		if c.Mark != a.Mark {
			did = fmt.Sprintf("mark 0x%x", a.Mark)
		}
		c.Mark = a.Mark
		return did, true
	}
	return "", false
}

// toGroup sends the packet to one bucket of a group, which the datapath chooses by hash.
func (c *crossing) toGroup(id uint32) error {
	g := c.b.state.Groups.At(flow.GroupKey{Bridge: c.b.Key, ID: id})
	if g == nil || len(g.Buckets) == 0 {
		return fmt.Errorf("%s has no group %d, or one without buckets", c.b.Name, id)
	}
	var ends []netip.AddrPort
	for _, b := range g.Buckets {
		ct := b.CT
		if b.Next != 0 {
			ct = c.b.bucketCT(b.Next, id, b.ID)
		}
		if ct.Table == 0 {
			return fmt.Errorf("%s: a bucket that ends the packet is not known", g)
		}
		ends = append(ends, netip.AddrPortFrom(ct.NAT.Addr, ct.NAT.PortMin))
	}
	b := g.Buckets[c.Choose(ends)]
	if g.Hashed == flow.Any {
		c.Recirculate() // the datapath hashes first
	}
	i := len(c.Steps)
	s := c.Step(c.b.Name+" group "+strconv.FormatUint(uint64(id), 10), g, g.Owner, "")
	if len(ends) > 1 {
		s.Choices = ends
	}
	did, next := "bucket "+strconv.FormatUint(uint64(b.ID), 10), b.Next
	if next == 0 {
		next, did = b.CT.Table, did+": "+c.ctAction(b.CT, i)
	} else {
		c.bucket = b.ID
	}
	c.Steps[i].Did, c.Steps[i].After = did, c.Packet
	return c.table(next)
}

// bucketCT returns the ct action of the flow for a group's bucket in a table (session affinity);
// zero if there is none.
func (b *Bridge) bucketCT(table uint8, group, bucket uint32) flow.CT {
	if t := b.tables[table]; t != nil {
		for _, f := range t.others {
			if len(f.Actions) == 0 || f.Match.Group != group || f.Match.Bucket != bucket {
				continue
			}
			if ct, ok := f.Actions[len(f.Actions)-1].(flow.CT); ok {
				return ct
			}
		}
	}
	return flow.CT{}
}

// ctAction applies a ct action. A ct without a table translates the packet in place, and leaves no
// ct_state.
func (c *crossing) ctAction(a flow.CT, step int) string {
	before := c.Packet
	zone := strconv.Itoa(int(a.Zone))
	t := conntrack.Translation{Commit: a.Commit, NAT: a.NAT.Kind, Addr: a.NAT.Addr, Mark: a.Mark,
		MarkMask: a.MarkMask, EthSrc: a.EthSrc, Inline: a.Table == 0}
	if t.NAT == flow.NATDst {
		t.Port = a.NAT.PortMin
	} else {
		t.Ports = conntrack.PortRange{Min: a.NAT.PortMin, Max: a.NAT.PortMax}
	}
	made := c.Track(zone, t)
	did := c.Changed(&before)
	switch {
	case made != nil:
		c.Steps[step].Entry = made.String()
		did = cmp.Or(did, "committed")
	case c.CT.Entry == nil:
		did = cmp.Or(did, "new")
	default:
		did = cmp.Or(did, "known")
	}
	did = "conntrack zone " + zone + ": " + did
	if a.Mark != 0 && made != nil {
		did += ", mark " + strconv.Itoa(int(a.Mark))
		if a.EthSrc {
			did += ", answers to MAC " + packet.MACText(made.From)
		}
	}
	if a.Table == 0 {
		c.CT = conntrack.State{}
		return did
	}
	return did + "; on to " + pipeline.Name(pipeline.Bridge(c.b.Key), a.Table)
}

// normal is the learning switch on a bridge of three ports. The bridge's own MAC is known on LOCAL
// (by Open vSwitch itself, or by a static entry). OVN's external port has the same MAC, so NORMAL
// never sends to OVN. All other MACs are on the external network.
func (c *crossing) normal() string {
	switch {
	case c.b.info == nil:
		return ""
	case c.EthDst == c.b.info.Gateway.MAC:
		return flow.Local
	}
	return c.b.info.Gateway.Uplink
}
