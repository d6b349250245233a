package admission

import (
	"cmp"
	"net/netip"

	"hairpin/cluster"
)

// key is something that Services bid for. Of some kinds, only the holder has it. Of the others, all
// bids count: they are an index of Services.
type key struct {
	kind     keyKind
	family   cluster.Family
	protocol cluster.Protocol
	port     uint16
	addr     netip.Addr
}

type keyKind uint8

const (
	// Only the holder has it:
	keyClusterIP keyKind = iota // addr
	keyNodePort                 // family, protocol, port
	keyProxyPort                // family, protocol, port: of the proxy addresses
	keyExternal                 // addr, protocol, port: of an external IP or of a load balancer
	keyEndpoint                 // addr, protocol, port: an endpoint outside the pod ranges; the holder is the oldest

	// An index of all bids:
	keyAddress      // addr: Services with that external address
	keyExternalPort // family, protocol, port: Services with that port at an external address
)

// portKey returns a key of a kind that has family, protocol and port.
func portKey(kind keyKind, f cluster.Family, p cluster.Protocol, port uint16) key {
	return key{kind: kind, family: f, protocol: p, port: port}
}

func clusterIPKey(a netip.Addr) key { return key{kind: keyClusterIP, addr: a} }
func addressKey(a netip.Addr) key   { return key{kind: keyAddress, addr: a} }

func nodePortKey(f *cluster.Frontend) key { return nodePortAt(f, f.NodePort) }

func nodePortAt(f *cluster.Frontend, port uint16) key {
	return portKey(keyNodePort, f.Family, f.Protocol, port)
}

func externalKey(a netip.Addr, p cluster.Protocol, port uint16) key {
	return key{kind: keyExternal, addr: a, protocol: p, port: port}
}

func externalPortKey(f *cluster.Frontend, port uint16) key {
	return portKey(keyExternalPort, f.Family, f.Protocol, port)
}

func endpointKey(a netip.Addr, p cluster.Protocol, port uint16) key {
	return key{kind: keyEndpoint, addr: a, protocol: p, port: port}
}

func proxyPortKey(f *cluster.Frontend, port uint16) key {
	return portKey(keyProxyPort, f.Family, f.Protocol, port)
}

// bid is a Service's bid for a key. The lowest rank wins, of the same rank the oldest Service.
type bid struct {
	service *service
	rank    uint8
	port    uint16 // the bidding port of the Service, if the key is a proxy port; else 0
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

// holder is the Service that has the winning bid for a key, or had it before the update, and its
// age at that time: a recreated Service is another one.
type holder struct {
	service *service
	age     *cluster.Frontend
}

func (h holder) same(g holder) bool {
	return h.service == g.service && (h.age == g.age || h.age.CompareAge(g.age) == 0)
}
