package svcbridge

import (
	"fmt"

	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/plan/node"
)

// Forgotten are flows of claims.ServiceBridge, in ovs-ofctl's words, for the first seconds of a
// userspace ovs-vswitchd, which has forgotten what the one before knew of connections. An endpoint
// that repeats what was not acknowledged may come before its client: it would be taken for who
// began the connection, and the client, who asked a Service, would refuse the endpoint's own
// address. So what began earlier is not noted until its client speaks to the Service, and a reset
// with which a host answers what is not known to it goes nowhere: RFC 9293, 3.10.7.1, gives that
// one no ACK flag, and one if it refuses a SYN. What begins now is noted as always.
func Forgotten() (list []string) {
	for table, next := range nextWithoutService {
		for _, f := range []cluster.Family{cluster.IPv4, cluster.IPv6} {
			v := node.Vocab(f)
			add := func(priority int, protocol flow.Protocol, rest string) {
				list = append(list, fmt.Sprintf("table=%d,priority=%d,%s,%s", table, priority, protocol, rest))
			}
			pass := fmt.Sprintf("ct_state=+trk+new-rel,actions=resubmit(,%d)", next)
			add(prioFrom+1, v.L4[cluster.TCP], "tcp_flags=+rst-ack,ct_state=+trk-est,actions=drop")
			add(prioFrom, v.L4[cluster.TCP], "tcp_flags=-syn,"+pass)
			add(prioFrom, v.L4[cluster.UDP], pass)
			add(prioFrom, v.L4[cluster.SCTP], pass)
			add(prioFrom, v.IP, "nw_frag=later,"+pass) // of IPv6 they are of no other protocol
		}
	}
	return list
}
