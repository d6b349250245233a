package walk

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
)

// registers hold what flows recorded about a packet on a bridge: the group and its chosen bucket,
// and the profile of policies.
type registers struct{ group, bucket, profile uint32 }

// sent is a packet that left the bridge, with its egress port.
type sent struct {
	port   string
	packet Packet
	tunnel flow.Tunnel // set by flows
}

// crossing is a packet's path through a bridge.
type crossing struct {
	n       *node
	b       *bridge
	in      string
	outputs []sent
	tables  int // lookups so far
	registers
	tunnel  flow.Tunnel // by which the packet arrived, or will leave
	headers flow.Match  // in the current table
	denied  string      // which policies drop the packet, and in which direction
}

// NoFlow is the rule of a step in a table that has no flow for the packet.
const NoFlow = "no flow"

// maxTables limits the lookups of one packet: Open vSwitch gives up at 64 resubmits.
const maxTables = 64

// bridgeReceives takes a packet through the gateway bridge, or another of our bridges.
func (r *run) bridgeReceives(n *node, in string) (location, error) {
	b := n.bridgeOf(in)
	if b.name == "" {
		return location{}, fmt.Errorf("the State has no gateway bridge")
	}
	for _, u := range n.state.Bridge.Unknown {
		if u.Bridge == b.key {
			return location{}, fmt.Errorf("%s has a flow that cannot be parsed: %s", b.name, u.Flow)
		}
	}
	r.ctState = tracking{}
	r.visits[len(r.visits)-1].Bridge = b.name
	c := &crossing{n: n, b: b, in: in, tunnel: r.tunnel}
	r.visits[len(r.visits)-1].Tunnel, r.tunnel = r.tunnel, flow.Tunnel{}
	if err := r.table(c, 0); err != nil {
		return location{}, err
	}
	_, group := groupMAC(r.p.Dst)
	switch {
	case len(c.outputs) == 0 && c.denied != "":
		return r.drop(ByPolicies, c.denied)
	case len(c.outputs) == 0:
		return r.drop(ByRule, b.name+" drops it")
	case group && b.key != "":
		return r.flooded(n, b, c.outputs)
	case len(c.outputs) > 1:
		return location{}, fmt.Errorf("the packet leaves %s through %s and %s: multiple outputs are not modelled",
			b.name, c.outputs[0].port, c.outputs[1].port)
	}
	r.p = c.outputs[0].packet
	r.ctState = tracking{}
	r.visits[len(r.visits)-1].Out = c.outputs[0].port
	switch out := c.outputs[0].port; {
	case b.key != "":
		return r.afterOutput(n, b, c.outputs[0])
	case out == flow.Local:
		return location{hostReceives, n, b.name}, nil
	case b.patch[out] != "":
		return location{switchReceives, n, b.patch[out]}, nil
	case out == n.uplink():
		r.p.Mark = 0
		return location{outsideReceives, n, ""}, nil
	default:
		return n.behindPort(b, out)
	}
}

// table looks the packet up in a table and applies the flow's actions.
func (r *run) table(c *crossing, number uint8) error {
	if c.tables++; c.tables > maxTables {
		return fmt.Errorf("%s: more than %d lookups", c.b.name, maxTables)
	}
	c.headers = r.headers(c)
	t := c.b.tables[number]
	if t == nil {
		t = newTable(c.b, number)
	}
	f, rival, err := t.lookup(c.headers)
	switch {
	case err != nil:
		return err
	case f == nil && number == pipeline.SvcSessionAffinity: // learned flows are not read
		r.step(c.n, t.stage, NoFlow, cluster.Owner{}, "a client that is not remembered")
		return nil
	case f == nil:
		r.step(c.n, t.stage, NoFlow, cluster.Owner{}, "drops it")
		return nil
	case rival != nil:
		return fmt.Errorf("%s: two flows of one priority match, the switch may take either: %s; %s", t.stage, f, rival)
	}
	i := len(r.steps)
	if c.b.key == claims.ServiceBridge && number == pipeline.SvcPolicyDrop && i > 0 {
		last := &r.steps[i-1]
		direction := "egress"
		if strings.Contains(last.Stage, " Ingress") {
			direction = "ingress"
		}
		c.denied = fmt.Sprintf("%s of %s: no rule of its policies accepts it", direction, last.Why)
		if last.Why.Kind == "ClusterNetworkPolicy" {
			c.denied = fmt.Sprintf("%s denied by %s", direction, last.Why)
		}
	}
	r.step(c.n, t.stage, f, f.Owner, "")
	did, err := r.actions(c, f, i)
	r.steps[i].Did = did
	return err
}

