// Package claims names every number that Hairpin takes on a shared host, once: mark bits, conntrack
// zones, route tables, rule priorities, OpenFlow tables and cookies, nft tables, the route
// protocol, and the places of the masquerade subnet. So two features cannot take the same number
// unnoticed.
package claims

// Offsets in the masquerade subnet (docs/design/origins.md#masquerade-addresses).
const (
	MasqOVN      = 1 // the gateway router, as the host sees it
	MasqHost     = 2 // the host, as the gateway router sees it
	MasqETPLocal = 3 // of the node switch: the node's own endpoints, for clients outside that come through the host
	MasqNextHop  = 4 // dummy next hop of host and gateway router towards each other
	MasqHairpin  = 5 // source that OVN gives to a pod that reaches itself through a Service
	// of the gateway router: all endpoints, where internalTrafficPolicy keeps them from the cluster
	// IP
	MasqCluster   = 6
	MasqAddresses = 7 // how many addresses, the network address included, a masquerade subnet must have
)

// Offsets in the node-local subnet (docs/design/origins.md#node-local-access), the same on every
// node.
const (
	NodeLocalHost       = 1 // the host on LocalPort
	NodeLocalRouter     = 2 // the distributed gateway port
	NodeLocalManagement = 3 // the management port, as the host sees it beyond that
)

// MasqMAC is the MAC of the dummy next hop, for both families
// (docs/design/origins.md#masquerade-addresses).
const MasqMAC = "0a:58:a9:fe:a9:04"

// RedirectMAC is the sender of frames between the host and the gateway bridge that the eBPF
// programs know by it: requests that the bridge shall track, and all answers. On the bridge and
// nowhere else.
const RedirectMAC = "0a:58:a9:fe:a9:55"

// Conntrack zones of the gateway bridge (docs/design/origins.md#conntrack-zones-and-tables). OVN
// numbers its own zones from 1 upwards.
const (
	ZoneUplink = 64000 // connections between the external network and OVN or the host
	ZoneHost   = 64001 // host <-> gateway router: the host's address <-> its masquerade address
	ZoneReturn = 64002 // gateway router <-> host endpoint: node address <-> OVN's masquerade address

	ZoneServices = 64003 // pods <-> Services, on ServiceBridge
	// what needs another source for its answers to come back to ServiceBridge: a pod <-> itself
	// (MasqHairpin), host and clients outside
	ZonePinned = 64004
)

// Conntrack marks in ZoneUplink: the owner of the connection.
const (
	CTMarkOVN  = 1
	CTMarkHost = 2
)

// CTMarkOutside is the conntrack mark, in ZoneServices or ZonePinned, of connections that the host
// or a client outside began: the connection knows the MAC that answers go to.
const CTMarkOutside = 3

// CTMarkNode is the conntrack mark, in ZoneServices, of connections that the host or pods of the
// node began from a port of a Service at the node's address: their replies are none of Services'.
const CTMarkNode = 5

// CTMarkClientMAC is the conntrack mark, in ZoneServices, of connections of an external client
// whose MAC is in ct_label. Unlike CTMarkOutside, it leads no reply.
const CTMarkClientMAC = 4

// MarkNodeIP is the packet mark of pod traffic to a node address, 1008 = 0x3f0
// (docs/design/origins.md#policies).
const MarkNodeIP = 0x3f0

// MarkReply is the packet mark, within OVN, of replies of pods with an egress address to their
// clients: they return the way the requests came. OVN-Kubernetes uses the same mark.
const MarkReply = 42

// MarkRefused is the packet mark, within OVN, of what pods on ServiceBridge send to an address from
// outside whose Service has no endpoint: the host refuses it.
const MarkRefused = 44

// MarkForceSNAT is the packet mark, within the gateway router, of connections that its load
// balancers translate and that leave with an address of the router (lb_force_snat_ip).
const MarkForceSNAT = 1 << 18

// ServiceBridge has pods' ports, and Services as flows and groups, in OpenFlow tables of its own
// (package pipeline).
const (
	ServiceBridge = "br-svc"
	// ServicePatch is its port to IntegrationBridge, whose end of it is PodsPatch.
	ServicePatch = "svc-int"
	PodsPatch    = "int-svc"
	// ServiceHost is the host's port, an internal one: routes to Services lead there.
	ServiceHost = "svc-host"
	// WirePatch is its port to the gateway bridge, whose end of it is ServicesPatch: what clients
	// outside send to Services.
	WirePatch     = "svc-ext"
	ServicesPatch = "ext-svc"
)

// TunnelBridge is where what goes to other nodes gets its tunnel, with flows in table 0 only.
const (
	TunnelBridge = "br-tun"
	TunnelPort   = "tunnels" // of all of them
	// TunnelPatch is its port to IntegrationBridge, whose end of it is OthersPatch.
	TunnelPatch = "tun-int"
	OthersPatch = "int-tun"
)

// Cookie and CookieMask: flows of ours on the gateway bridge have a cookie with Cookie in the bits
// of CookieMask (0xdeff105, the cookie that OVN-Kubernetes gives to its flows). The 32 bits above
// tell the feature.
const (
	Cookie     = 0x0deff105
	CookieMask = 0xffffffff
	// CookieLearned and a timeout are in those bits of flows in TableAffinity, which Open vSwitch
	// makes and removes by itself. CookieLearned alone is that of ofctl.Target.AddPassing, whose
	// flows it removes by itself as well.
	CookieLearned     = 0x0dee0000
	CookieLearnedMask = 0xffff0000
)

