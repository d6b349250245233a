package svcbridge

import (
	"time"

	"hairpin/datapath/flow"
	"hairpin/pipeline"
	"hairpin/plan/node"
	"hairpin/plan/service"
)

// What a flow can be told of session affinity.
const (
	longestAffinity = 65535 * time.Second // 16 bits
	// affinityLimit is how many clients of a Frontend a node remembers. Each is a flow of 0.8 kB,
	// and all of them are counted for each new one: 0.5 ms then.
	affinityLimit = 10000
	// affinityTotal is how many all Frontends have together: 40 MB. Open vSwitch refuses further
	// ones, at no more cost than that of a connection.
	affinityTotal = 50000
)

// toGroup gives new connections to a group. With session affinity it is looked first whether the
// client is remembered.
func toGroup(x *service.Front, id uint32) []flow.Action {
	if x.Affinity == 0 {
		return []flow.Action{flow.ToGroup{ID: id}}
	}
	return []flow.Action{flow.SetGroup{ID: id}, flow.Resubmit{Table: pipeline.SvcSessionAffinity},
		flow.Resubmit{Table: pipeline.SvcEndpointDNAT}}
}

// learnAffinity remembers of each client which bucket of a group it has: what buckets do is done by
// flows, which clients that are remembered find as well. All ways to a Frontend share what is
// remembered. A bucket that the group does not have (any more) is chosen anew: its flow is gone.
// The next connection finds what the first one has learned, as Open vSwitch chooses by the client's
// port, for each connection: what it knows of the first holds for no other.
func (w *serviceBridge) learnAffinity(x *service.Front, g *flow.Group) {
	v := node.Vocab(x.Family)
	g.Hashed = v.L4[x.Protocol]
	m := flow.Match{Protocol: v.IP, Group: g.ID}
	w.add(pipeline.SvcEndpointDNAT, prioOthers, m, flow.ToGroup{ID: g.ID})
	learn := flow.Learn{Table: pipeline.SvcSessionAffinity, Family: x.Family, Ways: wayBits,
		Client:  g.ID >> wayBits << wayBits,
		Timeout: uint16(min(x.Affinity, longestAffinity) / time.Second), Limit: affinityLimit}
	for i, b := range g.Buckets {
		m.Bucket = b.ID
		w.add(pipeline.SvcEndpointDNAT, prioTo, m, learn, b.CT)
		g.Buckets[i] = flow.Bucket{ID: b.ID, Next: pipeline.SvcEndpointDNAT}
	}
}