// headers returns the packet's fields for a table lookup. The packet is no fragment and has a high
// TTL. No field says how its connection began.
func (r *run) headers(c *crossing) flow.Match {
	p, ct := &r.p, &r.ctState
	m := flow.Match{
		InPort: c.in, Protocol: flow.ProtocolOf(cluster.FamilyOf(p.Dst), p.Protocol),
		Tagged: p.VLAN != 0, EthSrc: p.EthSrc, EthDst: p.EthDst, PktMark: p.Mark,
		Src: netip.PrefixFrom(p.Src, p.Src.BitLen()), Dst: netip.PrefixFrom(p.Dst, p.Dst.BitLen()),
		SrcPort: p.SrcPort, DstPort: p.DstPort,
		CTState: flow.CTState{Set: ct.bits},
		Group:   c.group, Bucket: c.bucket, Profile: c.profile, Tunnel: c.tunnel,
	}
	if ct.entry != nil {
		m.CTMark = ct.entry.mark
	}
	if p.Protocol == cluster.TCP {
		m.TCPFlags = flow.NoSYN
		if ct.bits&(flow.CTEst|flow.CTRpl) == 0 { // a walk begins with a SYN
			m.TCPFlags = flow.SYN
		}
	}
	return m
}

// actions applies a flow's actions in order. i is the index of the flow's step, which shows the
// packet after the last of the flow's own actions.
func (r *run) actions(c *crossing, f *flow.Flow, i int) (did string, err error) {
	say := func(words string) {
		if did != "" && words != "" {
			did += ", "
		}
		did += words
	}
	if err := actionsKnown(f); err != nil {
		return "unknown actions", err
	}
	for k, action := range f.Actions {
		r.steps[i].After = r.p
		switch a := action.(type) {
		case flow.Output:
			if a.Port == c.in {
				say("not back out of " + a.Port)
				continue // output to the ingress port needs in_port
			}
			say("out of " + a.Port)
			c.outputs = append(c.outputs, sent{a.Port, r.p, c.tunnel})
		case flow.InPort:
			say("back out of " + c.in)
			c.outputs = append(c.outputs, sent{c.in, r.p, c.tunnel})
		case flow.Normal:
			port := c.normal(&r.p)
			if port == "" || port == c.in {
				say("switched to no other port")
				continue
			}
			say("switched to " + port)
			c.outputs = append(c.outputs, sent{port, r.p, c.tunnel})
		case flow.Drop:
			say("drops it")
		case flow.Resubmit:
			r.steps[i].Did = did
			err := r.table(c, a.Table)
			say("resubmitted to " + pipeline.Name(pipeline.Bridge(c.b.key), a.Table))
			if err != nil {
				return did, err
			}
		case flow.SetGroup, flow.SetProfile, flow.SetTunnel:
			say(c.note(a))
		case flow.Learn:
			say(fmt.Sprintf("remembers the client's bucket for %s", time.Duration(a.Timeout)*time.Second))
		case flow.CT:
			if a.Table != 0 && k < len(f.Actions)-1 {
				return did, fmt.Errorf("%s: actions after a ct with a table are not known", f.Key)
			}
			say(r.ctAction(c, a, i))
			r.steps[i].After = r.p
			if a.Table == 0 {
				continue
			}
			r.steps[i].Did = did
			return did, r.table(c, a.Table)
		case flow.ToGroup:
			if k < len(f.Actions)-1 {
				return did, fmt.Errorf("%s: actions after a group are not known", f.Key)
			}
			say("group " + strconv.FormatUint(uint64(a.ID), 10))
			r.steps[i].Did = did
			return did, r.group(c, a.ID)
		default:
			words, known := r.rewrite(action)
			if !known {
				return did, fmt.Errorf("%s: action %T is not known", f.Key, action)
			}
			say(words)
		}
	}
	return did, nil
}

// actionsKnown returns an error for a flow that was read back with actions that did not parse.
func actionsKnown(f *flow.Flow) error {
	if len(f.Actions) == 0 {
		return fmt.Errorf("%s: the actions are not known", f.Key)
	}
	switch a := f.Actions[0].(type) {
	case flow.UnknownActions:
		return fmt.Errorf("%s: the actions are not known: %s", f.Key, cmp.Or(a.Attributes, a.Text))
	}
	return nil
}

