package admission

import (
	"cmp"
	"net/netip"

	"hairpin/cluster"
)

// key is something that only one Service can have, or, of the kinds that say "every", a list of
// Services.
type key struct {
	kind     keyKind
	family   cluster.Family
	protocol cluster.Protocol
	port     uint16
	addr     netip.Addr
}

type keyKind uint8

const (
	keyClusterIP    keyKind = iota // addr
	keyNodePort                    // family, protocol, port
	keyExternal                    // addr, protocol, port: of an external IP or of a load balancer
	keyAddress                     // addr: every Service with that external address
	keyExternalPort                // family, protocol, port: every Service with that port at an external address
	keyEndpoint                    // addr, protocol, port: every Service with that endpoint outside the pod ranges
	keyProxyPort                   // family, protocol, port: of the proxy addresses
)

func clusterIPKey(a netip.Addr) key { return key{kind: keyClusterIP, addr: a} }
func addressKey(a netip.Addr) key   { return key{kind: keyAddress, addr: a} }

func nodePortKey(f *cluster.Frontend) key { return nodePortAt(f, f.NodePort) }

func nodePortAt(f *cluster.Frontend, port uint16) key {
	return key{kind: keyNodePort, family: f.Family, protocol: f.Protocol, port: port}
}

func externalKey(a netip.Addr, p cluster.Protocol, port uint16) key {
	return key{kind: keyExternal, addr: a, protocol: p, port: port}
}

func externalPortKey(f *cluster.Frontend, port uint16) key {
	return key{kind: keyExternalPort, family: f.Family, protocol: f.Protocol, port: port}
}

func endpointKey(a netip.Addr, p cluster.Protocol, port uint16) key {
	return key{kind: keyEndpoint, addr: a, protocol: p, port: port}
}

func proxyPortKey(f *cluster.Frontend, port uint16) key {
	return key{kind: keyProxyPort, family: f.Family, protocol: f.Protocol, port: port}
}

// bid is a Service's bid for a key. The lowest rank wins, of the same rank the oldest Service.
type bid struct {
	service *service
	rank    uint8
	port    uint16 // of the Service, where each of its ports bids for itself
}

// An administrator assigns load balancer addresses; any user who may create Services sets
// spec.externalIPs.
const (
	rankLoadBalancer uint8 = iota
	rankExternalIP
)

// compare orders bids: the first one wins.
func (b bid) compare(c bid) int {
	return cmp.Or(cmp.Compare(b.rank, c.rank), b.service.frontends[0].CompareAge(c.service.frontends[0]),
		cmp.Compare(b.port, c.port))
}

// holder is the former holder of a key, and its age: a recreated Service is another one.
type holder struct {
	service *service
	age     *cluster.Frontend
}

func (h holder) same(g holder) bool {
	return h.service == g.service && (h.age == g.age || h.age.CompareAge(g.age) == 0)
}
