package walk_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"hairpin/cluster"
	"hairpin/datapath"
	"hairpin/plan"
	"hairpin/walk"
)

// planned is a small cluster whose States are plan's.
type planned struct {
	world walk.World
	nodes []*cluster.Node
}

// drawCluster makes one to four nodes with pods, and Services of all kinds.
func drawCluster(t *rapid.T) planned {
	s := &cluster.Snapshot{Config: cluster.DefaultConfig()}
	userspace := rapid.Bool().Draw(t, "userspace")
	nodes := rapid.IntRange(1, 4).Draw(t, "nodes")
	for i := 1; i <= nodes; i++ {
		s.Nodes = append(s.Nodes, drawNode(t, i, userspace))
		for k := range rapid.IntRange(1, 3).Draw(t, "pods") {
			s.Pods = append(s.Pods, &cluster.Pod{
				Owner: cluster.Owner{Kind: "Pod", Namespace: "default", Name: fmt.Sprintf("pod-%d-%d", i, k)}, Node: s.Nodes[i-1].Name,
				IPs: []netip.Addr{addr("10.244.%d.%d", i, k+3), addr("fd00:10:244:%x::%x", i, k+3)}, MAC: cluster.MACFor(addr("10.244.%d.%d", i, k+3)),
			})
		}
	}
	for i := range rapid.IntRange(1, 5).Draw(t, "services") {
		s.Frontends = append(s.Frontends, drawService(t, s, i)...)
	}
	slices.SortFunc(s.Frontends, (*cluster.Frontend).Compare)
	p := planned{world: walk.World{Snapshot: s, States: map[string]datapath.State{}}, nodes: s.Nodes}
	planner := plan.NewPlanner()
	for _, n := range s.Nodes {
		state, problems := planner.Node(s, n.Name)
		for _, x := range problems {
			t.Logf("%s", x.Error())
		}
		p.world.States[n.Name] = state
	}
	return p
}

func drawNode(t *rapid.T, i int, userspace bool) *cluster.Node {
	v4, v6 := prefix("172.18.0.%d/16", i+2), prefix("fc00:f853:ccd::%x/64", i+2)
	n := &cluster.Node{
		Name: fmt.Sprintf("node-%c", 'a'+i-1), ID: i,
		Addresses: []netip.Addr{v4.Addr(), v6.Addr()}, HostAddresses: []netip.Prefix{v4, v6},
		PodCIDRs: []netip.Prefix{prefix("10.244.%d.0/24", i), prefix("fd00:10:244:%x::/64", i)},
		Gateway: cluster.Gateway{
			Mode: "shared", Bridge: "br-ex", Uplink: "eth0", MAC: cluster.MAC{2, 0x42, 0xac, 0x12, 0, byte(i + 2)}, Addresses: []netip.Prefix{v4, v6},
			NextHops: []netip.Addr{addr("172.18.0.1"), addr("fc00:f853:ccd::1")}, Userspace: userspace,
		},
	}
	if rapid.Bool().Draw(t, "secondary") {
		n.HostAddresses = append(n.HostAddresses, prefix("172.20.0.%d/32", i), prefix("fd00:20::%x/128", i))
	}
	return n
}

// drawService makes the Frontends of one Service: one or two families, endpoints that are pods, hosts, secondary addresses
// of hosts, or none.
func drawService(t *rapid.T, s *cluster.Snapshot, i int) []*cluster.Frontend {
	protocol := rapid.SampledFrom([]cluster.Protocol{cluster.TCP, cluster.UDP, cluster.SCTP}).Draw(t, "protocol")
	var nodePort uint16
	if rapid.Bool().Draw(t, "has a node port") {
		nodePort = uint16(30000 + i)
	}
	var list []*cluster.Frontend
	for _, family := range []cluster.Family{cluster.IPv4, cluster.IPv6} {
		if rapid.IntRange(0, 5).Draw(t, "other family only") == 0 {
			continue
		}
		f := &cluster.Frontend{
			Owner: cluster.Owner{Kind: "Service", Namespace: "default", Name: fmt.Sprintf("service-%d", i)}, Family: family, Protocol: protocol,
			ClusterIP: addr("10.96.0.%d", 10+i), Port: 80, NodePort: nodePort,
		}
		if family == cluster.IPv6 {
			f.ClusterIP = addr("fd00:10:96::%x", 10+i)
		}
		for range rapid.IntRange(0, 4).Draw(t, "endpoints") {
			f.Backends = append(f.Backends, drawBackend(t, s, family))
		}
		slices.SortFunc(f.Backends, func(a, b cluster.Backend) int { return a.Addr.Compare(b.Addr) })
		f.Backends = slices.CompactFunc(f.Backends, func(a, b cluster.Backend) bool { return a.Addr == b.Addr })
		list = append(list, f)
	}
	return list
}

