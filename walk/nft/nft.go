// Package nft evaluates the rules of Hairpin's nft tables for one packet at one hook of the kernel.
//
// Input: the tables of the State, a packet, the hook with its links, and the packet's connection.
// Output: the packet as the chains leave it, and whether it continues.
//
// Invariants: a rule, match or hook that the package does not know is an error once a packet meets
// it. Only the first packet of a connection sees chains of type nat.
package nft

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/nft"
	"hairpin/walk/conntrack"
	"hairpin/walk/packet"
	"hairpin/walk/path"
)

// Loopback is the kernel's loopback link.
const Loopback = "lo"

// Host is what a rule needs to know about the host.
type Host interface {
	IsLocal(a netip.Addr) bool
	// SelectAddress returns the address of a link with which the host sends to dst by a next hop.
	SelectAddress(link string, hop, dst netip.Addr) netip.Addr
	// IsNodeMAC reports whether a MAC belongs to a node's link to a network.
	IsNodeMAC(m cluster.MAC) bool
}

// Hook is a packet at a hook of the kernel.
type Hook struct {
	Host    Host
	Name    string
	In, Out string                // links; empty where the kernel does not know them yet
	Hop     netip.Addr            // the next hop
	Track   *conntrack.Connection // nil: the kernel has not looked it up yet
	// Translate translates a packet of a known connection, at this hook's priority; nil: no
	// translation.
	Translate func()
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

// Run runs the chains of a hook. ok is false when one dropped or rejected the packet.
func (s *Ruleset) Run(pkt *path.Path, h *Hook) (ok bool, err error) {
	translated := h.Translate == nil
	translate := func() {
		if !translated {
			h.Translate()
			translated = true
		}
	}
	for _, c := range s.chains[h.Name] {
		if c.Type == "nat" || c.Priority >= natPriority(h.Name) {
			translate()
		}
		if c.Device != "" && c.Device != h.In || len(c.Rules) == 0 {
			continue
		}
		// Only the first packet of a connection sees nat chains, and only until one of them has
		// translated it.
		if c.Type == "nat" && (h.Track == nil || !h.Track.MayTranslate(h.Name)) {
			continue
		}
		if len(c.table.Unknown) > 0 {
			return false, fmt.Errorf("table %s %s has a rule that cannot be parsed: %s", c.family, claims.NFTTable,
				c.table.Unknown[0])
		}
		if ok, err := h.chain(pkt, c); err != nil || !ok {
			return false, err
		}
	}
	translate()
	return true, nil
}

// chain evaluates one chain's rules.
func (h *Hook) chain(pkt *path.Path, c *chain) (ok bool, err error) {
	stage := "nft " + string(c.family) + " " + claims.NFTTable + " " + c.Name
	for i := range c.Rules {
		rule := &c.Rules[i]
		if held, err := h.matchesRule(pkt, c, rule); err != nil {
			return false, fmt.Errorf("%s: %w", stage, err)
		} else if !held {
			continue
		}
		end, ok, err := h.statement(pkt, c, rule, stage)
		if err != nil || end {
			return ok, err
		}
	}
	return true, nil
}

func (h *Hook) matchesRule(pkt *path.Path, c *chain, rule *nft.Rule) (bool, error) {
	for _, m := range rule.Matches {
		held, err := h.matches(pkt, c, m)
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

func (h *Hook) matches(pkt *path.Path, c *chain, m nft.Match) (bool, error) {
	switch m := m.(type) {
	case nft.AddrIn:
		a := pkt.Src
		if m.Dst {
			a = pkt.Dst
		}
		return cluster.FamilyOf(a) == cluster.FamilyOf(m.Prefix.Addr()) && m.Prefix.Contains(a) != m.Not, nil
	case nft.DstIsLocal:
		return h.Host.IsLocal(pkt.Dst), nil
	case nft.L4Proto:
		return pkt.Protocol == m.Protocol, nil
	case nft.DstPort:
		return pkt.Protocol == m.Protocol && pkt.DstPort == m.Port, nil
	case nft.OutInterface:
		return sameInterface(m.Name, h.Out) != m.Not, nil
	case nft.InInterface:
		return sameInterface(m.Name, h.In) != m.Not, nil
	case nft.CTMarkIs:
		return h.Track != nil && *h.Track.Mark() == m.Value, nil
	case nft.CTState:
		return h.ctState(c, m)
	case nft.CTDirection:
		return h.Track != nil && h.Track.Reply() == (m == nft.CTReply), nil
	case nft.EtherSrc:
		return h.etherSrc(pkt, m)
	case nft.NoSYN: // a walk begins with a SYN
		return pkt.Protocol == cluster.TCP && h.Track != nil && h.Track.Established(), nil
	case nft.MarkIs:
		return pkt.Mark&m.Mask == m.Value, nil
	case nft.InSet:
		set := c.table.Sets[m.Set]
		if set == nil {
			return false, fmt.Errorf("there is no set %s", m.Set)
		}
		key, ok, err := h.element(pkt, set.Key)
		if err != nil || !ok {
			return false, err
		}
		return set.Holds(key, pkt.Src), nil
	}
	return false, fmt.Errorf("match %T is not known", m)
}

// element returns the packet's key in a map or set; ok is false when the packet lacks a field of
// it.
func (h *Hook) element(pkt *path.Path, key []nft.KeyField) (e nft.Element, ok bool, err error) {
	for _, k := range key {
		switch k {
		case nft.KeyIPDst, nft.KeyIP6Dst:
			if pkt.Dst.Is4() != (k == nft.KeyIPDst) {
				return e, false, nil
			}
			e.Addr = pkt.Dst
		case nft.KeyProto:
			e.Protocol = pkt.Protocol
		case nft.KeyPort:
			e.Port = pkt.DstPort
		case nft.KeyIPSrc, nft.KeyIP6Src: // the set itself compares a range
			if pkt.Src.Is4() != (k == nft.KeyIPSrc) {
				return e, false, nil
			}
			if key[len(key)-1] == nft.KeyOut {
				e.Src = netip.PrefixFrom(pkt.Src, pkt.Src.BitLen())
			}
		case nft.KeyOut:
			e.Out = h.Out
		case nft.KeyPortSlot, nft.KeyIPSlot, nft.KeyIP6Slot:
			if k != nft.KeyPortSlot && pkt.Src.Is4() != (k == nft.KeyIPSlot) {
				return e, false, nil
			}
			e.Slot = nft.SlotOf(k, netip.AddrPortFrom(pkt.Src, pkt.SrcPort))
		default:
			return e, false, fmt.Errorf("key %q is not known", k)
		}
	}
	return e, true, nil
}

// statement applies a rule's statement. end is set when the chain is done with the packet, ok when
// the packet was not dropped.
func (h *Hook) statement(pkt *path.Path, c *chain, rule *nft.Rule, stage string) (end, ok bool, err error) {
	before := pkt.Packet
	switch s := rule.Do.(type) {
	case nil:
		return false, true, nil
	case nft.Accept:
		pkt.Step(stage, ruleOf{c.table, rule}, rule.Owner, "accepted")
		return true, true, nil
	case nft.Return:
		pkt.Step(stage, ruleOf{c.table, rule}, rule.Owner, "continues")
		return true, true, nil
	case nft.Drop:
		pkt.Step(stage, ruleOf{c.table, rule}, rule.Owner, "drops it")
		return true, false, nil
	case nft.Reject:
		what := packet.RejectionOf(cluster.UDP)
		if s.TCPReset {
			what = packet.RejectionOf(cluster.TCP)
		}
		pkt.Step(stage, ruleOf{c.table, rule}, rule.Owner, "rejected with "+what)
		pkt.Reject(packet.ByRule, "rejected with "+what+" by "+pkt.Node)
		pkt.End.Connection = h.Track
		return true, false, nil
	case nft.Forward: // for tunnels' own packets, which walk does not follow: see geneve
		pkt.Step(stage, ruleOf{c.table, rule}, rule.Owner, "out of "+s.Device)
		return false, false, fmt.Errorf("%s: what is behind %s is not known", stage, s.Device)
	case nft.Dup: // walk does not follow the copy
		pkt.Step(stage, ruleOf{c.table, rule}, rule.Owner, "a copy is sent to "+s.To.String())
		return false, true, nil
	case nft.SetMark:
		pkt.Mark = s.Value
		pkt.Step(stage, ruleOf{c.table, rule}, rule.Owner, fmt.Sprintf("mark 0x%x", s.Value))
		return false, true, nil
	case nft.AddMark:
		pkt.Mark |= s.Bits
		pkt.Step(stage, ruleOf{c.table, rule}, rule.Owner, fmt.Sprintf("mark 0x%x", pkt.Mark))
		return false, true, nil
	case nft.SaveMark:
		if h.Track == nil {
			return false, false, fmt.Errorf("%s: no connection to mark", stage)
		}
		*h.Track.Mark() = pkt.Mark
		pkt.Step(stage, ruleOf{c.table, rule}, rule.Owner, fmt.Sprintf("the connection has mark 0x%x", pkt.Mark))
		return false, true, nil
	case nft.RestoreMark:
		if h.Track == nil {
			return false, false, fmt.Errorf("%s: no connection to take a mark from", stage)
		}
		pkt.Mark = *h.Track.Mark()
		pkt.Step(stage, ruleOf{c.table, rule}, rule.Owner, fmt.Sprintf("mark 0x%x", pkt.Mark))
		return false, true, nil
	case nft.DNATMap:
		return h.dnatMap(pkt, c, rule, s, stage)
	case nft.SNATMap:
		return h.snatMap(pkt, c, rule, s, stage)
	case nft.SNAT:
		if cluster.FamilyOf(s.Addr) != cluster.FamilyOf(pkt.Src) {
			return false, true, nil
		}
		pkt.Src = s.Addr
	case nft.Masquerade:
		a := h.Host.SelectAddress(h.Out, h.Hop, pkt.Dst)
		if !a.IsValid() {
			return false, false, fmt.Errorf("%s: %s has no address to masquerade with", stage, h.Out)
		}
		pkt.Src = a
	default:
		return false, false, fmt.Errorf("%s: statement %T is not known", stage, rule.Do)
	}
	if c.Type != "nat" {
		return false, false, fmt.Errorf("%s: %T in a chain of type %s", stage, rule.Do, c.Type)
	}
	h.Track.Source = true
	pkt.Step(stage, ruleOf{c.table, rule}, rule.Owner, pkt.Changed(&before))
	return true, true, nil
}

func (h *Hook) dnatMap(pkt *path.Path, c *chain, rule *nft.Rule, s nft.DNATMap,
	stage string) (end, ok bool, err error) {
	to, end, ok, err := h.target(pkt, c, s.Map, "dnat", stage)
	if !end {
		return false, ok, err
	}
	before, choices := pkt.Packet, h.slots(pkt, c.table.Maps[s.Map])
	pkt.Dst, pkt.DstPort = to.Addr.Addr(), to.Addr.Port()
	h.Track.Destination = true
	translated(pkt, c, rule, &to, stage, &before).Choices = choices
	return true, true, nil
}

// snatMap translates the source of a packet by a map with the egress interface in its key.
func (h *Hook) snatMap(pkt *path.Path, c *chain, rule *nft.Rule, s nft.SNATMap,
	stage string) (end, ok bool, err error) {
	to, end, ok, err := h.target(pkt, c, s.Map, "snat", stage)
	if !end {
		return false, ok, err
	}
	before := pkt.Packet
	pkt.Src = to.Addr.Addr()
	h.Track.Source = true
	translated(pkt, c, rule, &to, stage, &before)
	return true, true, nil
}

// target returns the map's element for the packet. If there is none, the packet continues.
func (h *Hook) target(pkt *path.Path, c *chain, name, verb, stage string) (to nft.Target, found, ok bool, err error) {
	m := c.table.Maps[name]
	switch {
	case m == nil:
		return to, false, false, fmt.Errorf("%s: there is no map %s", stage, name)
	case c.Type != "nat":
		return to, false, false, fmt.Errorf("%s: %s in a chain of type %s", stage, verb, c.Type)
	case m.Family != cluster.FamilyOf(pkt.Dst):
		return to, false, true, nil
	}
	key, known, err := h.element(pkt, m.Key)
	if err == nil && known {
		to, found = m.Elements.Get(h.slot(pkt, m, key))
	}
	return to, found, true, err
}

// slot returns a key with the slot that the walk prefers, if it prefers endpoints: that of a
// preferred endpoint, else one with a target that is not on this host, the address of a load
// balancer. It does not change a key without slots.
func (h *Hook) slot(pkt *path.Path, m *nft.Map, key nft.Element) nft.Element {
	if len(pkt.Prefer) == 0 {
		return key
	}
	other := key
	for k, to := range slotsOf(m, key) {
		switch {
		case slices.Contains(pkt.Prefer, to.Addr):
			return k
		case !h.Host.IsLocal(to.Addr.Addr()):
			other = k
		}
	}
	return other
}

// slots lists the targets of the packet's key over all slots; nil if there is only one.
func (h *Hook) slots(pkt *path.Path, m *nft.Map) []netip.AddrPort {
	key, ok, err := h.element(pkt, m.Key)
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

// slotsOf returns the elements of a map with keys that differ from key only by the slot.
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
func translated(pkt *path.Path, c *chain, rule *nft.Rule, to *nft.Target, stage string,
	before *packet.Packet) *packet.Step {
	why := to.Owner
	if why == (cluster.Owner{}) {
		why = rule.Owner
	}
	return pkt.Step(stage, ruleOf{c.table, rule}, why, pkt.Changed(before))
}
