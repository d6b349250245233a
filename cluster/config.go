package cluster

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Config is the administrator's configuration. Each field names its section and key in the
// configuration file (those of OVN-Kubernetes, if it has the option).
type Config struct {
	ClusterSubnets []ClusterSubnet // [default] cluster-subnets, such as 10.244.0.0/16/24
	ServiceCIDRs   []netip.Prefix  // [kubernetes] service-cidrs
	MTU            int             // [default] mtu: of pods, bytes
	EncapPort      uint16          // [default] encap-port: UDP port of Geneve
	// [default] service-engine: EngineOVN or EngineOpenFlow. Gateway.OpenFlow says which one a node
	// uses.
	ServiceEngine string

	Gateway   GatewayConfig
	Conntrack ConntrackConfig

	// Services never get ReservedNodePorts at addresses of nodes, nor addresses of the cluster's
	// own ranges.
	ReservedNodePorts PortRanges    // [default] reserved-node-ports
	ExternalIPs       AllowedRanges // [default] external-ip-ranges: for spec.externalIPs
	LoadBalancerIPs   AllowedRanges // [default] load-balancer-ranges
	LoadBalancer      LoadBalancerConfig
	APIServers        []netip.AddrPort // addresses at which this process reaches the API

	JoinSubnets    []netip.Prefix // [gateway] v4-join-subnet, v6-join-subnet
	TransitSubnets []netip.Prefix // [clustermanager] v4-transit-subnet, v6-transit-subnet
}

// PortRanges is a list of ranges of ports, for all protocols.
type PortRanges []PortRange

// PortRange is the ports from First to Last.
type PortRange struct{ First, Last uint16 }

// ParsePortRange reads a port or a range of ports, such as "2379-2381".
func ParsePortRange(text string) (PortRange, error) {
	first, last, isRange := strings.Cut(text, "-")
	if !isRange {
		last = first
	}
	a, err := strconv.ParseUint(first, 10, 16)
	b, err2 := strconv.ParseUint(last, 10, 16)
	if err != nil || err2 != nil || a == 0 || b < a {
		return PortRange{}, fmt.Errorf("%q is neither a port (1 to 65535) nor a range such as 2379-2381", text)
	}
	return PortRange{uint16(a), uint16(b)}, nil
}

