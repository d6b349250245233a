package nft

import (
	"cmp"
	"fmt"
	"slices"

	"hairpin/datapath/nft"
)

// Ruleset is the tables of a host, indexed for lookup.
type Ruleset struct {
	chains map[string][]*chain // by hook, in order of priority
	// Unknown describes the part of the tables that is not known; empty: none.
	Unknown string
}

// chain is a base chain.
type chain struct {
	*nft.Chain
	family nft.Family
	table  *nft.Table
}

// ruleOf is a rule whose text needs its table.
type ruleOf struct {
	table *nft.Table
	rule  *nft.Rule
}

func (r ruleOf) String() string { return r.table.RuleText(r.rule) }

// New returns the Ruleset of a State.
func New(s nft.State) *Ruleset {
	r := &Ruleset{chains: map[string][]*chain{}}
	for family, t := range s {
		for _, c := range t.Chains {
			switch c.Hook {
			case "ingress", "prerouting", "input", "forward", "output", "postrouting":
			case "":
				continue
			default:
				r.Unknown = fmt.Sprintf("chain %s: hook %q is not known", c.Name, c.Hook)
			}
			x := &chain{Chain: c, family: family, table: t}
			r.chains[c.Hook] = append(r.chains[c.Hook], x)
		}
	}
	for _, list := range r.chains {
		slices.SortFunc(list, func(a, b *chain) int {
			return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.family, b.family),
				cmp.Compare(a.Name, b.Name))
		})
	}
	return r
}
