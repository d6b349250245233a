// Package bench measures Hairpin beside Kubernetes' own kube-proxy in nftables mode: on the same machine, with the same
// API server and the same objects, one after the other or in turn, never at the same time. Both nodes are lab nodes: the one has
// Open vSwitch, OVN and the agent, the other routed veth pairs and kube-proxy.
//
// A third node, of the parts proof and groups, has Services as flows and groups of Open vSwitch that are written by hand: what an engine of
// OpenFlow could reach.
//
// What is measured is what a client sees: real connections that are answered, never a log line of the one or the other.
package bench