// String returns what ParsePortRange reads.
func (r PortRange) String() string {
	if r.First == r.Last {
		return strconv.Itoa(int(r.First))
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// Has reports whether a port is in one of the ranges.
func (r PortRanges) Has(port uint16) bool {
	return slices.ContainsFunc(r, func(r PortRange) bool { return r.First <= port && port <= r.Last })
}

// AllowedRanges says which addresses Services may request: those in Ranges if it is Set, else all.
type AllowedRanges struct {
	Set    bool
	Ranges []netip.Prefix
}

// Allows reports whether an address may be requested.
func (l *AllowedRanges) Allows(a netip.Addr) bool {
	return !l.Set || slices.ContainsFunc(l.Ranges, func(r netip.Prefix) bool { return r.Contains(a) })
}

// ConntrackConfig has the settings of the kernel's connection tracking. Zero values keep the
// machine's own.
type ConntrackConfig struct {
	Cores          int           // number of CPU cores of this machine
	MaxPerCore     int           // [default] conntrack-max-per-core: number of entries
	Min            int           // [default] conntrack-min: smallest value of Max
	TCPEstablished time.Duration // [default] conntrack-tcp-timeout-established
	TCPCloseWait   time.Duration // [default] conntrack-tcp-timeout-close-wait
	TCPLiberal     bool          // [default] conntrack-tcp-be-liberal: out-of-window packets are valid
	PodsMax        int           // [default] conntrack-pods-max: entries of a zone (userspace datapath); 0 = no limit
}

// Max returns the largest number of entries; 0 = keep the machine's value.
func (c *ConntrackConfig) Max() int {
	if c.MaxPerCore == 0 {
		return 0
	}
	return max(c.MaxPerCore*c.Cores, c.Min)
}

// GatewayConfig is the section [gateway].
type GatewayConfig struct {
	Mode              string            // mode: the name of a Mode
	Interface         string            // interface: the gateway bridge; empty = br-ex
	NextHops          []netip.Addr      // next-hop: overrides the host's default gateways
	MasqueradeSubnets []netip.Prefix    // v4-masquerade-subnet, v6-masquerade-subnet
	NodePort          bool              // nodeport: whether NodePorts are served
	NodePorts         NodePortAddresses // nodeport-addresses: on which of the node's addresses
	NodePortPath      string            // nodeport-path: PathNFT or PathRedirect; Gateway.Redirect: in use on a node
	NodeLocal         string            // node-local: LocalPolicy or LocalDGP; Gateway.NodeLocal: in use on a node
	NodeLocalSubnets  []netip.Prefix    // v4-node-local-subnet, v6-node-local-subnet
	Advertise         []netip.Addr      // advertise-address: the gateway bridge's own addresses in mode detached
}

// Service engines (docs/user/services.md).
const (
	EngineOpenFlow = "openflow" // flows and groups of claims.ServiceBridge
	EngineOVN      = "ovn"      // load balancers of OVN
)

// Paths of NodePort traffic from the host's links to the gateway router.
const (
	PathNFT      = "nft"      // DNAT by nft and the host's routes
	PathRedirect = "redirect" // eBPF programs, where possible
)

// Paths of a host to Services (docs/user/gateway-modes.md).
const (
	LocalPolicy = "policy" // by the gateway bridge and the gateway router
	LocalDGP    = "dgp"    // by the management port; to endpoints on the host itself, by a distributed gateway port
)

// NodePortAddresses says on which addresses of a node NodePorts are served. Zero: on all.
type NodePortAddresses struct {
	Primary bool           // the Node's InternalIPs
	Ranges  []netip.Prefix // addresses within these ranges
}

// All reports whether NodePorts are served on every address.
func (n NodePortAddresses) All() bool { return !n.Primary && len(n.Ranges) == 0 }

// ClusterSubnet is a range of pod addresses and the prefix length of the subnet that each node
// gets.
type ClusterSubnet struct {
	CIDR       netip.Prefix
	HostLength int
}

// DefaultConfig returns the default of every option, with these addresses: pods 10.244.0.0/16 and
// fd00:10:244::/48, Services 10.96.0.0/16 and fd00:10:96::/112, masquerade 169.254.169.0/29 and
// fd69::/125, join 100.64.0.0/16 and fd98::/64, transit 100.88.0.0/16 and fd97::/64, a detached
// gateway bridge 10.44.0.0 and fd00:10:44::.
func DefaultConfig() Config {
	p := netip.MustParsePrefix
	return Config{
		ClusterSubnets: []ClusterSubnet{{p("10.244.0.0/16"), 24}, {p("fd00:10:244::/48"), 64}},
		ServiceCIDRs:   []netip.Prefix{p("10.96.0.0/16"), p("fd00:10:96::/112")},
		MTU:            1400,
		EncapPort:      6081,
		ServiceEngine:  EngineOpenFlow,
		// Probes (discard); ssh; etcd; Geneve; the API server; the agent's gRPC health service, if
		// it uses the port of OVN-Kubernetes; kubelet, agent and the control plane.
		ReservedNodePorts: PortRanges{{9, 9}, {22, 22}, {2379, 2381}, {6081, 6081}, {6443, 6443}, {9107, 9107},
			{10248, 10259}},
		LoadBalancer: LoadBalancerConfig{Class: "hairpin.dev/l2"},
		Gateway: GatewayConfig{
			Mode:              ModeShared,
			Interface:         "br-ex",
			MasqueradeSubnets: []netip.Prefix{p("169.254.169.0/29"), p("fd69::/125")},
			NodePort:          true,
			NodePortPath:      PathNFT,
			NodeLocal:         LocalPolicy,
			NodeLocalSubnets:  []netip.Prefix{p("169.254.0.0/20"), p("fd6b::/64")},
			Advertise:         []netip.Addr{netip.MustParseAddr("10.44.0.0"), netip.MustParseAddr("fd00:10:44::")},
		},
		Conntrack:      ConntrackConfig{PodsMax: 1000000},
		JoinSubnets:    []netip.Prefix{p("100.64.0.0/16"), p("fd98::/64")},
		TransitSubnets: []netip.Prefix{p("100.88.0.0/16"), p("fd97::/64")},
	}
}

// ClusterSubnet returns the pod range of a family, or the zero value.
func (c *Config) ClusterSubnet(f Family) ClusterSubnet {
	for _, s := range c.ClusterSubnets {
		if FamilyOf(s.CIDR.Addr()) == f {
			return s
		}
	}
	return ClusterSubnet{}
}

// PrefixOf returns the prefix of a family in a dual-stack list, or the zero Prefix.
func PrefixOf(list []netip.Prefix, f Family) netip.Prefix {
	for _, p := range list {
		if FamilyOf(p.Addr()) == f {
			return p
		}
	}
	return netip.Prefix{}
}

// Nth returns the address at an offset in a subnet, such as .4 of 169.254.169.0/29, or an error if
// the subnet has no such address.
func Nth(p netip.Prefix, n int) (netip.Addr, error) {
	a := p.Masked().Addr()
	b := a.AsSlice()
	carry := n
	for i := len(b) - 1; i >= 0 && carry > 0; i-- {
		carry += int(b[i])
		b[i] = byte(carry)
		carry >>= 8
	}
	r, _ := netip.AddrFromSlice(b)
	if carry > 0 || !p.Contains(r) {
		return netip.Addr{}, fmt.Errorf("%s has no address number %d", p, n)
	}
	return r, nil
}
