package pipeline

// Tables of the gateway bridge. Numbers 0 to 5 are those of the design document
// (docs/design/origins.md#conntrack-zones-and-tables).
const (
	GatewayClassifier       = 0
	GatewayUplinkConntrack  = 1
	GatewayToRouter         = 2
	GatewayToHost           = 3
	GatewaySNAT             = 4
	GatewayUnDNAT           = 5
	GatewayServices         = 6
	GatewayServiceConntrack = 7
	GatewayServiceMTU       = 8
	GatewayNodePortSource   = 9
	GatewayNodeConntrack    = 10
	GatewayNeighborReplies  = 11
)

// Tables of claims.ServiceBridge.
const (
	SvcClassifier        = 0
	SvcFromPod           = 1
	SvcServiceConntrack  = 10
	SvcPodConntrack      = 11
	SvcExternalConntrack = 12
	SvcServiceLB         = 20
	SvcSessionAffinity   = 25
	SvcEndpointDNAT      = 26
	SvcSNAT              = 30
	SvcL3Forwarding      = 31
	SvcHairpinReply      = 35
	SvcUnSNAT            = 36
	SvcExternalReply     = 37
	SvcL2Forwarding      = 41
	SvcEgressClassifier  = 50
	SvcEgressConntrack   = 51
	SvcEgressRule        = 52
	SvcEgressAdmin       = 53
	SvcIngressClassifier = 54
	SvcIngressConntrack  = 55
	SvcIngressRule       = 56
	SvcIngressAdmin      = 57
	SvcConntrackCommit   = 58
	SvcPolicyDrop        = 59
	SvcNeighborDiscovery = 60
	SvcNDSecurity        = 61
	SvcMulticast         = 62
	SvcEgressBaseline    = 63
	SvcIngressBaseline   = 67
)

// TunnelNodes is the only table of claims.TunnelBridge.
const TunnelNodes = 0

