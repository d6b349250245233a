package svcbridge

import (
	"net/netip"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/pipeline"
	"hairpin/plan/node"
)

// toMulticast sends multicast and broadcast packets of pods, to addresses in the range to, to the
// node's pods and to OVN. Nothing is flooded to the host or to the external network: there, a pod
// would bypass EgressIPs and firewalls.
//
// On the userspace datapath a flow sees no port in a fragment, but conntrack knows it. So fragments
// pass conntrack for the guards in pipeline.SvcMulticast.
func (w *serviceBridge) toMulticast(v node.Vocabulary, to netip.Prefix) {
	m := flow.Match{Protocol: v.IP, Dst: to}
	w.add(pipeline.SvcFromPod, prioJoin, m, flow.Resubmit{Table: pipeline.SvcMulticast})
	m.Fragment = "yes"
	w.add(pipeline.SvcFromPod, prioJoin+1, m, track(claims.ZoneServices, pipeline.SvcMulticast))
}

// outputMulticast adds the last actions of flooded packets. Open vSwitch never sends a packet back
// out of its input port.
func (w *serviceBridge) outputMulticast(pods []*cluster.Pod) {
	out := []flow.Action{flow.Output{Port: claims.ServicePatch}}
	for _, p := range pods {
		out = append(out, flow.Output{Port: portOf(p)})
	}
	w.add(pipeline.SvcMulticast, prioOthers, flow.Match{}, out...)
}

// dropDHCP drops packets of pods to the ports of DHCP clients: a pod can choose their other fields.
// Replies to requests are the exception.
//
// The kernel's conntrack reassembles fragments. That of the userspace datapath knows their port,
// but not that of fragments which it treats as invalid: duplicates, short ones, and all while it
// holds as many as it can. A receiver would reassemble them, so none of them passes.
func (w *serviceBridge) dropDHCP(v node.Vocabulary) {
	m := flow.Match{Protocol: v.L4[cluster.UDP], DstPort: v.DHCP}
	w.add(pipeline.SvcFromPod, prioTo-1, m, flow.Drop{}) // packets that are not tracked
	// Fragments that nothing else tracks: from extra addresses of a pod, to no pod and no Service.
	fragment := flow.Match{Protocol: v.IP, Fragment: "yes"}
	w.add(pipeline.SvcFromPod, prioOthers+1, fragment, track(claims.ZoneServices, pipeline.SvcExternalConntrack))
	fragment.CTState = flow.CTState{Set: flow.CTTrk | flow.CTInv}
	m.CTState = flow.CTState{Set: flow.CTTrk, Clear: flow.CTRpl}
	for _, table := range []uint8{pipeline.SvcPodConntrack, pipeline.SvcServiceConntrack, pipeline.SvcExternalConntrack,
		pipeline.SvcMulticast} {
		w.add(table, prioSelf, m, flow.Drop{})
		if w.Node.Gateway.Userspace {
			w.add(table, prioSelf, node.Fragments(v, m), flow.Drop{})
			w.add(table, prioSelf, fragment, flow.Drop{})
		}
	}
}

// neighborDiscovery sends neighbor discovery of pods to pipeline.SvcNDSecurity, where each pod has
// its own targets and its own MAC as the link-layer address. A pod cannot advertise an address of
// another pod, nor probe whether an address is free: a pod that is about to use the address would
// give it up (RFC 4862, 5.4.3). The node assigns each address to one pod.
func (w *serviceBridge) neighborDiscovery() {
	for _, t := range []uint16{node.NeighborSolicitation, node.NeighborAdvertisement} {
		w.add(pipeline.SvcFromPod, prioGuard, flow.Match{Protocol: flow.ICMP6, ICMPType: t + 1},
			flow.Resubmit{Table: pipeline.SvcNDSecurity})
	}
	solicitation := flow.Match{Protocol: flow.ICMP6, ICMPType: node.NeighborSolicitation + 1, NoLinkAddr: true}
	w.add(pipeline.SvcNDSecurity, prioTo, solicitation, flow.Resubmit{Table: pipeline.SvcNeighborDiscovery})
}
