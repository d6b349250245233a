// Package nfttest draws random nft states, for property tests here and against the real nft.
package nfttest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"pgregory.net/rapid"

	"hairpin/cluster"
	"hairpin/datapath/nft"
	"hairpin/delta"
)

// States draws tables that the kernel accepts: hooks fit their chain's type, and rules reference
// existing maps and sets.
func States() *rapid.Generator[nft.State] {
	return rapid.Custom(func(t *rapid.T) nft.State {
		s := nft.State{}
		if rapid.Bool().Draw(t, "inet") {
			s[nft.Inet] = table(t, nft.Inet)
		}
		if rapid.Bool().Draw(t, "netdev") {
			s[nft.Netdev] = table(t, nft.Netdev)
		}
		for _, f := range []nft.Family{nft.IP, nft.IP6} {
			if rapid.Bool().Draw(t, string(f)) {
				s[f] = tableWithDup(t, f)
			}
		}
		return s
	})
}

// Elements draws a state that differs from another in elements only: some are the same, some
// changed, some new.
func Elements(t *rapid.T, from nft.State) nft.State {
	out := nft.State{}
	for _, f := range delta.Keys(from) {
		have := from[f]
		table := *have
		table.Maps, table.Sets = map[string]*nft.Map{}, map[string]*nft.Set{}
		for _, name := range delta.Keys(have.Maps) {
			m := *have.Maps[name]
			m.Elements = some(t, m.Elements)
			addTargets(t, &m)
			table.Maps[name] = &m
		}
		for _, name := range delta.Keys(have.Sets) {
			s := *have.Sets[name]
			s.Elements = some(t, s.Elements)
			addMembers(t, &s)
			table.Sets[name] = &s
		}
		out[f] = &table
	}
	return out
}

func some[V any](t *rapid.T, from delta.Map[nft.Element, V]) (out delta.Map[nft.Element, V]) {
	for _, e := range from.Sorted(nft.Element.Compare) {
		if rapid.Bool().Draw(t, "stays") {
			out.Put(e, from.At(e))
		}
	}
	return out
}

// tableWithDup draws a table of a family that supports dup.
func tableWithDup(t *rapid.T, f nft.Family) *nft.Table {
	fam := cluster.IPv4
	if f == nft.IP6 {
		fam = cluster.IPv6
	}
	a := addr(t, fam)
	c := &nft.Chain{Name: "moves", Type: "filter", Hook: "prerouting", Priority: -150, Owner: owner(t)}
	for range rapid.IntRange(0, 2).Draw(t, "rules") {
		r := nft.Rule{Owner: owner(t), Do: nft.Dup{To: addr(t, fam), Device: "lo"}, Matches: []nft.Match{
			nft.InInterface{Name: "eth0"}, nft.AddrIn{Dst: true, Prefix: netip.PrefixFrom(a, a.BitLen())},
			nft.CTNewOrInvalid,
		}}
		if rapid.Bool().Draw(t, "drop") {
			r.Matches = append(r.Matches, nft.EtherSrc{MAC: cluster.MAC{2, 0, 0, 0, 0, rapid.Byte().Draw(t, "MAC")}})
			r.Do = nft.Drop{}
		}
		if rapid.Bool().Draw(t, "TCP only") {
			r.Matches = append(r.Matches, nft.NoSYN{})
		}
		c.Rules = append(c.Rules, r)
	}
	return &nft.Table{Chains: map[string]*nft.Chain{c.Name: c}, Maps: map[string]*nft.Map{},
		Sets: map[string]*nft.Set{}}
}

// owner draws an owner; sometimes its label is too long for nft.
func owner(t *rapid.T) cluster.Owner {
	name := rapid.SampledFrom([]string{"web", "db-0", "a.b", strings.Repeat("x", 63), strings.Repeat("y", 200)}).Draw(t,
		"name")
	switch rapid.IntRange(0, 2).Draw(t, "owner") {
	case 0:
		return cluster.Owner{}
	case 1:
		return cluster.Owner{Kind: "Node", Name: name}
	}
	return cluster.Owner{Kind: "Service",
		Namespace: rapid.SampledFrom([]string{"default", "kube-system"}).Draw(t, "namespace"), Name: name}
}