// tables are in the order in which packets pass them.
var tables = []Table{
	{
		Bridge: Gateway, ID: GatewayClassifier, Name: "Classifier",
		Packet: "every packet: from the uplink, the host (LOCAL), the gateway router or br-svc",
		Does:   "send it to the next table by port, protocol and address: Services, tunnels, replies to the node, ARP, others",
		Miss:   "switched as by a normal bridge, or dropped in mode detached, by a flow of priority 0",
		Next: []uint8{GatewayServices, GatewayUplinkConntrack, GatewayNodePortSource, GatewaySNAT, GatewayUnDNAT,
			GatewayToHost, GatewayToRouter, GatewayNeighborReplies},
	},
	{
		Bridge: Gateway, ID: GatewayServices, Name: "Services",
		Packet: "an IP packet from the uplink to the node's MAC, before conntrack; the first of a connection once more after it",
		Does:   "send packets to addresses and ports of Services to br-svc, if the client's source is allowed",
		Miss:   "sent to UplinkConntrack, by a flow of priority 0",
		Next:   []uint8{GatewayUplinkConntrack, GatewayServiceConntrack, GatewayServiceMTU},
	},
	{
		Bridge: Gateway, ID: GatewayUplinkConntrack, Name: "UplinkConntrack",
		Packet: "a packet from the uplink, with its connection in conntrack zone 64000",
		Does: "send packets of known connections to their owner, the host or the gateway router; and new ones " +
			"to Services, or to the host",
		Miss:  "output to the host, by a flow of priority 0; dropped if the bridge has no uplink",
		Again: []uint8{GatewayServices},
	},
	{
		Bridge: Gateway, ID: GatewayServiceConntrack, Name: "ServiceConntrack",
		Packet: "a packet of no connection of the node, to no Service port, with its connection in the zone of br-svc",
		Does:   "send packets of a connection to a removed Service, and ICMP errors about it, to br-svc",
		Miss:   "output to the host, by a flow of priority 0",
	},
	{
		Bridge: Gateway, ID: GatewayServiceMTU, Name: "ServiceMTU",
		Packet: "a UDP or SCTP packet to a Service with pods as endpoints, marked if it is longer than the pods' MTU",
		Does:   "output long packets to the host, which fragments them or reports the MTU; and others to br-svc",
		Miss:   "output to br-svc, by a flow of priority 0",
	},
	{
		Bridge: Gateway, ID: GatewayNodePortSource, Name: "NodePortSource",
		Packet: "a packet that leaves with a source address and port that are also a Service's",
		Does:   "output replies of the Service, and look up the connection of other packets",
		Miss:   "dropped by a flow of priority 0",
		Next:   []uint8{GatewayNodeConntrack},
	},
	{
		Bridge: Gateway, ID: GatewayNodeConntrack, Name: "NodeConntrack",
		Packet: "such a packet of the host or the gateway router, with its connection in conntrack zone 64000",
		Does: "record that the connection is the node's own, so that its replies are not taken for " +
			"requests to the Service",
		Miss: "dropped by a flow of priority 0",
	},
	{
		Bridge: Gateway, ID: GatewaySNAT, Name: "SNAT",
		Packet: "a packet from the gateway router to an endpoint on this host",
		Does:   "give it the masquerade address of OVN as source, so that the host replies to the gateway router",
		Miss:   "dropped",
		Next:   []uint8{GatewayToHost},
	},
	{
		Bridge: Gateway, ID: GatewayUnDNAT, Name: "UnDNAT",
		Packet: "a reply of the host to that address, with its SNAT undone",
		Does:   "undo the DNAT to the host's address",
		Miss:   "dropped",
		Next:   []uint8{GatewayToRouter},
	},
	{
		Bridge: Gateway, ID: GatewayToHost, Name: "ToHost",
		Packet: "a packet for the host",
		Does:   "set the Ethernet addresses and output it to LOCAL",
		Miss:   "does not occur: the table has one flow, for all packets",
	},
	{
		Bridge: Gateway, ID: GatewayToRouter, Name: "ToGatewayRouter",
		Packet: "a packet for the gateway router",
		Does:   "set the Ethernet addresses and output it to the patch port of OVN",
		Miss:   "does not occur: the table has one flow, for all packets",
	},
	{
		Bridge: Gateway, ID: GatewayNeighborReplies, Name: "NeighborReplies",
		Packet: "an ARP packet or a neighbor advertisement of the gateway router",
		Does:   "switch it if the node has the sender's address",
		Miss:   "dropped: another node may have the address, and OVN still answers for it",
	},
	{
		Bridge: Service, ID: SvcClassifier, Name: "Classifier",
		Packet: "every packet: from a pod, OVN, the host (svc-host) or the gateway bridge (svc-ext)",
		Does:   "check that the port may send it, and look up the connection of packets to Services",
		Miss:   "dropped",
		Next: []uint8{SvcFromPod, SvcUnSNAT, SvcServiceConntrack, SvcIngressClassifier, SvcL2Forwarding,
			SvcNeighborDiscovery, SvcMulticast},
	},
	{
		Bridge: Service, ID: SvcFromPod, Name: "FromPod",
		Packet: "a packet from a pod of this node, with a source that the pod may have",
		Does:   "look up its connection, in a way that depends on the destination: Service, pod, external",
		Miss:   "sent to EgressClassifier without a connection, by a flow of priority 0",
		Next: []uint8{SvcUnSNAT, SvcServiceConntrack, SvcPodConntrack, SvcExternalConntrack, SvcEgressClassifier,
			SvcL2Forwarding, SvcNDSecurity, SvcMulticast},
	},
	{
		Bridge: Service, ID: SvcUnSNAT, Name: "UnSNAT",
		Packet: "a reply whose destination was translated back to the client's address (the SNAT of table 30)",
		Does:   "translate its source back to the Service's address",
		Miss:   "dropped, because the packet is no reply",
		Next:   []uint8{SvcHairpinReply, SvcExternalReply},
	},
	{
		Bridge: Service, ID: SvcServiceConntrack, Name: "ServiceConntrack",
		Packet: "a packet to an address that Services may have, with its connection",
		Does: "send replies to their client, and packets of known connections to EgressClassifier; drop invalid " +
			"packets from outside",
		Miss: "sent to ServiceLB, by a flow of priority 0",
		Next: []uint8{SvcServiceLB, SvcEgressClassifier, SvcExternalReply},
	},
	{
		Bridge: Service, ID: SvcPodConntrack, Name: "PodConntrack",
		Packet: "a packet from a pod to a pod, with its connection",
		Does:   "drop DHCP answers, and on the userspace datapath invalid fragments",
		Miss:   "sent to EgressClassifier, by a flow of priority 0",
		Next:   []uint8{SvcEgressClassifier},
	},
	{
		Bridge: Service, ID: SvcExternalConntrack, Name: "ExternalConntrack",
		Packet: "a packet from a pod to an address outside of the cluster, with its connection",
		Does:   "send replies to external clients of Services to ExternalReply",
		Miss:   "sent to EgressClassifier, by a flow of priority 0",
		Next:   []uint8{SvcEgressClassifier, SvcExternalReply},
	},
	{
		Bridge: Service, ID: SvcServiceLB, Name: "ServiceLB",
		Packet: "the first packet of a connection, to an address that Services may have",
		Does: "check source ranges, and select an endpoint by the group of the Service port. Under policy Local, drop it if " +
			"there is no local endpoint. If there is none at all, mark it for the host, which rejects it",
		Miss: "sent to EgressClassifier, by a flow of priority 0",
		Next: []uint8{SvcSessionAffinity, SvcEndpointDNAT, SvcEgressClassifier, SvcL2Forwarding},
	},
	{
		Bridge: Service, ID: SvcSessionAffinity, Name: "SessionAffinity",
		Packet: "the first packet of a connection, to a Service with session affinity",
		Does:   "set the endpoint that the client had. These flows are learned",
		Miss:   "continues without an endpoint",
	},
	{
		Bridge: Service, ID: SvcEndpointDNAT, Name: "EndpointDNAT",
		Packet: "such a packet, with the endpoint of a known client or without one",
		Does:   "select an endpoint by the group, if it has none; then learn the endpoint and translate to it",
		Miss:   "dropped",
		Next:   []uint8{SvcEgressClassifier},
		Again:  []uint8{SvcEndpointDNAT},
	},
	{
		Bridge: Service, ID: SvcEgressClassifier, Name: "EgressClassifier",
		Packet: "a packet with the address of its endpoint, before its connection is committed",
		Does:   "set the profile of the pod that sends it, if a policy selects the pod; pass on packets of other ports",
		Miss:   "dropped, as packets of a pod that was removed",
		Next:   []uint8{SvcEgressConntrack, SvcIngressClassifier, SvcConntrackCommit},
	},
	{
		Bridge: Service, ID: SvcEgressConntrack, Name: "EgressConntrack",
		Packet: "a packet from a pod that a policy selects",
		Does: "accept replies, except those of denied connections, packets to the pod itself, and all packets of pods " +
			"without egress rules; send others to the first tier with rules of the profile",
		Miss: "sent to EgressRule, by a flow of priority 0",
		Next: []uint8{SvcEgressAdmin, SvcEgressRule, SvcEgressBaseline, SvcIngressClassifier},
	},
	{
		Bridge: Service, ID: SvcEgressAdmin, Name: "EgressAdmin",
		Packet: "a packet of a client, from a pod with egress rules of the tier Admin",
		Does:   "apply the first rule that matches: accept, deny, or pass to the next tier, as without a match",
		Miss:   "sent to PolicyDrop, by a flow of priority 0",
		Next:   []uint8{SvcEgressRule, SvcEgressBaseline, SvcIngressClassifier, SvcPolicyDrop},
	},
	{
		Bridge: Service, ID: SvcEgressRule, Name: "EgressRule",
		Packet: "a packet of a client, from a pod that a policy isolates for egress",
		Does:   "accept packets that match a rule of the pod's profile, and packets to the pod's node",
		Miss:   "sent to PolicyDrop, by a flow of priority 0",
		Next:   []uint8{SvcIngressClassifier, SvcPolicyDrop},
	},
	{
		Bridge: Service, ID: SvcEgressBaseline, Name: "EgressBaseline",
		Packet: "a packet from a pod with egress rules of the tier Baseline, which no NetworkPolicy isolates for egress",
		Does:   "apply the first rule that matches: accept or deny; accept others",
		Miss:   "sent to PolicyDrop, by a flow of priority 0",
		Next:   []uint8{SvcIngressClassifier, SvcPolicyDrop},
	},
	{
		Bridge: Service, ID: SvcIngressClassifier, Name: "IngressClassifier",
		Packet: "a packet that egress policies accept, or that no pod of this node sent",
		Does:   "set the profile of the pod that receives it, if a policy selects the pod",
		Miss:   "sent to ConntrackCommit, by a flow of priority 0",
		Next:   []uint8{SvcIngressConntrack, SvcConntrackCommit},
	},
	{
		Bridge: Service, ID: SvcIngressConntrack, Name: "IngressConntrack",
		Packet: "a packet to a pod that a policy selects",
		Does: "accept replies, except those of denied connections, packets of the pod itself and of its node, and all " +
			"packets to pods without ingress rules; send others to the first tier with rules of the profile",
		Miss: "sent to IngressRule, by a flow of priority 0",
		Next: []uint8{SvcIngressAdmin, SvcIngressRule, SvcIngressBaseline, SvcConntrackCommit},
	},
	{
		Bridge: Service, ID: SvcIngressAdmin, Name: "IngressAdmin",
		Packet: "a packet of a client, to a pod with ingress rules of the tier Admin",
		Does:   "apply the first rule that matches: accept, deny, or pass to the next tier, as without a match",
		Miss:   "sent to PolicyDrop, by a flow of priority 0",
		Next:   []uint8{SvcIngressRule, SvcIngressBaseline, SvcConntrackCommit, SvcPolicyDrop},
	},
	{
		Bridge: Service, ID: SvcIngressRule, Name: "IngressRule",
		Packet: "a packet of a client, to a pod that a policy isolates for ingress",
		Does:   "accept packets that match a rule of the pod's profile",
		Miss:   "sent to PolicyDrop, by a flow of priority 0",
		Next:   []uint8{SvcConntrackCommit, SvcPolicyDrop},
	},
	{
		Bridge: Service, ID: SvcIngressBaseline, Name: "IngressBaseline",
		Packet: "a packet to a pod with ingress rules of the tier Baseline, which no NetworkPolicy isolates for ingress",
		Does:   "apply the first rule that matches: accept or deny; accept others",
		Miss:   "sent to PolicyDrop, by a flow of priority 0",
		Next:   []uint8{SvcConntrackCommit, SvcPolicyDrop},
	},
	{
		Bridge: Service, ID: SvcConntrackCommit, Name: "ConntrackCommit",
		Packet: "a packet that all policies accept",
		Does:   "commit new connections, and clear the mark of connections that were denied before",
		Miss:   "sent to SNAT, by a flow of priority 0",
		Next:   []uint8{SvcSNAT},
	},
	{
		Bridge: Service, ID: SvcPolicyDrop, Name: "PolicyDrop",
		Packet: "a packet that a policy denies",
		Does:   "mark its connection as denied, if it has one, so that replies are dropped, too",
		Miss:   "dropped",
	},
	{
		Bridge: Service, ID: SvcSNAT, Name: "SNAT",
		Packet: "a packet with the address of its endpoint",
		Does: "give packets of the host, of external clients and of a pod that reaches itself a source that brings " +
			"replies back",
		Miss: "sent to L3Forwarding, by a flow of priority 0",
		Next: []uint8{SvcL3Forwarding, SvcHairpinReply},
	},
	{
		Bridge: Service, ID: SvcL3Forwarding, Name: "L3Forwarding",
		Packet: "a packet with its final source and destination",
		Does:   "output it to the pod of this node that has the destination",
		Miss:   "sent to L2Forwarding, by a flow of priority 0",
		Next:   []uint8{SvcL2Forwarding},
	},
	{
		Bridge: Service, ID: SvcHairpinReply, Name: "HairpinReply",
		Packet: "a packet from a pod to itself through a Service, or its reply",
		Does:   "output it to the port from which it came",
		Miss:   "dropped",
	},
	{
		Bridge: Service, ID: SvcExternalReply, Name: "ExternalReply",
		Packet: "a reply to the host or to an external client, with the source that the client expects",
		Does:   "output it to the host, or to the gateway bridge with the recorded MAC of the client",
		Miss:   "dropped, if no external client can reach br-svc",
	},
	{
		Bridge: Service, ID: SvcL2Forwarding, Name: "L2Forwarding",
		Packet: "every other packet that leaves the bridge",
		Does:   "output packets of OVN to the pod with their destination MAC",
		Miss:   "output to OVN, by a flow of priority 0",
	},
	{
		Bridge: Service, ID: SvcNDSecurity, Name: "NDSecurity",
		Packet: "a neighbor solicitation or advertisement of a pod",
		Does:   "check target and link-layer addresses",
		Miss:   "dropped",
		Next:   []uint8{SvcNeighborDiscovery},
	},
	{
		Bridge: Service, ID: SvcNeighborDiscovery, Name: "NeighborDiscovery",
		Packet: "an ARP packet, or a neighbor discovery packet that was checked",
		Does:   "output requests to the pod that has the address",
		Miss:   "output to OVN, by a flow of priority 0",
		Next:   []uint8{SvcMulticast},
	},
	{
		Bridge: Service, ID: SvcMulticast, Name: "Multicast",
		Packet: "a multicast or broadcast frame of a pod, or of OVN to pods",
		Does:   "output it to the pods of this node and to OVN",
		Miss:   "dropped",
	},
	{
		Bridge: Tunnel, ID: TunnelNodes, Name: "Nodes",
		Packet: "every packet between OVN and the tunnels",
		Does:   "output packets for another node to its tunnel, and packets of the tunnels to OVN",
		Miss:   "dropped",
	},
}
