package ofctl

import (
	"hairpin/datapath/flow"
	"hairpin/delta"
)

// content is the flows and groups of bridges.
type content struct {
	flows  delta.Map[flow.ID, *flow.Flow]
	groups delta.Map[flow.GroupKey, *flow.Group]
}

// contents is what all bridges have, as far as their caches are valid. Its maps are given away:
// they are never changed.
type contents struct {
	content
	raw bool // there may be something else than the last Run made it to be
}

// change notes changes that were made.
func (c *contents) change(d flow.Delta) {
	c.flows, c.groups = d.Flows.ApplyToMap(c.flows), d.Groups.ApplyToMap(c.groups)
}

// replace gives a bridge another content, which nobody else has.
func (c *contents) replace(bridge string, with content) {
	replace(&c.flows, with.flows, func(id flow.ID) bool { return id.Value().Bridge == bridge })
	replace(&c.groups, with.groups, func(k flow.GroupKey) bool { return k.Bridge == bridge })
	c.raw = true
}

func replace[K comparable, V any](has *delta.Map[K, V], with delta.Map[K, V], in func(K) bool) {
	for k, v := range has.All() {
		if !in(k) {
			with.Put(k, v)
		}
	}
	*has = with
}

// adopt takes want's maps where they have the same, so that comparing them takes no time.
func (c *contents) adopt(want flow.State) {
	if c.raw {
		c.raw = !delta.OfMaps(want.Flows, c.flows, (*flow.Flow).Equal).Empty() ||
			!delta.OfMaps(want.Groups, c.groups, (*flow.Group).Equal).Empty()
	}
	if !c.raw {
		c.content = content{want.Flows, want.Groups}
	}
}
