// Package bench compares Hairpin with Kubernetes' own kube-proxy in nftables mode. Both run on the
// same machine, with the same API server and the same objects. They run one after the other or in
// turn, never at the same time. Both nodes are lab nodes. One has Open vSwitch, OVN and the agent,
// the other routed veth pairs and kube-proxy.
//
// The measurements are what a client sees: real connections with replies, never a log line.
package bench
