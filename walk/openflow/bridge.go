package openflow

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/datapath/ovs"
	"hairpin/pipeline"
)

// Bridge is the gateway bridge, or a bridge that only Hairpin uses: its flows, indexed for lookup.
type Bridge struct {
	Name   string
	Key    string                 // in keys of flows and groups; empty: the gateway bridge
	Pods   map[string]cluster.MAC // of one of our bridges: port -> MAC of the pod behind it
	state  *ovs.State
	info   *cluster.Node // nil if it is not known
	tables [256]*table
}

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

// Bridges returns the gateway bridge of a node, and the bridges that only Hairpin uses.
func Bridges(s *ovs.State, info *cluster.Node) (gateway *Bridge, own []*Bridge) {
	gateway = &Bridge{Name: s.Bridge, state: s, info: info}
	for name := range s.Bridges {
		own = append(own, &Bridge{Name: name, Key: name, Pods: map[string]cluster.MAC{}, state: s, info: info})
	}
	all := append(slices.Clone(own), gateway)
	for _, f := range s.Flows.All() {
		if i := slices.IndexFunc(all, func(b *Bridge) bool { return b.Key == f.Bridge }); i >= 0 {
			all[i].add(f)
		}
	}
	for _, b := range all {
		for _, t := range b.tables {
			if t != nil {
				t.sort()
			}
		}
	}
	return gateway, own
}

func (b *Bridge) add(f *flow.Flow) {
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
	if len(f.Actions) == 0 { // read back, and not parsed: see actionsKnown
		return
	}
	if out, ok := f.Actions[0].(flow.Output); ok && b.Key != "" && f.Table == pipeline.SvcL2Forwarding &&
		f.Match.EthDst != (cluster.MAC{}) {
		b.Pods[out.Port] = f.Match.EthDst
	}
}

// isClause reports whether an action makes its flow a clause of a conjunction.
func isClause(a flow.Action) bool {
	switch a.(type) { // TestClosedSets reads the case
	case flow.Conjunction:
		return true
	}
	return false
}

// Neighbors returns the addresses for which the bridge sends ARP requests and neighbor
// solicitations to pods, with the MACs of the pods. The MAC is zero if it sends them to several
// ports: which one uses the address is not known.
func (b *Bridge) Neighbors() map[netip.Addr]cluster.MAC {
	t := b.tables[pipeline.SvcNeighborDiscovery]
	if t == nil {
		return nil
	}
	all := map[netip.Addr]cluster.MAC{}
	for _, f := range t.others {
		if m := &f.Match; m.InPort == "" && m.Dst.IsSingleIP() && len(f.Actions) > 0 {
			out, _ := f.Actions[0].(flow.Output)
			all[m.Dst.Addr()] = b.Pods[out.Port]
			if len(f.Actions) > 1 {
				all[m.Dst.Addr()] = cluster.MAC{}
			}
		}
	}
	return all
}

func newTable(b *Bridge, number uint8) *table {
	stage := b.Name + " " + pipeline.Name(pipeline.Bridge(b.Key), number)
	return &table{stage: stage, byDst: map[uint16][]tableFlow{}, bySrc: map[uint16][]tableFlow{}}
}

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
	// Each round handles the clauses of one priority.
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
