package walk

import (
	"cmp"
	"fmt"
	"slices"

	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/datapath/nb"
	"hairpin/pipeline"
)

// bridge is the gateway bridge, or a bridge that only Hairpin uses: its flows, indexed for lookup,
// and what its ports connect to.
type bridge struct {
	name   string
	key    string // in keys of flows and groups
	tables [256]*table
	patch  map[string]string // of the gateway bridge: patch port to OVN -> its localnet port
	plain  map[string]*plainBridge
	pods   map[string]cluster.MAC // of one of our bridges: port -> MAC of the pod behind it
}

// plainBridge is the bridge of another physical network of OVN. It has none of our flows: it is a
// learning switch.
type plainBridge struct{ name, patch, localnet string }

// table is an OpenFlow table. Flows that match a transport port are indexed by it, because there
// may be thousands (one per NodePort); lookup compares the few others one by one. All lists are
// sorted, highest priority first.
type table struct {
	stage        string // "br-ex Classifier"
	byDst, bySrc map[uint16][]tableFlow
	others       []tableFlow
	clauses      []tableFlow // of conjunctions
}

// tableFlow is a flow of a table, with the fields that it matches.
type tableFlow struct {
	*flow.Flow
	fields flow.Fields
}

func newBridge(n *node) *bridge {
	s := &n.state.Bridge
	b := &bridge{name: s.Bridge, patch: map[string]string{}, plain: map[string]*plainBridge{}}
	for name := range s.Bridges {
		n.further = append(n.further, &bridge{name: name, key: name, pods: map[string]cluster.MAC{}})
	}
	all := append(slices.Clone(n.further), b)
	for _, f := range s.Flows.All() {
		if i := slices.IndexFunc(all, func(b *bridge) bool { return b.key == f.Bridge }); i >= 0 {
			all[i].put(f)
		}
	}
	for _, b := range all {
		for _, t := range b.tables {
			if t != nil {
				t.sort()
			}
		}
	}
	for _, p := range n.ovn.ports {
		if p.row.Type == "localnet" {
			switch to, ok := n.mappedBridge(p.row.Options["network_name"]); {
			case ok && to == b.name:
				b.patch[patchPort(p.row)] = p.row.Name
			case ok:
				b.plain[to] = &plainBridge{to, patchPort(p.row), p.row.Name}
			}
		}
	}
	return b
}

func (b *bridge) put(f *flow.Flow) {
	t := b.tables[f.Table]
	if t == nil {
		t = newTable(b, f.Table)
		b.tables[f.Table] = t
	}
	x := tableFlow{f, f.Match.Fields()}
	switch {
	case len(f.Actions) > 0 && isClause(f.Actions[0]):
		t.clauses = append(t.clauses, x)
	case f.Match.DstPort != 0 && f.Match.DstMask == 0:
		t.byDst[f.Match.DstPort] = append(t.byDst[f.Match.DstPort], x)
	case f.Match.SrcPort != 0:
		t.bySrc[f.Match.SrcPort] = append(t.bySrc[f.Match.SrcPort], x)
	default:
		t.others = append(t.others, x)
	}
	if len(f.Actions) == 0 { // read from an agent
		return
	}
	if out, ok := f.Actions[0].(flow.Output); ok && b.key != "" && f.Table == pipeline.SvcL2Forwarding &&
		f.Match.EthDst != (cluster.MAC{}) {
		b.pods[out.Port] = f.Match.EthDst
	}
}

func isClause(a flow.Action) bool {
	switch a.(type) {
	case flow.Conjunction:
		return true
	}
	return false
}

// podPort returns the port of one of our bridges that a pod is behind.
func (n *node) podPort(pod *cluster.Pod) (port string, ok bool) {
	for _, b := range n.further {
		for port, mac := range b.pods {
			if mac == pod.MAC {
				return port, true
			}
		}
	}
	return "", false
}

// bridgeOf returns the bridge that a port is on: port names are unique on a node.
func (n *node) bridgeOf(port string) *bridge {
	on := n.state.Bridge.Ports[port].Bridge
	for _, b := range n.further {
		if _, pod := b.pods[port]; pod || b.name == on {
			return b
		}
	}
	return n.bridge
}

// wayToOVN returns OVN's port that one of our bridges connects to, or nil.
func (n *node) wayToOVN(b *bridge) *switchPort {
	for _, p := range n.state.Bridge.Ports {
		if id, ok := n.logicalPort(p.Peer); ok && p.Bridge == b.name {
			return n.ovn.ports[id]
		}
	}
	return nil
}

// afterOutput returns the location of a packet that left one of our bridges.
func (r *run) afterOutput(n *node, b *bridge, out sent) (location, error) {
	if port := n.state.Bridge.Ports[out.port]; port.Local.IsValid() {
		return r.geneve(n, port, out.tunnel)
	}
	if mac, is := b.pods[out.port]; is {
		for _, pod := range n.pods {
			if pod.MAC == mac {
				return r.podReceives(n, pod)
			}
		}
		return r.drop(Other, "no pod has MAC "+ethernet(mac))
	}
	return n.behindPort(b, out.port)
}

// addNeighbors adds, to the switch that one of our bridges connects to, the addresses that the
// bridge asks pods for: OVN itself has no port with them.
func (n *node) addNeighbors() {
	for _, b := range n.further {
		p, t := n.wayToOVN(b), b.tables[pipeline.SvcNeighborDiscovery]
		if p == nil || t == nil {
			continue
		}
		for _, f := range t.others {
			if m := &f.Match; m.InPort == "" && m.Dst.IsSingleIP() && len(f.Actions) > 0 {
				out, _ := f.Actions[0].(flow.Output)
				p.sw.further[m.Dst.Addr()] = b.pods[out.Port]
				if len(f.Actions) > 1 { // several ports: which one uses it is not known
					p.sw.further[m.Dst.Addr()] = cluster.MAC{}
				}
			}
		}
	}
}