// NFTTable is the name of our nft tables, in the families inet and netdev.
const NFTTable = "hairpin"

// RouteProtocol marks routes of ours (`ip route … proto 85`); 85 is not assigned in iproute2's
// rt_protos.
const RouteProtocol = 85

// AddressProtocol marks addresses of ours on links that are the machine's (`ip address`, IFA_PROTO,
// Linux 5.18): egress addresses on other networks than the gateway bridge's.
const AddressProtocol = 85

// EgressTableBase plus a link's index is the route table of egress addresses on that link.
// OVN-Kubernetes adds 1000, where administrators have tables of their own.
const EgressTableBase = 85000

// Policy-routing rules of ours have priorities in [RulePriorityFirst, RulePriorityLast]
// (docs/design/origins.md#addresses-on-other-links: 5999, 6000).
const (
	RulePriorityFirst = 5990
	RulePriorityLast  = 6009

	RuleMainTable = 5999 // packets with MarkNodeIP use the main table
	RuleEgress    = 6000 // a pod with an egress address uses the table of the address's link
)

// Where container runtimes look for networks, and the name of ours in it: they take the first by
// name.
const (
	CNIConfDir  = "/etc/cni/net.d"
	CNIConfFile = "05-hairpin.conflist"
)

// PortmapPlugin is the name of CNI's portmap plugin as Hairpin installs it, for host ports of pods.
// It has its rules in PortmapTable of the families ip and ip6, as its backend PortmapBackend has.
const (
	PortmapPlugin  = "hairpin-portmap"
	PortmapBackend = "nftables"
	PortmapTable   = "cni_hostport"
	// PortmapInImage is where it is in the container image.
	PortmapInImage = "/usr/local/lib/hairpin/cni/portmap"
)

// ManagementPort is the host's port into the pod network (an Open vSwitch internal port on br-int).
const ManagementPort = "ovn-k8s-mp0"

// PodInterface is the prefix of the names of the host's ends of pods' veth pairs; eight hexadecimal
// digits follow.
const PodInterface = "hairpin"

// The path of tunnels on a node whose address is not on an Open vSwitch bridge (userspace datapath,
// mode detached): the bridge EncapBridge, and a veth pair between it and the host. Their addresses
// mean nothing beyond the host.
const (
	EncapBridge = "br-enc"
	EncapHost   = "enc-host"   // the host's end, first address of EncapSubnet4 and EncapSubnet6
	EncapPort   = "enc-switch" // the bridge's port; the bridge has the second address

	EncapSubnet4 = "169.254.170.0/30"
	EncapSubnet6 = "fd6a::/126"
)

// LocalPort is the host's end of the network of the distributed gateway port: an internal port of
// bridge LocalBridge (docs/design/origins.md#node-local-access).
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

// Priorities of policies: of ovn_cluster_router (docs/design/origins.md#policies) except where it
// says the gateway router.
const (
	PolicyInternal = 1007 // pods to addresses of the datapath itself
	// of the gateway router: MarkForceSNAT, to its own node's other addresses, or to what is not by
	// the host's routes
	PolicyForceSNATLocal = 1006
	PolicyForceSNAT      = 1005 // of the gateway router: MarkForceSNAT
	// of ovn_cluster_router: the host, as a client of a Service, to what the host itself must get
	PolicyDistributed = 1005
	// to the own node's address: through the management port, or from the gateway router by the
	// bridge
	PolicyNodeLocal = 1004
	// to a cluster IP that no load balancer matched: the host rejects pods, the gateway router
	// drops it
	PolicyServices      = 1003
	QoSInside           = 104 // on the node's switch: replies to clients within the cluster have no mark
	PolicyReplies       = 103 // replies of a pod with an egress address to clients outside
	PolicyEastWest      = 102
	PolicyHostEgress    = 101 // pods of other nodes, on the node that has their egress address on another network
	PolicyEgressNetwork = 101 // the node's own pods to a network of one of their egress addresses
	PolicyEgress        = 100
)

// Priorities of ACLs of the node switch.
const (
	ACLExcept = 1001 // what ACLDrop does not mean
	ACLDrop   = 1000
)

// The eBPF programs that redirect clients outside, and their maps, in bpftool's list. A program
// that is called so and has MapServices is ours.
const (
	ProgramRequest = "hp_request" // at a NIC's ingress: what is for a Service goes to the gateway bridge
	ProgramReply   = "hp_reply"   // at the gateway bridge's ingress: the gateway router's answers go to a NIC

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
	KeyOwner  = "k8s.ovn.org/owner"
	KeyLimit  = "k8s.ovn.org/limit" // of a row of Flow_Table or CT_Zone: the limit in it, if Hairpin set that
	KeyBridge = "k8s.ovn.org/flows" // the same, of a bridge that is there for Hairpin's flows and goes with them
)

// Features of flows: the upper half of the cookie names the part of the plan that a flow belongs
// to.
const (
	FeatureGateway  = 1 // the bridge itself: host, gateway router and uplink
	FeatureServices = 2 // NodePorts
	FeatureRedirect = 3 // packets that the eBPF programs bring, and their answers
	FeatureTunnels  = 4 // between nodes
)