func table(t *rapid.T, f nft.Family) *nft.Table {
	table := &nft.Table{Chains: map[string]*nft.Chain{}, Maps: map[string]*nft.Map{}, Sets: map[string]*nft.Set{}}
	if f == nft.Inet {
		for i := range rapid.IntRange(0, 2).Draw(t, "maps") {
			m := drawMap(t, fmt.Sprintf("map%d", i))
			table.Maps[m.Name] = m
		}
	}
	for i := range rapid.IntRange(0, 2).Draw(t, "sets") {
		s := drawSet(t, fmt.Sprintf("set%d", i))
		table.Sets[s.Name] = s
	}
	hooks := []nft.Chain{
		{Name: "prerouting", Type: "nat", Hook: "prerouting", Priority: -100},
		{Name: "output", Type: "nat", Hook: "output", Priority: -100},
		{Name: "postrouting", Type: "nat", Hook: "postrouting", Priority: 100},
		{Name: "out", Type: "filter", Hook: "output"},
		{Name: "early", Type: "filter", Hook: "prerouting", Priority: -310},
		{Name: "plain"},
	}
	if f == nft.Netdev {
		hooks = []nft.Chain{{Name: "guard", Type: "filter", Hook: "ingress", Device: "lo", Priority: -500},
			{Name: "plain"}}
	}
	for _, c := range hooks {
		if !rapid.Bool().Draw(t, c.Name) {
			continue
		}
		c.Owner = owner(t)
		if c.Hook != "" && c.Type == "filter" {
			c.Priority += rapid.IntRange(-5, 5).Draw(t, "priority")
		}
		for range rapid.IntRange(0, 4).Draw(t, "rules") {
			c.Rules = append(c.Rules, rule(t, table, &c))
		}
		table.Chains[c.Name] = &c
	}
	return table
}

func family(t *rapid.T) cluster.Family {
	return rapid.SampledFrom([]cluster.Family{cluster.IPv4, cluster.IPv6}).Draw(t, "family")
}

func key(t *rapid.T) []nft.KeyField {
	var key []nft.KeyField
	if addr := rapid.SampledFrom([]nft.KeyField{"", nft.KeyIPDst, nft.KeyIP6Dst}).Draw(t, "address key"); addr != "" {
		key = append(key, addr)
	}
	if rapid.Bool().Draw(t, "protocol key") || len(key) == 0 {
		key = append(key, nft.KeyProto)
	}
	if rapid.Bool().Draw(t, "port key") {
		key = append(key, nft.KeyPort)
	}
	return key
}

func element(t *rapid.T, key []nft.KeyField) nft.Element {
	var e nft.Element
	for _, k := range key {
		switch k {
		case nft.KeyOut:
			e.Out = rapid.SampledFrom([]string{"eth1", "bond0.10", "lo"}).Draw(t, "interface")
			e.Src = netip.PrefixFrom(e.Src.Addr(), e.Src.Addr().BitLen()) // not a range
		case nft.KeyPortSlot, nft.KeyIPSlot, nft.KeyIP6Slot:
			e.Slot = uint8(rapid.IntRange(0, nft.Slots-1).Draw(t, "slot's number"))
		case nft.KeyProto:
			e.Protocol = protocol(t)
		case nft.KeyPort:
			e.Port = rapid.Uint16().Draw(t, "port")
		case nft.KeyIPSrc:
			e.Src = source(t, cluster.IPv4)
		case nft.KeyIP6Src:
			e.Src = source(t, cluster.IPv6)
		case nft.KeyIPDst:
			e.Addr = addr(t, cluster.IPv4)
		case nft.KeyIP6Dst:
			e.Addr = addr(t, cluster.IPv6)
		}
	}
	return e
}

