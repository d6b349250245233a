package ofctl

import (
	"maps"

	"hairpin/datapath/delta"
	"hairpin/datapath/flow"
)

// content is the flows and groups of bridges.
type content struct {
	flows  map[flow.ID]*flow.Flow
	groups map[flow.GroupKey]*flow.Group
}

// contents is what all bridges have, as far as their caches are valid. Its maps are given away: they are never changed.
type contents struct {
	content
	since content // changes that are not in those maps yet; nil is what is gone
	raw   bool    // there may be something else than the last Run made it to be
}

// all is the content with all changes.
func (c *contents) all() content {
	c.flows, c.groups = changed(c.flows, c.since.flows), changed(c.groups, c.since.groups)
	c.since = content{}
	return c.content
}

// changed is have with changes.
func changed[K comparable, V any](have, changes map[K]*V) map[K]*V {
	if len(changes) == 0 {
		return have
	}
	out := make(map[K]*V, len(have)+len(changes))
	maps.Copy(out, have)
	maps.Copy(out, changes)
	for k, v := range changes {
		if v == nil {
			delete(out, k)
		}
	}
	return out
}

// change notes changes that were made.
func (c *contents) change(d flow.Delta) {
	note(&c.since.flows, d.Flows)
	note(&c.since.groups, d.Groups)
}

func note[K comparable, V any](changes *map[K]*V, d delta.Delta[K, *V]) {
	if *changes == nil {
		*changes = map[K]*V{}
	}
	for k := range d.Delete {
		(*changes)[k] = nil
	}
	maps.Copy(*changes, d.Add)
	maps.Copy(*changes, d.Change)
}

// replace gives a bridge another content.
func (c *contents) replace(bridge string, with content) {
	had := c.all()
	c.flows = replaced(had.flows, with.flows, func(id flow.ID) bool { return id.Value().Bridge == bridge })
	c.groups = replaced(had.groups, with.groups, func(k flow.GroupKey) bool { return k.Bridge == bridge })
	c.raw = true
}

func replaced[K comparable, V any](have, with map[K]*V, in func(K) bool) map[K]*V {
	out := make(map[K]*V, len(have))
	for k, v := range have {
		if !in(k) {
			out[k] = v
		}
	}
	maps.Copy(out, with)
	return out
}

// adopt takes want's maps where they have the same, so that comparing them takes no time.
func (c *contents) adopt(want flow.State) {
	if c.raw {
		has := c.all()
		c.raw = !delta.Of(want.Flows, has.flows, (*flow.Flow).Equal).Empty() || !delta.Of(want.Groups, has.groups, (*flow.Group).Equal).Empty()
	}
	if !c.raw {
		c.content, c.since = content{want.Flows, want.Groups}, content{}
	}
}
