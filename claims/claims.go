// Package claims lists, once, every number and name that Hairpin uses on a shared host: mark bits,
// conntrack zones, route tables, rule priorities, OpenFlow cookies, nft tables, the route protocol,
// the offsets in subnets, bridges and their ports. So two features cannot use the same one
// unnoticed. The numbers of OpenFlow tables are in package pipeline.
package claims

// Offsets in the masquerade subnet (docs/design/origins.md#masquerade-addresses). A field of
// node.Stack with the same name has the address.
const (
	MasqOVN  = 1 // the gateway router, as the host sees it
	MasqHost = 2 // the host, as the gateway router sees it
	// VIP of the node's own endpoints, for external clients that come through the host
	MasqLocal   = 3
	MasqNext    = 4 // dummy next hop of host and gateway router towards each other
	MasqHairpin = 5 // source that OVN gives to a pod that reaches itself through a Service
	// VIP of all endpoints, because with internalTrafficPolicy Local the cluster IP has only some
	MasqAll = 6
	// the host on ServiceHost: the kernel's reverse-path check drops all IPv4 packets of a link
	// without an address
	MasqServiceHost = 7
	MasqAddresses   = 8 // how many addresses, the network address included, a masquerade subnet must have
)

// Offsets in the node-local subnet (docs/design/origins.md#node-local-access), the same on every
// node.
const (
	NodeLocalHost       = 1 // the host on LocalPort
	NodeLocalRouter     = 2 // the distributed gateway port
	NodeLocalManagement = 3 // the management port, as the host sees it behind that port
)

// Offsets in a node's pod subnet.
const (
	PodRouter     = 1
	PodManagement = 2
)

// Offsets in the join and transit subnets. The cluster router is first on the join switch. A node's
// routers are at its ID plus NodeOffset.
const (
	JoinRouter = 1
	NodeOffset = 1
)

// MasqMAC is the MAC of the dummy next hop, for both families
// (docs/design/origins.md#masquerade-addresses).
const MasqMAC = "0a:58:a9:fe:a9:04"

// RedirectMAC is the source MAC of frames between the host and the gateway bridge. By it, the eBPF
// programs recognize requests that the bridge must track, and all replies. It is used only on the
// bridge.
const RedirectMAC = "0a:58:a9:fe:a9:55"

// Conntrack zones of the gateway bridge (docs/design/origins.md#conntrack-zones-and-tables). OVN
// numbers its own zones from 1 upwards.
const (
	ZoneUplink = 64000 // connections between the external network and OVN or the host
	ZoneHost   = 64001 // host <-> gateway router: the host's address <-> its masquerade address
	ZoneReturn = 64002 // gateway router <-> host endpoint: node address <-> OVN's masquerade address

	ZoneServices = 64003 // pods <-> Services, on ServiceBridge
	// connections that need SNAT so that replies return to ServiceBridge: a pod <-> itself
	// (MasqHairpin), the host and external clients
	ZonePinned = 64004
)

// Conntrack marks in ZoneUplink: the owner of the connection.
const (
	CTMarkOVN  = 1
	CTMarkHost = 2
)

// CTMarkOutside is the conntrack mark, in ZoneServices or ZonePinned, of connections that the host
// or an external client began. The connection records the MAC that replies go to.
const CTMarkOutside = 3

// CTMarkDenied is a bit of the conntrack mark, in ZoneServices, of connections that a policy
// denies.
const CTMarkDenied = 0x100

// CTMarkNode is the conntrack mark, in ZoneServices, of connections of the host or the node's pods
// from a Service port at the node's address. Their replies do not belong to a Service.
const CTMarkNode = 5

// CTMarkClientMAC is the conntrack mark, in ZoneServices, of connections of an external client
// whose MAC is in ct_label. Unlike CTMarkOutside, it does not direct replies.
const CTMarkClientMAC = 4

// MarkNodeIP is the packet mark of pod traffic to a node address, 1008 = 0x3f0
// (docs/design/origins.md#policies).
const MarkNodeIP = 0x3f0

// MarkEgress is the packet mark, within Open vSwitch, of packets that the cluster router sends to
// its node's gateway router for an egress address. On the gateway bridge they must have one.
const MarkEgress = 0x3f1

// MarkForwarded is a bit of the packet mark, on the host: it forwards the packet to a pod, for a
// client of its own or elsewhere. Other programs' marks use the other bits.
const MarkForwarded = 1 << 28

// MarkReply is the packet mark, within OVN, of replies of pods with an egress address to their
// clients. They return by the path of the requests. OVN-Kubernetes uses the same mark.
const MarkReply = 42

