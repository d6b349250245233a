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
		Packet: "as it came in: from the uplink, the host (LOCAL), the gateway router or br-svc",
		Does:   "sends it on by port, protocol and address: Services, tunnels, replies to the node, ARP and the rest",
		Miss:   "never: a flow of priority 0 switches it like a normal bridge, or drops it in mode detached",
		Next: []uint8{GatewayServices, GatewayUplinkConntrack, GatewayNodePortSource, GatewaySNAT, GatewayUnDNAT,
			GatewayToHost, GatewayToRouter},
	},
	{
		Bridge: Gateway, ID: GatewayServices, Name: "Services",
		Packet: "IPv4 or IPv6 from the uplink to the node's MAC: before conntrack, and new ones once more after it",
		Does:   "sends packets to addresses and ports of Services to br-svc, if the client's source is allowed",
		Miss:   "never: a flow of priority 0 sends it to UplinkConntrack",
		Next:   []uint8{GatewayUplinkConntrack, GatewayServiceConntrack, GatewayServiceMTU},
	},
	{
		Bridge: Gateway, ID: GatewayUplinkConntrack, Name: "UplinkConntrack",
		Packet: "from the uplink, with its connection in conntrack zone 64000",
		Does: "returns packets of known connections to their owner, the host or the gateway router; gives new " +
			"ones to Services, or to the host",
		Miss:  "dropped, without an uplink; else a flow of priority 0 outputs it to the host",
		Again: []uint8{GatewayServices},
	},
	{
		Bridge: Gateway, ID: GatewayServiceConntrack, Name: "ServiceConntrack",
		Packet: "of no connection of the node and to no Service port, with its connection in the zone of br-svc",
		Does:   "sends packets of a connection to a removed Service, and ICMP errors about it, to br-svc",
		Miss:   "never: a flow of priority 0 outputs it to the host",
	},
	{
		Bridge: Gateway, ID: GatewayServiceMTU, Name: "ServiceMTU",
		Packet: "UDP or SCTP to a Service with pods as endpoints, marked if it is longer than the pods' MTU",
		Does:   "outputs long packets to the host, which fragments them or reports the MTU; others to br-svc",
		Miss:   "never: a flow of priority 0 sends it to br-svc",
	},
	{
		Bridge: Gateway, ID: GatewayNodePortSource, Name: "NodePortSource",
		Packet: "leaves with a source address and port that are also a Service's",
		Does:   "outputs replies of the Service; looks for the connection of all else",
		Miss:   "dropped by a flow of priority 0",
		Next:   []uint8{GatewayNodeConntrack},
	},
	{
		Bridge: Gateway, ID: GatewayNodeConntrack, Name: "NodeConntrack",
		Packet: "the same from the host or the gateway router, with its connection in conntrack zone 64000",
		Does: "records that the connection is the node's own, so that its replies are not taken for " +
			"requests to the Service",
		Miss: "dropped by a flow of priority 0",
	},
	{
		Bridge: Gateway, ID: GatewaySNAT, Name: "SNAT",
		Packet: "from the gateway router to an endpoint on this host",
		Does:   "gives it the masquerade address of OVN as source, so that the host replies to the gateway router",
		Miss:   "dropped",
		Next:   []uint8{GatewayToHost},
	},
	{
		Bridge: Gateway, ID: GatewayUnDNAT, Name: "UnDNAT",
		Packet: "a reply of the host to that address, with its SNAT undone",
		Does:   "undoes the DNAT to the host's address",
		Miss:   "dropped",
		Next:   []uint8{GatewayToRouter},
	},
	{
		Bridge: Gateway, ID: GatewayToHost, Name: "ToHost",
		Packet: "ready for the host",
		Does:   "sets the Ethernet addresses and outputs it to LOCAL",
		Miss:   "never: it has one flow, for all packets",
	},
	{
		Bridge: Gateway, ID: GatewayToRouter, Name: "ToGatewayRouter",
		Packet: "ready for the gateway router",
		Does:   "sets the Ethernet addresses and outputs it to the patch port of OVN",
		Miss:   "never: it has one flow, for all packets",
	},
	{
		Bridge: Service, ID: SvcClassifier, Name: "Classifier",
		Packet: "as it came in: from a pod, OVN, the host (svc-host) or the gateway bridge (svc-ext)",
		Does:   "checks what the port may send, and looks for the connection of packets to Services",
		Miss:   "dropped",
		Next: []uint8{SvcFromPod, SvcUnSNAT, SvcServiceConntrack, SvcIngressClassifier, SvcL2Forwarding,
			SvcNeighborDiscovery, SvcMulticast},
	},
	{
		Bridge: Service, ID: SvcFromPod, Name: "FromPod",
		Packet: "from a pod of this node, with a source that the pod may have",
		Does:   "looks for the connection, by destination: Service, pod, external",
		Miss:   "never: a flow of priority 0 sends it to EgressClassifier, without a connection",
		Next: []uint8{SvcUnSNAT, SvcServiceConntrack, SvcPodConntrack, SvcExternalConntrack, SvcEgressClassifier,
			SvcL2Forwarding, SvcNDSecurity, SvcMulticast},
	},
	{
		Bridge: Service, ID: SvcUnSNAT, Name: "UnSNAT",
		Packet: "a reply to an address that a second translation gave, with that undone",
		Does:   "looks for the first translation",
		Miss:   "dropped, if it is no reply",
		Next:   []uint8{SvcHairpinReply, SvcExternalReply},
	},
	{
		Bridge: Service, ID: SvcServiceConntrack, Name: "ServiceConntrack",
		Packet: "to an address that Services may have, with its connection",
		Does: "sends replies to their client; what has an endpoint already to EgressClassifier; drops " +
			"invalid packets from outside",
		Miss: "never: a flow of priority 0 sends it to ServiceLB",
		Next: []uint8{SvcServiceLB, SvcEgressClassifier, SvcExternalReply},
	},
	{
		Bridge: Service, ID: SvcPodConntrack, Name: "PodConntrack",
		Packet: "from a pod to a pod, with its connection",
		Does:   "passes it on",
		Miss:   "never: a flow of priority 0 sends it to EgressClassifier",
		Next:   []uint8{SvcEgressClassifier},
	},
	{
		Bridge: Service, ID: SvcExternalConntrack, Name: "ExternalConntrack",
		Packet: "from a pod to an address outside of the cluster, with its connection",
		Does:   "sends replies to external clients of Services to ExternalReply",
		Miss:   "never: a flow of priority 0 sends it to EgressClassifier",
		Next:   []uint8{SvcEgressClassifier, SvcExternalReply},
	},
	{
		Bridge: Service, ID: SvcServiceLB, Name: "ServiceLB",
		Packet: "new, to an address that Services may have",
		Does: "selects an endpoint by the group of the Service port; checks source ranges; drops packets without " +
			"a local endpoint under policy Local; marks those without any endpoint for the host, which rejects them",
		Miss: "never: a flow of priority 0 sends it to EgressClassifier",
		Next: []uint8{SvcSessionAffinity, SvcEndpointDNAT, SvcEgressClassifier, SvcL2Forwarding},
	},
	{
		Bridge: Service, ID: SvcSessionAffinity, Name: "SessionAffinity",
		Packet: "new, to a Service with session affinity",
		Does:   "sets the endpoint that the client had: these flows are learned",
		Miss:   "left as it is",
	},
	{
		Bridge: Service, ID: SvcEndpointDNAT, Name: "EndpointDNAT",
		Packet: "the same, with the endpoint of the client or without one",
		Does:   "selects an endpoint by the group; learns and translates to the selected one",
		Miss:   "dropped",
		Next:   []uint8{SvcEgressClassifier},
		Again:  []uint8{SvcEndpointDNAT},
	},
	{
		Bridge: Service, ID: SvcEgressClassifier, Name: "EgressClassifier",
		Packet: "with the address of its endpoint, before its connection is committed",
		Does:   "sets the profile of the pod that sends it, if a policy selects the pod",
		Miss:   "never: a flow of priority 0 sends it to IngressClassifier",
		Next:   []uint8{SvcEgressConntrack, SvcIngressClassifier, SvcConntrackCommit},
	},
	{
		Bridge: Service, ID: SvcEgressConntrack, Name: "EgressConntrack",
		Packet: "from a pod that a policy selects",
		Does: "passes replies, except those of denied connections, packets to the pod itself, and all of pods without " +
			"egress rules; sends others to the first tier with rules of the profile",
		Miss: "never: a flow of priority 0 sends it to EgressRule",
		Next: []uint8{SvcEgressAdmin, SvcEgressRule, SvcEgressBaseline, SvcIngressClassifier},
	},
	{
		Bridge: Service, ID: SvcEgressAdmin, Name: "EgressAdmin",
		Packet: "from a pod with egress rules of the tier Admin, in the direction in which its connection began",
		Does:   "does what the first rule says that matches: accept, deny or pass to the next tier, as without one",
		Miss:   "never: a flow of priority 0 sends it to PolicyDrop",
		Next:   []uint8{SvcEgressRule, SvcEgressBaseline, SvcIngressClassifier, SvcPolicyDrop},
	},
	{
		Bridge: Service, ID: SvcEgressRule, Name: "EgressRule",
		Packet: "from a pod that a policy isolates for egress, in the direction in which its connection began",
		Does:   "passes what a rule of the pod's profile accepts, and packets to the pod's node",
		Miss:   "never: a flow of priority 0 sends it to PolicyDrop",
		Next:   []uint8{SvcIngressClassifier, SvcPolicyDrop},
	},
	{
		Bridge: Service, ID: SvcEgressBaseline, Name: "EgressBaseline",
		Packet: "from a pod with egress rules of the tier Baseline that no NetworkPolicy isolates for egress",
		Does:   "does what the first rule says that matches: accept or deny; accepts others",
		Miss:   "never: a flow of priority 0 sends it to PolicyDrop",
		Next:   []uint8{SvcIngressClassifier, SvcPolicyDrop},
	},
	{
		Bridge: Service, ID: SvcIngressClassifier, Name: "IngressClassifier",
		Packet: "permitted by the policies of its sender, if that is a pod of this node",
		Does:   "sets the profile of the pod that receives it, if a policy selects the pod",
		Miss:   "never: a flow of priority 0 sends it to ConntrackCommit",
		Next:   []uint8{SvcIngressConntrack, SvcConntrackCommit},
	},
	{
		Bridge: Service, ID: SvcIngressConntrack, Name: "IngressConntrack",
		Packet: "to a pod that a policy selects",
		Does: "passes replies, except those of denied connections, packets of the pod itself and of its node, " +
			"and all to pods without ingress rules; sends others to the first tier with rules of the profile",
		Miss: "never: a flow of priority 0 sends it to IngressRule",
		Next: []uint8{SvcIngressAdmin, SvcIngressRule, SvcIngressBaseline, SvcConntrackCommit},
	},
	{
		Bridge: Service, ID: SvcIngressAdmin, Name: "IngressAdmin",
		Packet: "to a pod with ingress rules of the tier Admin, in the direction in which its connection began",
		Does:   "does what the first rule says that matches: accept, deny or pass to the next tier, as without one",
		Miss:   "never: a flow of priority 0 sends it to PolicyDrop",
		Next:   []uint8{SvcIngressRule, SvcIngressBaseline, SvcConntrackCommit, SvcPolicyDrop},
	},
	{
		Bridge: Service, ID: SvcIngressRule, Name: "IngressRule",
		Packet: "to a pod that a policy isolates for ingress, in the direction in which its connection began",
		Does:   "passes what a rule of the pod's profile accepts",
		Miss:   "never: a flow of priority 0 sends it to PolicyDrop",
		Next:   []uint8{SvcConntrackCommit, SvcPolicyDrop},
	},
	{
		Bridge: Service, ID: SvcIngressBaseline, Name: "IngressBaseline",
		Packet: "to a pod with ingress rules of the tier Baseline that no NetworkPolicy isolates for ingress",
		Does:   "does what the first rule says that matches: accept or deny; accepts others",
		Miss:   "never: a flow of priority 0 sends it to PolicyDrop",
		Next:   []uint8{SvcConntrackCommit, SvcPolicyDrop},
	},
	{
		Bridge: Service, ID: SvcConntrackCommit, Name: "ConntrackCommit",
		Packet: "permitted by all policies",
		Does:   "commits new connections, and marks formerly denied ones as permitted",
		Miss:   "never: a flow of priority 0 sends it to SNAT",
		Next:   []uint8{SvcSNAT},
	},
	{
		Bridge: Service, ID: SvcPolicyDrop, Name: "PolicyDrop",
		Packet: "denied by a policy",
		Does:   "marks its connection as denied, if it has one, so that its replies are dropped too",
		Miss:   "dropped",
	},
	{
		Bridge: Service, ID: SvcSNAT, Name: "SNAT",
		Packet: "with the address of its endpoint",
		Does: "gives it a source to which replies return: for a pod that reaches itself, the host " +
			"and external clients",
		Miss: "never: a flow of priority 0 sends it to L3Forwarding",
		Next: []uint8{SvcL3Forwarding, SvcHairpinReply},
	},
	{
		Bridge: Service, ID: SvcL3Forwarding, Name: "L3Forwarding",
		Packet: "with its last source and destination",
		Does:   "outputs it to the pod of this node that has the destination",
		Miss:   "never: a flow of priority 0 sends it to L2Forwarding",
		Next:   []uint8{SvcL2Forwarding},
	},
	{
		Bridge: Service, ID: SvcHairpinReply, Name: "HairpinReply",
		Packet: "from a pod that is its own client, or back to it",
		Does:   "outputs it to the port from which it came",
		Miss:   "dropped",
	},
	{
		Bridge: Service, ID: SvcExternalReply, Name: "ExternalReply",
		Packet: "a reply to the host or to an external client, with the source that the client expects",
		Does:   "outputs it to the host, or to the gateway bridge with the recorded MAC of the client",
		Miss:   "dropped, if no external client can reach br-svc",
	},
	{
		Bridge: Service, ID: SvcL2Forwarding, Name: "L2Forwarding",
		Packet: "ready to leave",
		Does:   "outputs packets of OVN to the pod with their destination MAC",
		Miss:   "never: a flow of priority 0 outputs it to OVN",
	},
	{
		Bridge: Service, ID: SvcNDSecurity, Name: "NDSecurity",
		Packet: "neighbor solicitation or advertisement of a pod",
		Does:   "checks target and link-layer addresses",
		Miss:   "dropped",
		Next:   []uint8{SvcNeighborDiscovery},
	},
	{
		Bridge: Service, ID: SvcNeighborDiscovery, Name: "NeighborDiscovery",
		Packet: "ARP, or neighbor discovery that is checked",
		Does:   "outputs requests to the pod that has the address",
		Miss:   "never: a flow of priority 0 outputs it to OVN",
		Next:   []uint8{SvcMulticast},
	},
	{
		Bridge: Service, ID: SvcMulticast, Name: "Multicast",
		Packet: "multicast or broadcast of a pod, or of OVN to pods",
		Does:   "outputs it to the pods of this node and to OVN",
		Miss:   "dropped",
	},
	{
		Bridge: Tunnel, ID: TunnelNodes, Name: "Nodes",
		Packet: "between OVN and the tunnels",
		Does:   "outputs packets for another node to its tunnel, and those of the tunnels to OVN",
		Miss:   "dropped",
	},
}
