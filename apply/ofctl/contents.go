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

// cachedContent holds the flows and groups of all bridges, as far as their caches are valid.
// Callers get its maps, so they are never modified.
type cachedContent struct {
	content
	mayDiffer bool // from what the last Run wanted
}

// change records changes that were made.
func (c *cachedContent) change(d ovs.Delta) {
	c.flows, c.groups = d.Flows.ApplyToMap(c.flows), d.Groups.ApplyToMap(c.groups)
}

// replace replaces the content of a bridge by what was read, and takes over its maps.
func (c *cachedContent) replace(bridge string, read content) {
	replace(&c.flows, read.flows, func(id flow.ID) bool { return id.Value().Bridge == bridge })
	replace(&c.groups, read.groups, func(k flow.GroupKey) bool { return k.Bridge == bridge })
	c.mayDiffer = true
}

// replace adds to read what cached has of other bridges, and sets cached to the result.
func replace[K comparable, V any](cached *delta.Map[K, V], read delta.Map[K, V], ofBridge func(K) bool) {
	for k, v := range cached.All() {
		if !ofBridge(k) {
			read.Put(k, v)
		}
	}
	*cached = read
}

// adopt takes over want's maps where they are equal, so that comparing them takes no time.
func (c *cachedContent) adopt(want ovs.State) {
	if c.mayDiffer {
		c.mayDiffer = !delta.OfMaps(want.Flows, c.flows, (*flow.Flow).Equal).Empty() ||
			!delta.OfMaps(want.Groups, c.groups, (*flow.Group).Equal).Empty()
	}
	if !c.mayDiffer {
		c.content = content{want.Flows, want.Groups}
	}
}
