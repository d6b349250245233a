package walk

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/nft"
)

// chain is a base chain.
type chain struct {
	*nft.Chain
	family nft.Family
	table  *nft.Table
}

// hooked is a packet at a hook of the kernel.
type hooked struct {
	n       *node
	hook    string
	in, out string     // links; empty where the kernel does not know them yet
	hop     netip.Addr // the next hop
	track   *hostTrack
	nat     func() // translates a packet of a known connection, at this hook's priority
}

// natPriority returns the priority at which a hook translates: chains of a lower priority see the
// untranslated packet.
func natPriority(hook string) int {
	switch hook {
	case "prerouting", "output":
		return -100
	}
	return 100
}

// hook runs the chains of a hook. ok is false when one dropped the packet.
func (r *run) hook(h hooked) (ok bool, err error) {
	translated := h.nat == nil
	translate := func() {
		if !translated {
			h.nat()
			translated = true
		}
	}
	for _, c := range h.n.kernel.chains[h.hook] {
		if c.Type == "nat" || c.Priority >= natPriority(h.hook) {
			translate()
		}
		if c.Device != "" && c.Device != h.in || len(c.Rules) == 0 {
			continue
		}
		// Only the first packet of a connection sees nat chains, and only until one of them has
		// translated it.
		if c.Type == "nat" && (h.track == nil || !h.track.mayTranslate(h.hook)) {
			continue
		}
		if len(c.table.Unknown) > 0 {
			return false, fmt.Errorf("table %s %s has a rule that cannot be parsed: %s", c.family, claims.NFTTable,
				c.table.Unknown[0])
		}
		if ok, err := r.chain(h, c); err != nil || !ok {
			return false, err
		}
	}
	translate()
	return true, nil
}

// chain evaluates one chain's rules.
func (r *run) chain(h hooked, c *chain) (ok bool, err error) {
	stage := "nft " + string(c.family) + " " + claims.NFTTable + " " + c.Name
	for i := range c.Rules {
		rule := &c.Rules[i]
		if held, err := r.matchesRule(h, c, rule); err != nil {
			return false, fmt.Errorf("%s: %w", stage, err)
		} else if !held {
			continue
		}
		end, ok, err := r.statement(h, c, rule, stage)
		if err != nil || end {
			return ok, err
		}
	}
	return true, nil
}

func (r *run) matchesRule(h hooked, c *chain, rule *nft.Rule) (bool, error) {
	for _, m := range rule.Matches {
		held, err := r.nftMatch(h, c, m)
		if err != nil || !held {
			return false, err
		}
	}
	return true, nil
}

// sameInterface reports whether an interface matches a name in a rule. A * at the end of the name
// matches any rest.
func sameInterface(rule, name string) bool {
	if begin, any := strings.CutSuffix(rule, "*"); any {
		return strings.HasPrefix(name, begin)
	}
	return rule == name
}

func (r *run) nftMatch(h hooked, c *chain, m nft.Match) (bool, error) {
	switch m := m.(type) {
	case nft.AddrIn:
		a := r.p.Src
		if m.Dst {
			a = r.p.Dst
		}
		return cluster.FamilyOf(a) == cluster.FamilyOf(m.Prefix.Addr()) && m.Prefix.Contains(a) != m.Not, nil
	case nft.DstIsLocal:
		return h.n.kernel.isLocal(r.p.Dst), nil
	case nft.L4Proto:
		return r.p.Protocol == m.Protocol, nil
	case nft.DstPort:
		return r.p.Protocol == m.Protocol && r.p.DstPort == m.Port, nil
	case nft.OutInterface:
		return sameInterface(m.Name, h.out) != m.Not, nil
	case nft.InInterface:
		return sameInterface(m.Name, h.in) != m.Not, nil
	case nft.CTMarkIs:
		return h.track != nil && *h.track.markOf() == m.Value, nil
	case nft.CTState:
		return h.ctState(c, m)
	case nft.CTDirection:
		return h.track != nil && h.track.reply == (m == nft.CTReply), nil
	case nft.EtherSrc:
		return r.etherSrc(h, m)
	case nft.NoSYN: // a walk begins with a SYN
		return r.p.Protocol == cluster.TCP && h.track != nil && h.track.established(), nil
	case nft.MarkIs:
		return r.p.Mark&m.Mask == m.Value, nil
	case nft.InSet:
		set := c.table.Sets[m.Set]
		if set == nil {
			return false, fmt.Errorf("there is no set %s", m.Set)
		}
		key, ok, err := r.element(h, set.Key)
		if err != nil || !ok {
			return false, err
		}
		return set.Holds(key, r.p.Src), nil
	}
	return false, fmt.Errorf("match %T is not known", m)
}