// MarkRejected is the packet mark, within OVN, of packets from pods on ServiceBridge to an external
// address of a Service without endpoints. The host rejects them.
const MarkRejected = 44

// MarkForceSNAT is the packet mark, within the gateway router, of connections that its load
// balancers translate and that leave with an address of the router (lb_force_snat_ip).
const MarkForceSNAT = 1 << 18

// ServiceBridge has the pods' ports, and Services as flows and groups in its own OpenFlow tables
// (package pipeline).
const (
	ServiceBridge = "br-svc"
	// ServicePatch is its port to IntegrationBridge, whose end of it is PodsPatch.
	ServicePatch = "svc-int"
	PodsPatch    = "int-svc"
	// ServiceHost is the host's port, an internal port that routes to Services use.
	ServiceHost = "svc-host"
	// ExternalPatch is its port to the gateway bridge. ServicesPatch is the other end. It carries
	// packets from external clients to Services.
	ExternalPatch = "svc-ext"
	ServicesPatch = "ext-svc"
)

// TunnelBridge chooses the tunnel of packets to other nodes, with flows in table 0 only.
const (
	TunnelBridge = "br-tun"
	TunnelPort   = "tunnels" // the port of all tunnels
	// TunnelPatch is its port to IntegrationBridge, and OthersPatch the end there: the port to the
	// other nodes.
	TunnelPatch = "tun-int"
	OthersPatch = "int-tun"
)

// Hairpin's flows on the gateway bridge have Cookie in the bits CookieMask of their cookie
// (0xdeff105, the cookie of OVN-Kubernetes' flows). The 32 bits above name the feature.
const (
	Cookie     = 0x0deff105
	CookieMask = 0xffffffff
	// CookieLearned and a timeout are in those bits of flows of pipeline.SvcSessionAffinity, which
	// Open vSwitch learns and expires. CookieLearned alone marks the flows of
	// ofctl.Target.AddTemporary, which Open vSwitch expires as well.
	CookieLearned     = 0x0dee0000
	CookieLearnedMask = 0xffff0000
)

// NFTTable is the name of Hairpin's nft tables, one for each family in use.
const NFTTable = "hairpin"

// RouteProtocol marks Hairpin's routes (`ip route … proto 85`); 85 is not assigned in iproute2's
// rt_protos.
const RouteProtocol = 85

// AddressProtocol marks addresses that Hairpin adds to links of the machine (`ip address`,
// IFA_PROTO, Linux 5.18): egress addresses on other networks than the gateway bridge's.
const AddressProtocol = 85

// EgressTableBase plus a link's index is the route table of egress addresses on that link.
// OVN-Kubernetes adds 1000, a range in which administrators have their own tables.
const EgressTableBase = 85000

// ForwardTable is the route table for packets with MarkForwarded.
const ForwardTable = EgressTableBase - 1

// Hairpin's policy-routing rules have priorities in [RulePriorityFirst, RulePriorityLast]
// (docs/design/origins.md#addresses-on-other-links: 5999, 6000).
const (
	RulePriorityFirst = 5990
	RulePriorityLast  = 6009

	RuleForwarded = 5998 // packets with MarkForwarded use ForwardTable
	RuleMainTable = 5999 // packets with MarkNodeIP use the main table
	RuleEgress    = 6000 // a pod with an egress address uses the table of the address's link
)

// CNIConfDir is where container runtimes look for network configurations, CNIConfFile Hairpin's
// file in it. Runtimes use the first file by name.
const (
	CNIConfDir  = "/etc/cni/net.d"
	CNIConfFile = "05-hairpin.conflist"
)

// PortmapPlugin is the name of CNI's portmap plugin as Hairpin installs it, for host ports of pods.
// Its backend PortmapBackend writes its rules to PortmapTable of the families ip and ip6.
const (
	PortmapPlugin  = "hairpin-portmap"
	PortmapBackend = "nftables"
	PortmapTable   = "cni_hostport"
	// PortmapInImage is its path in the container image.
	PortmapInImage = "/usr/local/lib/hairpin/cni/portmap"
)

// ManagementPort is the host's port into the pod network (an Open vSwitch internal port on br-int).
const ManagementPort = "ovn-k8s-mp0"

// PodInterface is the prefix of the names of the host's ends of pods' veth pairs; eight hexadecimal
// digits follow.
const PodInterface = "hairpin"

