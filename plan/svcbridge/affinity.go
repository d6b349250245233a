package svcbridge

import (
	"time"

	"hairpin/datapath/flow"
	"hairpin/pipeline"
	"hairpin/plan/node"
	"hairpin/plan/service"
)

// Limits of session affinity.
const (
	longestAffinity = 65535 * time.Second // 16 bits
	// affinityLimit is the number of clients of one Frontend that a node remembers. Each is a flow
	// of 0.8 kB, and Open vSwitch counts all of them for each new one: 0.5 ms at the limit.
	affinityLimit = 10000
	// affinityTotal is the limit for all Frontends together: 40 MB. Open vSwitch rejects further
	// ones, at no more cost than that of a connection.
	affinityTotal = 50000
)

// toGroup sends new connections to a group. With session affinity, the flow first looks up whether
// the client is remembered.
func toGroup(x *service.Front, id uint32) []flow.Action {
	if x.Affinity == 0 {
		return []flow.Action{flow.ToGroup{ID: id}}
	}
	return []flow.Action{flow.SetGroup{ID: id}, flow.Resubmit{Table: pipeline.SvcSessionAffinity},
		flow.Resubmit{Table: pipeline.SvcEndpointDNAT}}
}

// learnAffinity adds flows that record the bucket of each client. A bucket only selects an
// endpoint. A flow for each bucket then translates, and is also used by recorded clients. All
// variants of a Frontend share the record. A recorded bucket that the group does not have (any
// more) has no such flow, so the group chooses another one.
//
// The group hashes the client's port, so that the megaflow of a client's first connection does not
// match the second: the second must use the record.
func (w *serviceBridge) learnAffinity(x *service.Front, g *flow.Group) {
	v := node.Vocab(x.Family)
	g.Hashed = v.L4[x.Protocol]
	m := flow.Match{Protocol: v.IP, Group: g.ID}
	w.add(pipeline.SvcEndpointDNAT, prioOthers, m, flow.ToGroup{ID: g.ID})
	learn := flow.Learn{Table: pipeline.SvcSessionAffinity, Family: x.Family, VariantBits: variantBits,
		Client:  g.ID >> variantBits << variantBits,
		Timeout: uint16(min(x.Affinity, longestAffinity) / time.Second), Limit: affinityLimit}
	for i, b := range g.Buckets {
		m.Bucket = b.ID
		w.add(pipeline.SvcEndpointDNAT, prioTo, m, learn, b.CT)
		g.Buckets[i] = flow.Bucket{ID: b.ID, Next: pipeline.SvcEndpointDNAT}
	}
}