func drawMap(t *rapid.T, name string) *nft.Map {
	m := &nft.Map{Name: name, Family: family(t), Key: key(t)}
	plain := rapid.IntRange(0, 2).Draw(t, "plain") == 0
	if plain {
		m.Key = []nft.KeyField{map[cluster.Family]nft.KeyField{cluster.IPv4: nft.KeyIPSrc,
			cluster.IPv6: nft.KeyIP6Src}[m.Family], nft.KeyOut}
	}
	if n := len(m.Key); !plain && n > 1 && m.Key[n-1] == nft.KeyPort {
		slots := []nft.KeyField{"", nft.KeyPortSlot, nft.KeyIPSlot}
		if m.Family == cluster.IPv6 {
			slots[2] = nft.KeyIP6Slot
		}
		if slot := rapid.SampledFrom(slots).Draw(t, "slot"); slot != "" {
			m.Key = append(m.Key, slot)
		}
	}
	addTargets(t, m)
	return m
}

func addTargets(t *rapid.T, m *nft.Map) {
	for range rapid.IntRange(0, 4).Draw(t, "elements") {
		to := netip.AddrPortFrom(addr(t, m.Family), 0)
		if !m.AddressOnly() {
			to = netip.AddrPortFrom(to.Addr(), rapid.Uint16().Draw(t, "to port"))
		}
		m.Elements.Put(element(t, m.Key), nft.Target{Addr: to, Owner: owner(t)})
	}
}

func drawSet(t *rapid.T, name string) *nft.Set {
	s := &nft.Set{Name: name, Key: key(t)}
	if twin := map[nft.KeyField]nft.KeyField{nft.KeyIPDst: nft.KeyIPSrc,
		nft.KeyIP6Dst: nft.KeyIP6Src}[s.Key[0]]; twin != "" && rapid.Bool().Draw(t, "ranges") {
		if s.Key = append(s.Key, twin); rapid.Bool().Draw(t, "sources only") {
			s.Key = []nft.KeyField{twin}
		}
	}
	addMembers(t, s)
	return s
}

func addMembers(t *rapid.T, s *nft.Set) {
	for range rapid.IntRange(0, 4).Draw(t, "elements") {
		s.Elements.Put(element(t, s.Key), owner(t))
	}
}

func rule(t *rapid.T, table *nft.Table, c *nft.Chain) nft.Rule {
	r := nft.Rule{Owner: owner(t)}
	r.Comment = rapid.SampledFrom([]string{"", "pods to the host", "a/b: c", ": x", "é # { } ; ok",
		strings.Repeat("z", 120)}).Draw(t, "comment")
	for range rapid.IntRange(0, 3).Draw(t, "matches") {
		r.Matches = append(r.Matches, match(t, table, c))
	}
	// One family per rule: nft refuses a rule that can never match.
	fam := family(t)
	r.Matches = together(r.Matches, table, fam)
	r.Do = statement(t, table, c, fam)
	if len(r.Matches) == 0 && r.Do == nil {
		r.Do = nft.Accept{}
	}
	return r
}

// together returns the matches that can hold together, for a family.
func together(in []nft.Match, table *nft.Table, f cluster.Family) []nft.Match {
	var out []nft.Match
	l4 := false
	for _, m := range in {
		switch m := m.(type) {
		case nft.AddrIn:
			if cluster.FamilyOf(m.Prefix.Addr()) != f {
				continue
			}
		case nft.InSet:
			k := table.Sets[m.Set].Key[0]
			if (k == nft.KeyIPDst || k == nft.KeyIPSrc) && f != cluster.IPv4 ||
				(k == nft.KeyIP6Dst || k == nft.KeyIP6Src) && f != cluster.IPv6 {
				continue
			}
			if slices.Contains(table.Sets[m.Set].Key, nft.KeyProto) {
				if l4 {
					continue
				}
				l4 = true
			}
		case nft.L4Proto, nft.DstPort:
			if l4 {
				continue
			}
			l4 = true
		}
		out = append(out, m)
	}
	return out
}

