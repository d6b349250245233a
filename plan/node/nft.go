package node

import (
	"maps"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/nft"
	"hairpin/delta"
)

// Names and priorities of our nft chains.
const (
	ChainNodePortIn    = "nodeport-prerouting"
	ChainNodePortOut   = "nodeport-output"
	ChainGuarded       = "load-balancer-sources"
	ChainMasquerade    = "masquerade-prerouting"
	ChainLoopbackIn    = "loopback-prerouting"
	ChainLoopbackOut   = "loopback-postrouting"
	ChainRefuseForward = "services-forward"
	ChainRefuseOut     = "services-output"
	ChainToPods        = "to-pods"
	ChainEgress        = "egress"
	ChainEgressMarks   = "egress-marks"
	ChainEgressGuard   = "egress-guard"
	ChainMoves         = "egress-moves"
	// exists only with the userspace datapath, and an EgressIP with destinations
	ChainDestinations   = "egress-destinations"
	ChainAnnounced      = "announced-input" // exists only while the host has a load balancer address
	ChainUplink         = "uplink"
	ChainPods           = "pods"
	ChainTunnels        = "tunnels"
	ChainTunnelsIn      = "tunnels-input"
	ChainTunnelsForward = "tunnels-forward"
	ChainFromPods       = "from-pods"
	ChainForeign        = "foreign-sources"
	ChainForwarded      = "forwarded-to-pods"
	ChainForwardedGuard = "forwarded-to-pods-guard"

	HookFilter  = 0    // filter
	HookMoves   = -150 // after the conntrack lookup
	HookDNAT    = -100 // dstnat
	HookMarks   = -90  // after dstnat, also that of hostPorts
	HookOthers  = -91  // before HookMarks, which saves the mark
	HookSNAT    = 100  // srcnat
	HookLeaks   = 110  // after srcnat
	HookGuard   = -500 // before anything else sees the frame
	HookTunnels = 0    // after a filter of the administrator, if there is one
)

// Copied is why the kernel drops packets that come in on a port of a userspace switch.
const Copied = "Open vSwitch has its own copy of the frame"

// Declared holds nft maps and sets of one family, by name, without elements. Rules that use them
// are in the base features.
type Declared struct {
	family cluster.Family
	maps   map[string]*nft.Map
	sets   map[string]*nft.Set
}

func Declare(f cluster.Family) Declared {
	return Declared{f, map[string]*nft.Map{}, map[string]*nft.Set{}}
}

// ToMap declares a map, whose name ends with the family's digit.
func (d Declared) ToMap(name string, key ...nft.KeyField) *nft.Map {
	m := &nft.Map{Name: name + Vocab(d.family).digit, Family: d.family, Key: key}
	d.maps[m.Name] = m
	return m
}

func (d Declared) Set(name string, key ...nft.KeyField) *nft.Set {
	s := &nft.Set{Name: name + Vocab(d.family).digit, Key: key}
	d.sets[s.Name] = s
	return s
}

// In adds the maps and sets to a table.
func (d Declared) In(t *nft.Table) {
	maps.Copy(t.Maps, d.maps)
	maps.Copy(t.Sets, d.sets)
}

// Elements is a table with the elements of one part. It has only maps and sets that are not empty.
type Elements struct{ *nft.Table }

func NewElements() Elements {
	return Elements{&nft.Table{Maps: map[string]*nft.Map{}, Sets: map[string]*nft.Set{},
		Chains: map[string]*nft.Chain{}}}
}

// Of returns the elements of a declared set.
func (t Elements) Of(s *nft.Set) *delta.Map[nft.Element, cluster.Owner] {
	mine := t.Sets[s.Name]
	if mine == nil {
		mine = &nft.Set{Name: s.Name, Key: s.Key}
		t.Sets[s.Name] = mine
	}
	return &mine.Elements
}

// To returns the elements of a declared map.
func (t Elements) To(m *nft.Map) *delta.Map[nft.Element, nft.Target] {
	mine := t.Maps[m.Name]
	if mine == nil {
		mine = &nft.Map{Name: m.Name, Family: m.Family, Key: m.Key}
		t.Maps[m.Name] = mine
	}
	return &mine.Elements
}

// Forwarded matches packets with claims.MarkForwarded.
func Forwarded() nft.Match {
	return nft.MarkIs{Value: claims.MarkForwarded, Mask: claims.MarkForwarded}
}

// Priorities of filter hooks.
const (
	HookLoopback = -300 // raw: before a reply is un-NATed
	HookGuarded  = -150 // mangle: before DNAT
	HookRefuse   = 0    // filter: after DNAT
)

// Chains writes rules of the host's table.
type Chains struct {
	Env   *Env
	Table *nft.Table
	owner cluster.Owner
}

func NewChains(e *Env) Chains {
	t := &nft.Table{Chains: map[string]*nft.Chain{}, Maps: map[string]*nft.Map{}, Sets: map[string]*nft.Set{}}
	return Chains{Env: e, Table: t, owner: OwnerOf(e.Node.Name)}
}

// Base adds a chain that a hook of the kernel calls.
func (c Chains) Base(name, typ, hook string, priority int, rules []nft.Rule) {
	c.Table.Chains[name] = &nft.Chain{Name: name, Type: typ, Hook: hook, Priority: priority, Rules: rules,
		Owner: c.owner}
}

func (c Chains) State() datapath.State { return datapath.State{NFT: nft.State{nft.Inet: c.Table}} }

func (c Chains) Rule(do nft.Statement, comment string, matches ...nft.Match) nft.Rule {
	return nft.Rule{Matches: matches, Do: do, Comment: comment, Owner: c.owner}
}