// behindPort returns the location behind a port: OVN, another bridge, or the host.
func (n *node) behindPort(b *bridge, out string) (location, error) {
	port := n.state.Bridge.Ports[out]
	id, isOVN := n.logicalPort(port.Peer)
	switch {
	case isOVN:
		return location{switchReceives, n, id}, nil
	case port.Peer != "":
		return location{bridgeReceives, n, port.Peer}, nil
	case port.Type == "internal":
		return location{hostReceives, n, out}, nil
	}
	return location{}, fmt.Errorf("%s: it is not known where port %s leads", b.name, out)
}

func newTable(b *bridge, number uint8) *table {
	stage := b.name + " " + pipeline.Name(pipeline.Bridge(b.key), number)
	return &table{stage: stage, byDst: map[uint16][]tableFlow{}, bySrc: map[uint16][]tableFlow{}}
}

// patchPort returns the name that ovn-controller gives to the patch port of a localnet port.
func patchPort(p *nb.SwitchPort) string { return "patch-" + p.Name + "-to-br-int" }

func (t *table) sort() {
	order := func(a, b tableFlow) int { return cmp.Compare(b.Priority, a.Priority) }
	slices.SortFunc(t.others, order)
	slices.SortFunc(t.clauses, order)
	for _, m := range [...]map[uint16][]tableFlow{t.byDst, t.bySrc} {
		for _, list := range m {
			slices.SortFunc(list, order)
		}
	}
}

// lookup returns the flow that a packet matches, nil if none. rival is another match of the same
// priority with other actions: the switch may take either.
func (t *table) lookup(packet flow.Match) (found, rival *flow.Flow, err error) {
	found, rival = t.best(&packet)
	for i := 0; i < len(t.clauses) && (found == nil || t.clauses[i].Priority > found.Priority); {
		priority := t.clauses[i].Priority
		matched := map[uint32]uint64{} // clauses by ID, as bits
		var complete []uint32
		for ; i < len(t.clauses) && t.clauses[i].Priority == priority; i++ {
			if f := t.clauses[i]; f.Match.Matches(&packet, f.fields) {
				complete = append(complete, satisfied(f.Flow, matched)...)
			}
		}
		if len(complete) == 0 {
			continue
		}
		slices.Sort(complete)
		found, rival = nil, nil
		for _, id := range complete {
			packet.ConjID = id
			f, other := t.best(&packet)
			switch {
			case f == nil || f.Match.ConjID != id:
				return nil, nil, fmt.Errorf("%s: no flow matches conj_id=%d, which the packet has", t.stage, id)
			case found == nil:
				found, rival = f, other
			case !slices.Equal(f.Actions, found.Actions):
				rival = f
			}
		}
		return found, rival, nil
	}
	return found, rival, nil
}

// satisfied adds the clauses that a flow is an alternative of, and returns the conjunctions that
// have all their clauses with it.
func satisfied(f *flow.Flow, matched map[uint32]uint64) (complete []uint32) {
	for _, a := range f.Actions {
		if c, ok := a.(flow.Conjunction); ok {
			all, before := uint64(1)<<c.Of-1, matched[c.ID]
			matched[c.ID] = before | 1<<(c.Clause-1)
			if before != all && matched[c.ID] == all {
				complete = append(complete, c.ID)
			}
		}
	}
	return complete
}

// best returns the matching flow of the highest priority that is no clause of a conjunction, and a
// rival of it.
func (t *table) best(packet *flow.Match) (found, rival *flow.Flow) {
	for _, list := range [...][]tableFlow{t.byDst[packet.DstPort], t.bySrc[packet.SrcPort], t.others} {
		for _, f := range list {
			if found != nil && f.Priority < found.Priority {
				break
			}
			if f.Flow == found || !f.Match.Matches(packet, f.fields) {
				continue
			}
			switch {
			case found == nil || f.Priority > found.Priority:
				found, rival = f.Flow, nil
			case !slices.Equal(f.Actions, found.Actions):
				rival = f.Flow
			}
		}
	}
	return found, rival
}

// behind returns the bridge without our flows that a patch port is on, or nil.
func (b *bridge) behind(patch string) *plainBridge {
	for _, p := range b.plain {
		if p.patch == patch {
			return p
		}
	}
	return nil
}

// plainReceives takes a packet through a bridge without our flows, between OVN and the host's links
// on it.
func (r *run) plainReceives(n *node, in string) (location, error) {
	b, to := n.bridge.behind(in), location{}
	if b != nil {
		for name, p := range n.state.Bridge.Ports {
			if p.Bridge == b.name && p.MAC == r.p.EthDst {
				to = location{hostReceives, n, name}
			}
		}
	} else if b = n.pluggedInto(in); b != nil {
		to = location{switchReceives, n, b.localnet}
	}
	if to == (location{}) {
		return r.drop(Other, "no port of the bridge of "+in+" has MAC "+ethernet(r.p.EthDst))
	}
	out := to.port
	if to.place == switchReceives {
		out = b.patch
	}
	r.ctState = tracking{}
	r.step(n, b.name+" table 0", "priority=0 actions=NORMAL", n.owner, "switched to "+out)
	v := &r.visits[len(r.visits)-1]
	v.Bridge, v.Out = b.name, out
	return to, nil
}
