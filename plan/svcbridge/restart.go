package svcbridge

import (
	"fmt"

	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/pipeline"
	"hairpin/plan/node"
)

// RestartFlows returns flows of claims.ServiceBridge, in the syntax of ovs-ofctl, for the first
// seconds of a userspace ovs-vswitchd, which has lost the connections of the previous process. An
// endpoint's retransmission may arrive before a packet of its client. Conntrack would take the
// endpoint for the client, and the client of a Service would reject the endpoint's own address.
//
// So earlier connections are not committed until their client sends to the Service. The flows also
// drop a host's reset for an unknown connection, which has no ACK flag. A reset that rejects a SYN
// has one (RFC 9293, 3.10.7.1). New connections are committed as always.
func RestartFlows() (list []string) {
	for _, f := range cluster.Families {
		v := node.Vocab(f)
		add := func(priority int, protocol flow.Protocol, rest string) {
			list = append(list, fmt.Sprintf("table=%d,priority=%d,%s,%s", pipeline.SvcConntrackCommit, priority,
				protocol, rest))
		}
		pass := fmt.Sprintf("ct_state=+trk+new-rel-dnat,actions=resubmit(,%d)", pipeline.SvcSNAT)
		add(prioFrom+1, v.L4[cluster.TCP], "tcp_flags=+rst-ack,ct_state=+trk-est-dnat,actions=drop")
		add(prioFrom, v.L4[cluster.TCP], "tcp_flags=-syn,"+pass)
		add(prioFrom, v.L4[cluster.UDP], pass)
		add(prioFrom, v.L4[cluster.SCTP], pass)
		add(prioFrom, v.IP, "nw_frag=later,"+pass) // IPv6 later fragments match no other protocol
	}
	return list
}
