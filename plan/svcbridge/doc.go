// Package svcbridge plans claims.ServiceBridge, the bridge of the Service engine "openflow": ports
// of pods, and Services as flows and groups. A packet to a Service or between pods passes conntrack
// once on the node of each of the two pods. What the host or an external client sends to a Service
// passes a second time, for the source address to which replies return. Pods of one node reach each
// other on this bridge; OVN has everything else.
//
// It plans everything that only this engine needs, also on the gateway bridge, in OVN and on the
// host.
package svcbridge