// note records what a flow sets besides the packet: its group, its profile or its tunnel.
func (c *crossing) note(action flow.Action) (did string) {
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
func (r *run) rewrite(action flow.Action) (did string, known bool) {
	switch a := action.(type) {
	case flow.SetEthDst:
		r.p.EthDst = a.MAC
		return "to MAC " + ethernet(a.MAC), true
	case flow.SetEthSrc:
		r.p.EthSrc = a.MAC
		return "from MAC " + ethernet(a.MAC), true
	case flow.SetSrc:
		r.p.Src = a.Addr
		return "from " + a.Addr.String(), true
	case flow.MoveEthDstToSrc:
		r.p.EthSrc = r.p.EthDst
		return "from MAC " + ethernet(r.p.EthSrc), true
	case flow.SetEthDstByCT:
		if r.ctState.entry == nil {
			return "", false
		}
		r.p.EthDst = r.ctState.entry.from
		return "to MAC " + ethernet(r.p.EthDst), true
	case flow.SetTTL: // the packet of a walk has a high TTL
		return "", true
	case flow.MarkLonger: // and is short
		return "", true
	case flow.SetPktMark:
		if r.p.Mark != a.Mark {
			did = fmt.Sprintf("mark 0x%x", a.Mark)
		}
		r.p.Mark = a.Mark
		return did, true
	}
	return "", false
}

// group sends the packet to one bucket of a group, which the datapath chooses by hash.
func (r *run) group(c *crossing, id uint32) error {
	g := c.n.state.Bridge.Groups.At(flow.GroupKey{Bridge: c.b.key, ID: id})
	if g == nil || len(g.Buckets) == 0 {
		return fmt.Errorf("%s has no group %d, or one without buckets", c.b.name, id)
	}
	var ends []netip.AddrPort
	for _, b := range g.Buckets {
		ct := b.CT
		if b.Next != 0 {
			ct = c.b.remembered(b.Next, id, b.ID)
		}
		if ct.Table == 0 {
			return fmt.Errorf("%s: a bucket that ends the packet is not known", g)
		}
		ends = append(ends, netip.AddrPortFrom(ct.NAT.Addr, ct.NAT.PortMin))
	}
	b := g.Buckets[r.choose(ends)]
	if g.Hashed == flow.Any {
		r.recirculate() // the datapath hashes first
	}
	i := len(r.steps)
	s := r.step(c.n, c.b.name+" group "+strconv.FormatUint(uint64(id), 10), g, g.Owner, "")
	if len(ends) > 1 {
		s.Choices = ends
	}
	did, next := "bucket "+strconv.FormatUint(uint64(b.ID), 10), b.Next
	if next == 0 {
		next, did = b.CT.Table, did+": "+r.ctAction(c, b.CT, i)
	} else {
		c.bucket = b.ID
	}
	r.steps[i].Did, r.steps[i].After = did, r.p
	return r.table(c, next)
}

// remembered returns the ct action that a table has for a group and a bucket; zero if no flow
// matches them.
func (b *bridge) remembered(table uint8, group, bucket uint32) flow.CT {
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
func (r *run) ctAction(c *crossing, a flow.CT, step int) string {
	before := r.p
	z := c.n.zone(strconv.Itoa(int(a.Zone)))
	t := translation{commit: a.Commit, nat: a.NAT.Kind, addr: a.NAT.Addr, mark: a.Mark, markMask: a.MarkMask,
		ethSrc: a.EthSrc,
		inline: a.Table == 0}
	if t.nat == flow.NATDst {
		t.port = a.NAT.PortMin
	} else {
		t.ports = portRange{a.NAT.PortMin, a.NAT.PortMax}
	}
	made := r.track(z, t)
	did := changed(&before, &r.p)
	switch {
	case made != nil:
		r.steps[step].Entry = made.String()
		did = cmp.Or(did, "committed")
	case r.ctState.entry == nil:
		did = cmp.Or(did, "new")
	default:
		did = cmp.Or(did, "known")
	}
	did = "conntrack zone " + z.name + ": " + did
	if a.Mark != 0 && made != nil {
		did += ", mark " + strconv.Itoa(int(a.Mark))
		if a.EthSrc {
			did += ", answers to MAC " + ethernet(made.from)
		}
	}
	if a.Table == 0 {
		r.ctState = tracking{}
		return did
	}
	return did + "; on to " + pipeline.Name(pipeline.Bridge(c.b.key), a.Table)
}

// normal is the learning switch on a bridge of three ports. The bridge's own MAC is known on LOCAL
// (by Open vSwitch itself, or by a static entry). OVN's external port has the same MAC, so NORMAL
// never sends to OVN. All other MACs are on the external network.
func (c *crossing) normal(p *Packet) string {
	if c.n.info != nil && p.EthDst == c.n.info.Gateway.MAC {
		return flow.Local
	}
	return c.n.uplink()
}

func ethernet(m cluster.MAC) string {
	if m == (cluster.MAC{}) {
		return "of a machine outside"
	}
	const hex = "0123456789abcdef"
	var b [17]byte
	for i, x := range m {
		b[3*i], b[3*i+1] = hex[x>>4], hex[x&15]
		if i > 0 {
			b[3*i-1] = ':'
		}
	}
	return string(b[:])
}