func match(t *rapid.T, table *nft.Table, c *nft.Chain) nft.Match {
	not := rapid.Bool().Draw(t, "not")
	switch rapid.IntRange(0, 9).Draw(t, "match") {
	case 2:
		if c.Type != "" && c.Hook != "ingress" {
			return nft.CTMarkIs{Value: rapid.Uint32().Draw(t, "connection's mark")}
		}
	case 8:
		if c.Type != "" && c.Hook != "ingress" {
			return rapid.SampledFrom([]nft.CTDirection{nft.CTOriginal, nft.CTReply}).Draw(t, "direction")
		}
	case 9:
		if c.Type != "" && c.Hook != "ingress" {
			states := []nft.CTState{nft.CTRelated, nft.CTEstablished, nft.CTNewOrInvalid}
			return rapid.SampledFrom(states).Draw(t, "state")
		}
	case 0:
		a := addr(t, family(t))
		return nft.AddrIn{Dst: rapid.Bool().Draw(t, "daddr"), Not: not,
			Prefix: netip.PrefixFrom(a, rapid.IntRange(1, a.BitLen()).Draw(t, "bits")).Masked()}
	case 1:
		if c.Hook == "prerouting" || c.Hook == "output" {
			return nft.DstIsLocal{}
		}
	case 3:
		return nft.L4Proto{Protocol: protocol(t)}
	case 4:
		return nft.DstPort{Protocol: protocol(t), Port: rapid.Uint16().Draw(t, "port")}
	case 5:
		if c.Hook == "output" || c.Hook == "postrouting" {
			return nft.OutInterface{Name: "ovn-k8s-mp0", Not: not}
		}
	case 6:
		if c.Hook == "prerouting" {
			return nft.InInterface{Name: rapid.SampledFrom([]string{"eth0", "hairpin*"}).Draw(t, "interface"), Not: not}
		}
	case 7:
		mask := rapid.SampledFrom([]uint32{^uint32(0), 0x3f0, 1}).Draw(t, "mask")
		return nft.MarkIs{Value: rapid.Uint32().Draw(t, "mark") & mask, Mask: mask}
	}
	for name := range table.Sets {
		return nft.InSet{Set: name}
	}
	return nft.MarkIs{Value: 1, Mask: 1}
}

func statement(t *rapid.T, table *nft.Table, c *nft.Chain, f cluster.Family) nft.Statement {
	n := rapid.IntRange(0, 10).Draw(t, "statement")
	switch {
	case n == 9 && c.Hook == "prerouting":
		return nft.SaveMark{}
	case n == 10 && c.Hook == "prerouting":
		return nft.RestoreMark{}
	case n == 9 && c.Hook == "postrouting":
		for name, m := range table.Maps {
			if m.Family == f && slices.Contains(m.Key, nft.KeyOut) {
				return nft.SNATMap{Map: name}
			}
		}
	case n == 0 && c.Hook == "postrouting":
		return nft.Masquerade{}
	case n == 1 && c.Hook == "postrouting":
		return nft.SNAT{Addr: addr(t, f)}
	case n <= 2 && c.Type == "nat" && c.Hook != "postrouting":
		for name, m := range table.Maps {
			if m.Family == f && slices.Contains(m.Key, nft.KeyProto) && slices.Contains(m.Key, nft.KeyPort) &&
				(m.Key[0] == nft.KeyProto || (m.Key[0] == nft.KeyIPDst) == (f == cluster.IPv4)) {
				return nft.DNATMap{Map: name}
			}
		}
	case n == 3:
		return nft.SetMark{Value: rapid.Uint32().Draw(t, "set mark")}
	case n == 4:
		return nft.Drop{}
	case n == 5:
		return nft.Return{}
	case n == 6:
		return nil
	case n == 7 && c.Hook == "ingress":
		return nft.Forward{Device: "lo"}
	case n == 7 && c.Hook == "output" && c.Type == "filter":
		return nft.Reject{}
	}
	return nft.Accept{}
}

func protocol(t *rapid.T) cluster.Protocol {
	return rapid.SampledFrom([]cluster.Protocol{cluster.TCP, cluster.UDP, cluster.SCTP}).Draw(t, "protocol")
}

// source draws ranges that do not overlap.
func source(t *rapid.T, f cluster.Family) netip.Prefix {
	n := rapid.Byte().Draw(t, "source")
	if f == cluster.IPv4 {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, n, 0}), 24)
	}
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 3: 0x10, 5: n}), 48)
}

func addr(t *rapid.T, f cluster.Family) netip.Addr {
	last := rapid.Byte().Draw(t, "address")
	if f == cluster.IPv4 {
		return netip.AddrFrom4([4]byte{10, 96, 0, last})
	}
	return netip.AddrFrom16([16]byte{0: 0xfd, 3: 0x10, 5: 0x96, 15: last})
}