func drawBackend(t *rapid.T, s *cluster.Snapshot, family cluster.Family) cluster.Backend {
	of := func(a netip.Addr) bool { return cluster.FamilyOf(a) == family }
	var candidates []cluster.Backend
	for _, p := range s.Pods {
		a := p.IPs[slices.IndexFunc(p.IPs, of)]
		candidates = append(candidates, cluster.Backend{Addr: a, Port: 8080, Node: p.Node, Ready: true, Serving: true})
	}
	for _, n := range s.Nodes {
		for _, h := range n.HostAddresses {
			if of(h.Addr()) {
				candidates = append(candidates, cluster.Backend{Addr: h.Addr(), Port: 8081, Node: n.Name, Ready: true, Serving: true})
			}
		}
	}
	return rapid.SampledFrom(candidates).Draw(t, "endpoint")
}

// sources are a host and a pod of each node, and a machine outside.
func (p planned) sources() []walk.Point {
	list := []walk.Point{{}}
	for _, n := range p.nodes {
		list = append(list, walk.Point{Node: n.Name})
		for _, pod := range p.world.Snapshot.Pods {
			if pod.Node == n.Name {
				list = append(list, walk.Point{Node: n.Name, Pod: pod.Owner})
			}
		}
	}
	return list
}

// asked lists the addresses at which a Service is asked by somebody.
func (p planned) asked(f *cluster.Frontend, from walk.Point) []netip.AddrPort {
	var list []netip.AddrPort
	if from != (walk.Point{}) {
		list = append(list, netip.AddrPortFrom(f.ClusterIP, f.Port))
	}
	for _, n := range p.nodes {
		if f.NodePort != 0 {
			list = append(list, netip.AddrPortFrom(n.Address(f.Family), f.NodePort))
		}
	}
	return list
}

// Every Service is reached from everywhere, at every address and whatever endpoint is chosen; the endpoint is the one that
// was chosen; and the reply comes back as from the address that was asked.
func TestEveryServiceFromEverywhere(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawCluster(t)
		w := walk.New(p.world)
		for _, f := range p.world.Snapshot.Frontends {
			for _, from := range p.sources() {
				for _, to := range p.asked(f, from) {
					if len(f.Backends) == 0 {
						p.refused(t, w, f, from, to)
					}
					for _, b := range f.Backends {
						p.served(t, w, f, from, to, b)
					}
				}
			}
		}
	})
}

func (p planned) send(t *rapid.T, w *walk.Walker, f *cluster.Frontend, from walk.Point, to netip.AddrPort, prefer ...netip.AddrPort) walk.Trace {
	packet := walk.Packet{Protocol: f.Protocol, Dst: to.Addr(), DstPort: to.Port()}
	if from == (walk.Point{}) {
		packet.Src = addr("172.18.0.100")
		if f.Family == cluster.IPv6 {
			packet.Src = addr("fc00:f853:ccd::64")
		}
	}
	tr, err := w.Walk(from, packet, prefer...)
	if err != nil {
		t.Fatalf("%s from %s to %s: %v\n%s", f.Key(), from, to, err, tr)
	}
	return tr
}

func (p planned) served(t *rapid.T, w *walk.Walker, f *cluster.Frontend, from walk.Point, to netip.AddrPort, b cluster.Backend) {
	endpoint := netip.AddrPortFrom(b.Addr, b.Port)
	prefer := []netip.AddrPort{endpoint}
	// Where the endpoint is the node's own address, its gateway router has the masquerade address instead.
	for _, n := range p.nodes {
		if n.Address(f.Family) == b.Addr {
			masquerade := addr("169.254.169.2")
			if f.Family == cluster.IPv6 {
				masquerade = addr("fd69::2")
			}
			prefer = append(prefer, netip.AddrPortFrom(masquerade, b.Port))
		}
	}
	tr := p.send(t, w, f, from, to, prefer...)
	v := tr.Verdict
	if !v.Delivered || !v.Answered {
		t.Fatalf("%s from %s to %s, endpoint %s:\n%s", f.Key(), from, to, endpoint, tr)
	}
	if got := netip.AddrPortFrom(v.Seen.Dst, v.Seen.DstPort); got != endpoint {
		t.Fatalf("%s from %s to %s: arrived at %s instead of %s\n%s", f.Key(), from, to, got, endpoint, tr)
	}
	if v.At.Node != b.Node {
		t.Fatalf("%s from %s to %s: arrived on %s instead of %s\n%s", f.Key(), from, to, v.At.Node, b.Node, tr)
	}
}

func (p planned) refused(t *rapid.T, w *walk.Walker, f *cluster.Frontend, from walk.Point, to netip.AddrPort) {
	tr := p.send(t, w, f, from, to)
	// The ICMP error for UDP is not followed.
	if v := tr.Verdict; !v.Rejected || !v.Answered && f.Protocol != cluster.UDP {
		t.Fatalf("%s from %s to %s has no endpoint, and the client does not hear of it\n%s", f.Key(), from, to, tr)
	}
}

func addr(format string, args ...any) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf(format, args...))
}

func prefix(format string, args ...any) netip.Prefix {
	return netip.MustParsePrefix(fmt.Sprintf(format, args...))
}