// EncapBridge, and a veth pair between it and the host, are the path of tunnels on a node whose
// address is not on an Open vSwitch bridge (userspace datapath, mode detached). Their addresses
// have no meaning outside the host.
const (
	EncapBridge = "br-enc"
	EncapHost   = "enc-host"   // the host's end, first address of EncapSubnet4 and EncapSubnet6
	EncapPort   = "enc-switch" // the bridge's port; the bridge has the second address

	EncapSubnet4 = "169.254.170.0/30"
	EncapSubnet6 = "fd6a::/126"
)

// LocalPort is the host's end of the distributed gateway port's network, an internal port of bridge
// LocalBridge (docs/design/origins.md#node-local-access).
const (
	LocalBridge = "br-local"
	LocalPort   = "ovn-k8s-gw0"
)

// IntegrationBridge is OVN's own bridge.
const IntegrationBridge = "br-int"

// Names of the topology, those of OVN-Kubernetes.
const (
	ClusterRouter = "ovn_cluster_router"
	JoinSwitch    = "join"
	TransitSwitch = "transit_switch"
	PhysicalNet   = "physnet"
	LocalSwitch   = "node_local_switch"
	LocalNet      = "locnet" // its name in ovn-bridge-mappings
)

// TransitTunnelKey is the datapath tunnel key of the transit switch, the same in every zone.
const TransitTunnelKey = 16711683

// Priorities of policies: of ovn_cluster_router (docs/design/origins.md#policies) except where the
// comment says gateway router. QoS rows that belong to a policy have its priority.
const (
	PolicyInternal = 1007 // pods to addresses of the datapath itself
	// of the gateway router: MarkForceSNAT, to its own node's other addresses, or to destinations
	// that the host does not route
	PolicyForceSNATLocal = 1006
	PolicyForceSNAT      = 1005 // of the gateway router: MarkForceSNAT
	// of ovn_cluster_router: packets of the host, as a client of a Service, that the host itself
	// must receive
	PolicyDistributed = 1005
	// to the own node's address: through the management port, or from the gateway router by the
	// bridge
	PolicyNodeLocal = 1004
	// to a cluster IP that no load balancer matched: the host rejects pods' packets, the gateway
	// router drops them
	PolicyServices      = 1003
	QoSInside           = 104 // on the node switch: replies to clients within the cluster get no mark
	PolicyReplies       = 103 // replies of a pod with an egress address to external clients
	PolicyEastWest      = 102
	PolicyHostEgress    = 101 // pods of other nodes, on the node that has their egress address on another network
	PolicyEgressNetwork = 101 // the node's own pods to a network of one of their egress addresses
	PolicyEgress        = 100
	PolicyEgressOthers  = 99 // pods of an EgressIP to other destinations than it names
)

// Priorities of ACLs of the node switch.
const (
	ACLExcept = 1001 // exceptions to ACLDrop
	ACLDrop   = 1000
)

// Names of the eBPF programs that redirect packets of external clients, and of their maps, in
// bpftool's list. A program with such a name and MapServices is Hairpin's.
const (
	ProgramRequest = "hp_request" // at a NIC's ingress: sends packets to Services to the gateway bridge
	ProgramReply   = "hp_reply"   // at the gateway bridge's ingress: sends the gateway router's replies to a NIC

	MapServices = "hp_services" // addresses, protocols and ports
	MapTarget   = "hp_target"   // the gateway bridge
	MapCounters = "hp_counters" // packets

	// Priority and handle of their filters, where the kernel has no tcx.
	FilterPriority = 85
	FilterHandle   = 85
)

// ExternalID keys in the OVN databases and Open vSwitch.
const (
	// cluster.Owner.String() of the object that the row is for; its presence marks the row as
	// Hairpin's
	KeyOwner = "k8s.ovn.org/owner"
	KeyLimit = "k8s.ovn.org/limit" // of a row of Flow_Table or CT_Zone: its limit, if Hairpin set it
	KeyTable = "k8s.ovn.org/table" // of a row of Flow_Table: its name in Hairpin's pipeline
	// as KeyOwner, of a bridge that exists only for Hairpin's flows, and is deleted with them
	KeyBridge = "k8s.ovn.org/flows"
)

// Features of flows: the upper half of the cookie names the part of the plan that a flow belongs
// to.
const (
	FeatureGateway  = 1 // the bridge itself: host, gateway router and uplink
	FeatureServices = 2 // NodePorts
	FeatureRedirect = 3 // packets that the eBPF programs redirect, and their replies
	FeatureTunnels  = 4 // between nodes
	FeaturePolicies = 5 // NetworkPolicies

	// FeatureDrop is set in addition for flows that drop, so that their counters can be read
	// without those of all other flows.
	FeatureDrop = 1 << 16
)
