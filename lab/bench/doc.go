// Package bench measures Hairpin beside Kubernetes' own kube-proxy in nftables mode: on the same
// machine, with the same API server and the same objects, one after the other or in turn, never at
// the same time. Both nodes are lab nodes: the one has Open vSwitch, OVN and the agent, the other
// routed veth pairs and kube-proxy.
//
// What is measured is what a client sees: real connections that are answered, never a log line of
// the one or the other.
package bench
