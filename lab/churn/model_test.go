package churn

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"hairpin/lab"
)

// place is a client and, if it is not external, a server: the host of a node, or a pod.
type place struct {
	lab.Place
	node string // empty if external
	host bool
	ips  [2]netip.Addr // IPv4, IPv6
	from portCounter
}

// endpoint is a server as in an EndpointSlice.
type endpoint struct {
	at    *place
	state state
}

type state int

const (
	ready       state = iota
	terminating       // and serving
	unready
)

func (s state) String() string { return [...]string{"", " terminating", " unready"}[s] }

// version is a Service as written to the API at one time.
type version struct {
	there     bool
	kind      string // ClusterIP, NodePort, LoadBalancer
	port      uint16
	etp, itp  bool // Local
	affinity  int  // seconds; 0 = none
	external  bool // has an external IP
	ranges    int  // see sourceRanges
	endpoints [2][]endpoint
}

// sourceRanges are values of loadBalancerSourceRanges: all clients, the machines of the nodes'
// network, no client of the lab.
var sourceRanges = [][]string{nil, {"172.18.0.0/16", "fc00:f853:ccd::/64"}, {"192.0.2.0/24"}}

func (v version) String() string {
	if !v.there {
		return "deleted"
	}
	s := fmt.Sprintf("%s port %d", v.kind, v.port)
	for _, f := range []struct {
		on   bool
		text string
	}{{v.etp, "etp=Local"}, {v.itp, "itp=Local"}, {v.affinity > 0, fmt.Sprintf("affinity=%d", v.affinity)},
		{v.external, "external"}, {v.ranges > 0, fmt.Sprintf("ranges=%v", sourceRanges[v.ranges])}} {
		if f.on {
			s += " " + f.text
		}
	}
	for i, list := range v.endpoints {
		s += fmt.Sprintf(" v%d[", 4+2*i)
		for j, e := range list {
			if j > 0 {
				s += ", "
			}
			s += e.at.Name() + e.state.String()
		}
		s += "]"
	}
	return s
}

// service is one Service over its life with all versions. No packet meets those before settled.
type service struct {
	slot     int
	mu       sync.Mutex
	versions []version
	settled  int
	rested   time.Time // when the newest version was on all nodes
}

// caching is how long a switch's cache of flows may be older than its flows.
const caching = time.Second

// now returns the newest version.
func (s *service) now() version {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.versions[len(s.versions)-1]
}

// write records a version before it is written to the API.
func (s *service) write(v version) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.catchUp()
	s.versions, s.rested = append(s.versions, v), time.Time{}
}

// catchUp updates settled to the oldest version still in use; the caller holds the lock.
func (s *service) catchUp() {
	if !s.rested.IsZero() && time.Since(s.rested) > caching {
		s.settled = len(s.versions) - 1
	}
}

// rest records that the newest version is on all nodes.
func (s *service) rest() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.rested.IsZero() {
		s.rested = time.Now()
	}
}

// oldest returns the number of the oldest version that a packet may still meet.
func (s *service) oldest() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.catchUp()
	return s.settled
}

// since returns the versions that packets may have met since a given one was the oldest.
func (s *service) since(oldest int) []version {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.versions[oldest:])
}

// Addresses of a slot's Service: they stay the same when it is created again.
func (s *service) name() string     { return fmt.Sprintf("churn-%d", s.slot) }
func (s *service) nodePort() uint16 { return uint16(31000 + s.slot) }
func (s *service) clusterIP(family int) netip.Addr {
	return address(family, "10.96.7.%d", "fd00:10:96::7%02x", 1+s.slot)
}

// externalIP and balancerIP are each routed to one node, by its index in the list.
func (s *service) externalIP(family, nodes int) netip.Addr {
	return address(family, "198.51.100.%d", "2001:db8:51::%x", 64*(s.slot%nodes)+s.slot)
}

func (s *service) balancerIP(family, nodes int) netip.Addr {
	return address(family, "198.51.100.%d", "2001:db8:51::%x", 64*((s.slot+1)%nodes)+32+s.slot)
}

func address(family int, v4, v6 string, n int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf([]string{v4, v6}[family], n))
}

// way is an address of a Service, as used by one client.
type way struct {
	kind   string // see ways
	node   string // the node whose host or switch chooses the endpoint
	remote bool   // the client is external to that node, so externalTrafficPolicy applies
	to     func(v version) netip.AddrPort
}

// mode returns a node's gateway mode.
func (c *churn) mode(node string) string {
	modes := strings.Split(*churnMode, ",")
	i := slices.IndexFunc(c.nodes, func(n *lab.Node) bool { return n.Name() == node })
	return modes[max(0, i)%len(modes)]
}

// answer is what a client may expect from one version.
type answer struct {
	none             bool // the path does not exist: any result is accepted
	refused, dropped bool
	by               []string
}

// expect returns what docs/user/services.md requires of a path.
func (w way) expect(v version, from *place, family int) answer {
	if !v.there {
		return answer{none: true}
	}
	local := false
	switch w.kind {
	case "cluster IP":
		local = v.itp
	case "other port":
		return answer{refused: true}
	case "external IP":
		local = v.etp && w.remote
		if !v.external {
			return answer{none: true}
		}
	case "balancer":
		local = v.etp && w.remote
		if v.kind != "LoadBalancer" {
			return answer{none: true}
		}
		pod, barred := from.node != "" && !from.host, v.ranges == 2
		if (pod || from.node == "") && v.ranges > 0 && (barred || pod) {
			return answer{dropped: true}
		}
	default: // node ports
		local = v.etp && w.remote
		if v.kind == "ClusterIP" {
			return answer{none: true}
		}
	}
	list := v.endpoints[family]
	all := usable(list)
	if local {
		list = usable(slices.DeleteFunc(slices.Clone(list), func(e endpoint) bool { return e.at.node != w.node }))
	} else {
		list = all
	}
	switch {
	case len(all) == 0:
		return answer{refused: true}
	case len(list) == 0:
		return answer{dropped: true}
	}
	a := answer{}
	for _, e := range list {
		a.by = append(a.by, e.at.Name())
	}
	return a
}

// usable returns the ready endpoints, or else those that serve while they terminate.
func usable(list []endpoint) []endpoint {
	for _, s := range []state{ready, terminating} {
		if some := slices.DeleteFunc(slices.Clone(list), func(e endpoint) bool { return e.state != s }); len(some) > 0 {
			return some
		}
	}
	return nil
}
