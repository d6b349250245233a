package netpolicy

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"strings"

	"hairpin/cluster"
	"hairpin/plan/stablehash"
)

// Open is the ID of the Profile of a pod to which no Policy applies in a direction. It has no rules
// and accepts everything.
const Open = 1

// Profile is the rules that apply to packets of a pod in one direction, tier by tier. If Isolated,
// what no Rule of TierNetworkPolicy accepts is dropped, and there are none of TierBaseline. What
// passes all tiers is accepted. Pods with equal rules share it.
type Profile struct {
	Direction Direction
	ID        uint32 // not 0, not Open
	Isolated  bool
	Rules     []Rule // by Place; at most one for a set and a family
	sets      []*set
	text      string
	users     int
}

// In returns the Rules of a tier.
func (p *Profile) In(tier cluster.PolicyTier) []Rule {
	first := sort.Search(len(p.Rules), func(i int) bool { return p.Rules[i].Tier >= tier })
	n := sort.Search(len(p.Rules)-first, func(i int) bool { return p.Rules[first+i].Tier > tier })
	return p.Rules[first : first+n]
}

// Place is the place of rules in the order of evaluation: by tier, and by Level, 0 first. Rules of
// NetworkPolicies have Level 0. Those of ClusterNetworkPolicies have one that follows from the
// policy's priority and the place of the rule. So the Level of a rule never changes because another
// policy does.
type Place struct {
	Tier  cluster.PolicyTier
	Level uint16
}

// Levels is the number of Levels of a tier.
const Levels = (cluster.MaxPriority + 1) * cluster.MaxRules * 2

// placeOf returns the Place of a rule of a Policy. Two policies may have the same priority: of
// their rules with the same index, those that deny come first.
func placeOf(p *cluster.Policy, rule int, action cluster.PolicyAction) Place {
	if p.Tier == cluster.TierNetworkPolicy {
		return Place{Tier: p.Tier}
	}
	level := (p.Priority*cluster.MaxRules + rule) * 2
	if action != cluster.Deny {
		level++
	}
	return Place{p.Tier, uint16(level)}
}

// Rule does its Action with packets of a set of peers on some ports.
type Rule struct {
	Place
	Action cluster.PolicyAction
	Set    uint32         // 0: every address
	Family cluster.Family // of a rule for every address; 0: both
	Ports  []PortRange    // sorted, without overlaps; nil: all of every protocol
	Policy cluster.Owner  // which has the rule; of several, the first
}

// rule is a Rule before its set has a number.
type rule struct {
	place  Place
	action cluster.PolicyAction
	peers  *peers // nil: every address
	key    string // of the set: text of place, action and peers
	family cluster.Family
	all    bool // every port of every protocol
	ports  []PortRange
	policy cluster.Owner
}

// setPeers sets the peers of a rule; nil: every address. Flows of one conjunction have one
// priority, so a set belongs to one place.
func (r *rule) setPeers(p *peers) {
	if r.peers, r.key = p, ""; p == nil {
		return
	}
	if r.key = p.text(); r.place.Tier != cluster.TierNetworkPolicy {
		r.key = fmt.Sprintf("%v %d %s", r.place, r.action, r.key)
	}
}

// mergeRules returns rules with one for each place, action, set and family, sorted, and their
// common text.
func mergeRules(d Direction, isolated bool, list []rule) (out []rule, text string) {
	order := func(a, b *rule) int {
		return cmp.Or(cmp.Compare(a.place.Tier, b.place.Tier), cmp.Compare(a.place.Level, b.place.Level),
			cmp.Compare(a.action, b.action), strings.Compare(a.key, b.key), cmp.Compare(a.family, b.family))
	}
	slices.SortStableFunc(list, func(a, b rule) int { return cmp.Or(order(&a, &b), a.policy.Compare(b.policy)) })
	var b strings.Builder
	fmt.Fprintf(&b, "direction %d\n", d)
	if !isolated {
		b.WriteString("not isolated\n")
	}
	for i := 0; i < len(list); {
		r := list[i]
		r.ports = nil
		if r.place.Tier != cluster.TierNetworkPolicy {
			fmt.Fprintf(&b, "%v %d ", r.place, r.action)
		}
		for ; i < len(list) && order(&list[i], &r) == 0; i++ {
			r.all = r.all || list[i].all
			r.ports = append(r.ports, list[i].ports...)
			fmt.Fprintf(&b, "%s ", list[i].policy)
		}
		if r.ports = merged(r.ports); r.all {
			r.ports = nil
		}
		fmt.Fprintf(&b, "%q %d %v %v\n", r.key, r.family, r.all, r.ports)
		out = append(out, r)
	}
	return out, b.String()
}

// idPool gives IDs to texts. An ID follows from the text, unless another text has it.
type idPool struct{ taken map[uint32]string }

func (n *idPool) take(text string) uint32 {
	if n.taken == nil {
		n.taken = map[uint32]string{}
	}
	for id := hash(text); ; id++ {
		if has, is := n.taken[id]; id > Open && (!is || has == text) {
			n.taken[id] = text
			return id
		}
	}
}

func (n *idPool) release(id uint32) { delete(n.taken, id) }

// hash is a variable so that a test can force clashes.
var hash = stablehash.String32
