package ofctl

import (
	"hairpin/datapath/flow"
	"hairpin/datapath/ovs"
	"hairpin/delta"
)

// content holds flows and groups of bridges.
type content struct {
	flows  delta.Map[flow.ID, *flow.Flow]
	groups delta.Map[flow.GroupKey, *flow.Group]
}

// contents holds the flows and groups of all bridges, as far as their caches are valid. Callers get
// its maps, so they are never modified.
type contents struct {
	content
	raw bool // the content may differ from what the last Run wanted
}

// change records changes that were made.
func (c *contents) change(d ovs.Delta) {
	c.flows, c.groups = d.Flows.ApplyToMap(c.flows), d.Groups.ApplyToMap(c.groups)
}

// replace replaces the content of a bridge. It takes ownership of the new content's maps.
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

// adopt takes over want's maps where they are equal, so that comparing them takes no time.
func (c *contents) adopt(want ovs.State) {
	if c.raw {
		c.raw = !delta.OfMaps(want.Flows, c.flows, (*flow.Flow).Equal).Empty() ||
			!delta.OfMaps(want.Groups, c.groups, (*flow.Group).Equal).Empty()
	}
	if !c.raw {
		c.content = content{want.Flows, want.Groups}
	}
}
