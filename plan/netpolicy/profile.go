package netpolicy

import (
	"fmt"
	"slices"
	"strings"

	"hairpin/cluster"
	"hairpin/plan/stablehash"
)

// Open is the ID of the Profile of a pod that no Policy isolates in a direction. It has no rules
// and accepts everything.
const Open = 1

// Profile is the rules that apply to packets of a pod in one direction. What no Rule accepts is
// dropped. Pods with equal rules share it.
type Profile struct {
	Direction Direction
	ID        uint32 // not 0, not Open
	Rules     []Rule // at most one for a set and a family
	sets      []*set
	text      string
	users     int
}

// Rule accepts packets of a set of peers on some ports.
type Rule struct {
	Set    uint32         // 0: every address
	Family cluster.Family // of a rule for every address; 0: both
	Ports  []PortRange    // sorted, without overlaps; nil: all of every protocol
	Policy cluster.Owner  // which has the rule; of several, the first
}

// rule is a Rule before its set has a number.
type rule struct {
	peers  *peers // nil: every address
	key    string // text of peers
	family cluster.Family
	all    bool // every port of every protocol
	ports  []PortRange
	policy cluster.Owner
}

// mergeRules returns rules with one for each set and family, sorted, and their common text.
func mergeRules(d Direction, list []rule) (out []rule, text string) {
	slices.SortStableFunc(list, func(a, b rule) int {
		if c := strings.Compare(a.key, b.key); c != 0 {
			return c
		}
		if a.family != b.family {
			return int(a.family) - int(b.family)
		}
		return a.policy.Compare(b.policy)
	})
	var b strings.Builder
	fmt.Fprintf(&b, "direction %d\n", d)
	for i := 0; i < len(list); {
		r := list[i]
		r.ports = nil
		for ; i < len(list) && list[i].key == r.key && list[i].family == r.family; i++ {
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

// numbers gives IDs to texts. An ID follows from the text, unless another text has it.
type numbers struct{ taken map[uint32]string }

func (n *numbers) take(text string) uint32 {
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

func (n *numbers) release(id uint32) { delete(n.taken, id) }

// hash is a variable so that a test can force clashes.
var hash = stablehash.String32