// element returns the packet's key in a map or set; ok is false when the packet lacks a field of
// it.
func (r *run) element(h hooked, key []nft.KeyField) (e nft.Element, ok bool, err error) {
	for _, k := range key {
		switch k {
		case nft.KeyIPDst, nft.KeyIP6Dst:
			if r.p.Dst.Is4() != (k == nft.KeyIPDst) {
				return e, false, nil
			}
			e.Addr = r.p.Dst
		case nft.KeyProto:
			e.Protocol = r.p.Protocol
		case nft.KeyPort:
			e.Port = r.p.DstPort
		case nft.KeyIPSrc, nft.KeyIP6Src: // the set itself compares a range
			if r.p.Src.Is4() != (k == nft.KeyIPSrc) {
				return e, false, nil
			}
			if key[len(key)-1] == nft.KeyOut {
				e.Src = netip.PrefixFrom(r.p.Src, r.p.Src.BitLen())
			}
		case nft.KeyOut:
			e.Out = h.out
		case nft.KeyPortSlot, nft.KeyIPSlot, nft.KeyIP6Slot:
			if k != nft.KeyPortSlot && r.p.Src.Is4() != (k == nft.KeyIPSlot) {
				return e, false, nil
			}
			e.Slot = nft.SlotOf(k, netip.AddrPortFrom(r.p.Src, r.p.SrcPort))
		default:
			return e, false, fmt.Errorf("key %q is not known", k)
		}
	}
	return e, true, nil
}

// statement applies a rule's statement. end is set when the chain is done with the packet, ok when
// the packet was not dropped.
func (r *run) statement(h hooked, c *chain, rule *nft.Rule, stage string) (end, ok bool, err error) {
	before := r.p
	switch s := rule.Do.(type) {
	case nil:
		return false, true, nil
	case nft.Accept:
		r.step(h.n, stage, nftRule{c.table, rule}, rule.Owner, "accepted")
		return true, true, nil
	case nft.Return:
		r.step(h.n, stage, nftRule{c.table, rule}, rule.Owner, "continues")
		return true, true, nil
	case nft.Drop:
		r.step(h.n, stage, nftRule{c.table, rule}, rule.Owner, "drops it")
		return true, false, nil
	case nft.Reject:
		what := map[bool]string{true: refusalOf(cluster.TCP), false: refusalOf(0)}[s.TCPReset]
		r.step(h.n, stage, nftRule{c.table, rule}, rule.Owner, "rejected with "+what)
		_, err := r.refuse(location{place: hostSends, node: h.n}, routerFlags{}, ByRule, "rejected with "+what+" by "+
			h.n.name)
		r.refusal.track = h.track
		return true, false, err
	case nft.Forward: // for tunnels' own packets, which walk does not follow: see geneve
		r.step(h.n, stage, nftRule{c.table, rule}, rule.Owner, "out of "+s.Device)
		return false, false, fmt.Errorf("%s: what is behind %s is not known", stage, s.Device)
	case nft.Dup: // walk does not follow the copy
		r.step(h.n, stage, nftRule{c.table, rule}, rule.Owner, "a copy is sent to "+s.To.String())
		return false, true, nil
	case nft.SetMark:
		r.p.Mark = s.Value
		r.step(h.n, stage, nftRule{c.table, rule}, rule.Owner, fmt.Sprintf("mark 0x%x", s.Value))
		return false, true, nil
	case nft.AddMark:
		r.p.Mark |= s.Bits
		r.step(h.n, stage, nftRule{c.table, rule}, rule.Owner, fmt.Sprintf("mark 0x%x", r.p.Mark))
		return false, true, nil
	case nft.SaveMark:
		if h.track == nil {
			return false, false, fmt.Errorf("%s: no connection to mark", stage)
		}
		*h.track.markOf() = r.p.Mark
		r.step(h.n, stage, nftRule{c.table, rule}, rule.Owner, fmt.Sprintf("the connection has mark 0x%x", r.p.Mark))
		return false, true, nil
	case nft.RestoreMark:
		if h.track == nil {
			return false, false, fmt.Errorf("%s: no connection to take a mark from", stage)
		}
		r.p.Mark = *h.track.markOf()
		r.step(h.n, stage, nftRule{c.table, rule}, rule.Owner, fmt.Sprintf("mark 0x%x", r.p.Mark))
		return false, true, nil
	case nft.DNATMap:
		return r.dnatMap(h, c, rule, s, stage)
	case nft.SNATMap:
		return r.snatMap(h, c, rule, s, stage)
	case nft.SNAT:
		if cluster.FamilyOf(s.Addr) != cluster.FamilyOf(r.p.Src) {
			return false, true, nil
		}
		r.p.Src = s.Addr
	case nft.Masquerade:
		a := h.n.kernel.selectAddress(h.out, h.hop, r.p.Dst)
		if !a.IsValid() {
			return false, false, fmt.Errorf("%s: %s has no address to masquerade with", stage, h.out)
		}
		r.p.Src = a
	default:
		return false, false, fmt.Errorf("%s: statement %T is not known", stage, rule.Do)
	}
	if c.Type != "nat" {
		return false, false, fmt.Errorf("%s: %T in a chain of type %s", stage, rule.Do, c.Type)
	}
	h.track.source = true
	r.step(h.n, stage, nftRule{c.table, rule}, rule.Owner, changed(&before, &r.p))
	return true, true, nil
}

