package node

import (
	"maps"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/datapath/nft"
	"hairpin/delta"
)

// Names of Hairpin's nft chains.
const (
	ChainNodePortIn     = "nodeport-prerouting"
	ChainNodePortOut    = "nodeport-output"
	ChainSourceRanges   = "load-balancer-sources"
	ChainMasquerade     = "masquerade-prerouting"
	ChainLoopbackIn     = "loopback-prerouting"
	ChainLoopbackOut    = "loopback-postrouting"
	ChainRejectForward  = "services-forward"
	ChainRejectOut      = "services-output"
	ChainToPods         = "to-pods"
	ChainEgress         = "egress"
	ChainEgressMarks    = "egress-marks"
	ChainEgressGuard    = "egress-guard"
	ChainMoves          = "egress-moves"
	ChainDestinations   = "egress-destinations" // userspace datapath only, if an EgressIP has destinations
	ChainAnnounced      = "announced-input"     // exists only while the host has a load balancer address
	ChainUplink         = "uplink"
	ChainPods           = "pods"
	ChainTunnels        = "tunnels"
	ChainTunnelsIn      = "tunnels-input"
	ChainTunnelsForward = "tunnels-forward"
	ChainFromPods       = "from-pods"
	ChainForeign        = "foreign-sources"
	ChainForwarded      = "forwarded-to-pods"
	ChainForwardedGuard = "forwarded-to-pods-guard"
)

// Priorities of hooks in the kernel: the lowest is first.
const (
	HookGuard        = -500 // before anything else sees the frame
	HookLoopback     = -300 // raw: before a reply is un-NATed
	HookMoves        = -150 // mangle: after the conntrack lookup
	HookSourceRanges = -150 // mangle: before DNAT
	HookDNAT         = -100 // dstnat
	HookDestinations = -91  // before HookMarks, which saves the mark
	HookMarks        = -90  // after dstnat, also that of hostPorts
	HookFilter       = 0    // filter
	HookReject       = 0    // filter: after DNAT
	HookTunnels      = 0    // after a filter of the administrator, if there is one
	HookSNAT         = 100  // srcnat
	HookLeaks        = 110  // after srcnat
)

// CopiedFrame is the comment of rules that drop the kernel's copy of a frame on a port of a
// userspace switch.
const CopiedFrame = "Open vSwitch has its own copy of the frame"

// Declared holds nft maps and sets of one family, by name, without elements. Rules that use them
// are in the base features.
type Declared struct {
	family cluster.Family
	maps   map[string]*nft.Map
	sets   map[string]*nft.Set
}

// Declare returns a Declared without maps and sets.
func Declare(f cluster.Family) Declared {
	return Declared{f, map[string]*nft.Map{}, map[string]*nft.Set{}}
}

// Map declares a map. Its name ends with the family's digit.
func (d Declared) Map(name string, key ...nft.KeyField) *nft.Map {
	m := &nft.Map{Name: name + Vocab(d.family).digit, Family: d.family, Key: key}
	d.maps[m.Name] = m
	return m
}

// Set declares a set. Its name ends with the family's digit.
func (d Declared) Set(name string, key ...nft.KeyField) *nft.Set {
	s := &nft.Set{Name: name + Vocab(d.family).digit, Key: key}
	d.sets[s.Name] = s
	return s
}

// AddTo adds the maps and sets to a table.
func (d Declared) AddTo(t *nft.Table) {
	maps.Copy(t.Maps, d.maps)
	maps.Copy(t.Sets, d.sets)
}

// Elements is a table with the elements of one part. It has only maps and sets that are not empty.
type Elements struct{ *nft.Table }

// NewElements returns Elements without any.
func NewElements() Elements {
	return Elements{&nft.Table{Maps: map[string]*nft.Map{}, Sets: map[string]*nft.Set{},
		Chains: map[string]*nft.Chain{}}}
}

// Set returns this table's elements of a declared set, to add to them.
func (t Elements) Set(s *nft.Set) *delta.Map[nft.Element, cluster.Owner] {
	mine := t.Sets[s.Name]
	if mine == nil {
		mine = &nft.Set{Name: s.Name, Key: s.Key}
		t.Sets[s.Name] = mine
	}
	return &mine.Elements
}

// Map returns this table's elements of a declared map, to add to them.
func (t Elements) Map(m *nft.Map) *delta.Map[nft.Element, nft.Target] {
	mine := t.Maps[m.Name]
	if mine == nil {
		mine = &nft.Map{Name: m.Name, Family: m.Family, Key: m.Key}
		t.Maps[m.Name] = mine
	}
	return &mine.Elements
}

// Chains writes rules of the host's table.
type Chains struct {
	Env   *Env
	Table *nft.Table
	owner cluster.Owner
}

// NewChains returns Chains without any. Its rules will belong to the planned node.
func NewChains(e *Env) Chains {
	t := &nft.Table{Chains: map[string]*nft.Chain{}, Maps: map[string]*nft.Map{}, Sets: map[string]*nft.Set{}}
	return Chains{Env: e, Table: t, owner: cluster.NodeOwner(e.Node.Name)}
}

// Base adds a chain that a hook of the kernel calls.
func (c Chains) Base(name, typ, hook string, priority int, rules []nft.Rule) {
	c.Table.Chains[name] = &nft.Chain{Name: name, Type: typ, Hook: hook, Priority: priority, Rules: rules,
		Owner: c.owner}
}

// Ingress adds a chain that gets the frames that arrive at a device.
func (c Chains) Ingress(name, device string, priority int, rules ...nft.Rule) {
	c.Table.Chains[name] = &nft.Chain{Name: name, Type: "filter", Hook: "ingress", Device: device, Priority: priority,
		Rules: rules, Owner: c.owner}
}

// State returns the table as a part of the node's State.
func (c Chains) State() datapath.State { return datapath.State{NFT: nft.State{nft.Inet: c.Table}} }

// Rule returns a rule: what to do with packets that all matches match.
func (c Chains) Rule(do nft.Statement, comment string, matches ...nft.Match) nft.Rule {
	return nft.Rule{Matches: matches, Do: do, Comment: comment, Owner: c.owner}
}

// Forwarded matches packets with claims.MarkForwarded.
func Forwarded() nft.Match {
	return nft.MarkIs{Value: claims.MarkForwarded, Mask: claims.MarkForwarded}
}
