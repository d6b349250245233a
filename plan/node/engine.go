package node

import "hairpin/cluster"

// Engine is a Service engine: its decisions about what the other parts of a node do. Code that
// depends on the engine checks a decision, never which engine it is.
type Engine struct {
	// LoadBalancers: Services are load balancers of OVN, in groups of its switches and routers.
	LoadBalancers bool
	// PodPorts: OVN has a port for each pod, and tracks its connections. Otherwise it has one port
	// for all pods of the node.
	PodPorts bool
	// ServiceBridge: claims.ServiceBridge has the pods' ports and serves Services. The host's
	// routes to Services lead to claims.ServiceHost, packets of external clients come by a patch of
	// the gateway bridge, and its conntrack zone knows the sender of each connection.
	ServiceBridge bool
	// Rejects: the engine rejects connections to a Service without endpoints. Otherwise the host's
	// nft rejects them.
	Rejects bool
	// Policies: the engine enforces NetworkPolicies.
	Policies bool
}

// engineOf returns the engine of a node.
func engineOf(g *cluster.Gateway) Engine {
	if g.OpenFlow {
		return Engine{ServiceBridge: true, Policies: true}
	}
	return Engine{LoadBalancers: true, PodPorts: true, Rejects: true}
}