func (r *run) dnatMap(h hooked, c *chain, rule *nft.Rule, s nft.DNATMap, stage string) (end, ok bool, err error) {
	to, end, ok, err := r.target(h, c, s.Map, "dnat", stage)
	if !end {
		return false, ok, err
	}
	before, choices := r.p, r.slots(h, c.table.Maps[s.Map])
	r.p.Dst, r.p.DstPort = to.Addr.Addr(), to.Addr.Port()
	h.track.destination = true
	r.translated(h.n, c, rule, &to, stage, &before).Choices = choices
	return true, true, nil
}

// snatMap translates the source of a packet by a map whose key has the egress interface.
func (r *run) snatMap(h hooked, c *chain, rule *nft.Rule, s nft.SNATMap, stage string) (end, ok bool, err error) {
	to, end, ok, err := r.target(h, c, s.Map, "snat", stage)
	if !end {
		return false, ok, err
	}
	before := r.p
	r.p.Src = to.Addr.Addr()
	h.track.source = true
	r.translated(h.n, c, rule, &to, stage, &before)
	return true, true, nil
}

// target returns the map's element for the packet. If there is none, the packet continues.
func (r *run) target(h hooked, c *chain, name, verb, stage string) (to nft.Target, found, ok bool, err error) {
	m := c.table.Maps[name]
	switch {
	case m == nil:
		return to, false, false, fmt.Errorf("%s: there is no map %s", stage, name)
	case c.Type != "nat":
		return to, false, false, fmt.Errorf("%s: %s in a chain of type %s", stage, verb, c.Type)
	case m.Family != cluster.FamilyOf(r.p.Dst):
		return to, false, true, nil
	}
	key, known, err := r.element(h, m.Key)
	if err == nil && known {
		to, found = m.Elements.Get(r.slot(h, m, key))
	}
	return to, found, true, err
}

// slot returns a key with the preferred slot: one with a preferred endpoint, else one whose target
// is not on this host but a load balancer's. It does not change a key without slots.
func (r *run) slot(h hooked, m *nft.Map, key nft.Element) nft.Element {
	if len(r.prefer) == 0 {
		return key
	}
	other := key
	for k, to := range slotsOf(m, key) {
		switch {
		case slices.Contains(r.prefer, to.Addr):
			return k
		case !h.n.kernel.isLocal(to.Addr.Addr()):
			other = k
		}
	}
	return other
}

// slots lists the targets of the packet's key over all slots; nil if there is only one.
func (r *run) slots(h hooked, m *nft.Map) []netip.AddrPort {
	key, ok, err := r.element(h, m.Key)
	if err != nil || !ok {
		return nil
	}
	var list []netip.AddrPort
	for _, to := range slotsOf(m, key) {
		if !slices.Contains(list, to.Addr) {
			list = append(list, to.Addr)
		}
	}
	if len(list) < 2 {
		return nil
	}
	return list
}

// slotsOf returns the elements of a map whose keys differ from key only by the slot.
func slotsOf(m *nft.Map, key nft.Element) iter.Seq2[nft.Element, nft.Target] {
	return func(yield func(nft.Element, nft.Target) bool) {
		for key.Slot = range uint8(nft.Slots) {
			if to, there := m.Elements.Get(key); there && !yield(key, to) {
				return
			}
		}
	}
}

// translated adds the step of a translation by a map's element.
func (r *run) translated(n *node, c *chain, rule *nft.Rule, to *nft.Target, stage string, before *Packet) *Step {
	why := to.Owner
	if why == (cluster.Owner{}) {
		why = rule.Owner
	}
	return r.step(n, stage, nftRule{c.table, rule}, why, changed(before, &r.p))
}

// markOf returns the mark of the packet's connection.
func (t *hostTrack) markOf() *uint32 {
	if t.entry != nil {
		return &t.entry.mark
	}
	return &t.mark
}
