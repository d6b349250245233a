package walk_test

import (
	"flag"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"hairpin/cluster"
	"hairpin/walk"
	"hairpin/walk/packet"
)

var soak = flag.Duration("soak", 0, "how long to ask about random clusters, beyond the short run")

// TestSemantics checks docs/user/services.md in every random cluster, from every source, at every
// address, for every endpoint. The packet arrives only where it must, with the required source, and
// the reply is translated exactly in reverse. A cluster that fails is shrunk to the smallest one
// that fails. With -soak the test repeats on every core: a minute in `make test`, a chosen time in
// `make soak`.
func TestSemantics(t *testing.T) {
	end := time.Now().Add(*soak)
	var clusters, walks atomic.Int64
	t.Cleanup(func() { t.Logf("%d clusters, %d walks", clusters.Load(), walks.Load()) })
	cores := 1
	if *soak > 0 {
		cores = runtime.GOMAXPROCS(0)
	}
	for i := range cores {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			t.Parallel()
			for {
				rapid.Check(t, func(t *rapid.T) {
					n := askEverything(t, drawCluster(t))
					clusters.Add(1)
					walks.Add(int64(n))
				})
				if t.Failed() || time.Now().After(end) {
					return
				}
			}
		})
	}
}

// askEverything sends packets to each Frontend of a cluster from each source at each address, and
// counts the walks.
func askEverything(t *rapid.T, p planned) (walks int) {
	w := walk.New(p.world)
	for _, f := range p.world.Snapshot.Frontends {
		for _, from := range p.sources() {
			for _, q := range p.asked(f, from) {
				q.check(t, w)
				walks += q.walks
			}
		}
	}
	return walks
}

// question is a source that sends to a Frontend at one of its addresses, with the facts that
// docs/user/services.md determines.
type question struct {
	p    planned
	f    *cluster.Frontend
	from walk.Point
	to   netip.AddrPort
	src  netip.Addr  // of an external client
	mac  cluster.MAC // of the node that the client's packets are routed to
	// at is the node that chooses an endpoint. client is the client as at sees it: its host, a pod,
	// or (a zero Point) an external client, with address seen.
	at     *cluster.Node
	client walk.Point
	seen   netip.Addr
	// external: the policy for external clients applies. local: that policy is Local.
	external, local bool
	barred          bool // loadBalancerSourceRanges do not contain the client
	walks           int  // number of walks
	unused          bool // no Service has this port of its cluster IP
}

// asked lists the questions about a Frontend: one for each address that from can send to.
func (p planned) asked(f *cluster.Frontend, from walk.Point) []*question {
	var list []*question
	ask := func(to netip.Addr, port uint16, at *cluster.Node) *question {
		q := &question{p: p, f: f, from: from, to: netip.AddrPortFrom(to, port), at: at, client: from}
		list = append(list, q)
		return q
	}
	if from != (walk.Point{}) {
		own := p.world.Snapshot.Node(from.Node)
		ask(f.ClusterIP, f.Port, own).local = f.InternalLocal
		for i, a := range slices.Concat(f.ExternalIPs, f.LoadBalancerIPs) {
			// The node may reach its own addresses; no pod is in a range.
			ask(a, f.Port, own).barred = from.Pod != (cluster.Owner{}) && f.Restricted && i >= len(f.ExternalIPs)
		}
		if f.NodePort != 0 && from.Pod == (cluster.Owner{}) {
			loop := addr("127.0.0.1")
			if f.Family == cluster.IPv6 {
				loop = addr("::1")
			}
			ask(loop, f.NodePort, own)
		}
		ask(f.ClusterIP, f.Port+1, own).unused = true
	}
	for _, n := range p.nodes {
		if f.NodePort != 0 {
			for _, h := range n.HostAddresses {
				if cluster.FamilyOf(h.Addr()) != f.Family || !slices.Contains(n.Addresses, h.Addr()) &&
					from.Node != "" && from.Node != n.Name {
					continue // other nodes have no route to a secondary address
				}
				q := ask(h.Addr(), f.NodePort, n)
				if p.remote(q, n); from.Node == "" && h.IsSingleIP() {
					q.mac = walk.ExternalMAC(n) // an external client has a route
				} else if from.Node == "" && !slices.Contains(n.Addresses, h.Addr()) {
					p.second(q, n)
				}
			}
		}
		if from == (walk.Point{}) {
			for i, a := range slices.Concat(f.ExternalIPs, f.LoadBalancerIPs) {
				for _, second := range []bool{false, hasSecond(n)} {
					q := ask(a, f.Port, n)
					q.mac = walk.ExternalMAC(n)
					if p.remote(q, n); second {
						p.second(q, n)
					}
					q.barred = f.Restricted && i >= len(f.ExternalIPs) &&
						!slices.ContainsFunc(f.SourceRanges, func(r netip.Prefix) bool { return r.Contains(q.src) })
				}
			}
		}
	}
	return slices.DeleteFunc(list, func(q *question) bool { return p.unrouted(q) || p.unanswered(q) })
}

// unrouted reports whether a host without a default gateway sends to an external address: its
// kernel needs a route before nft sees the packet.
func (p planned) unrouted(q *question) bool {
	if q.from.Node == "" || q.from.Pod != (cluster.Owner{}) ||
		!slices.Contains(slices.Concat(q.f.ExternalIPs, q.f.LoadBalancerIPs), q.to.Addr()) {
		return false
	}
	return !slices.ContainsFunc(q.at.Gateway.NextHops,
		func(a netip.Addr) bool { return cluster.FamilyOf(a) == q.f.Family })
}

// unanswered reports whether a dead default gateway prevents a reply to a client on a second
// network. That applies to a node in mode shared under policy Local, and to a node with an uplink
// and the redirect. The gateway router sends the reply, to the client's own address, towards the
// default gateway, and the bridge passes it to the host.
func (p planned) unanswered(q *question) bool {
	if len(p.world.Silent) == 0 || q.seen != secondClient(q.f.Family) || !q.external {
		return false
	}
	return q.local && q.at.Gateway.Mode == cluster.ModeShared ||
		q.at.Gateway.Redirect && cluster.ModeNamed(q.at.Gateway.Mode).Uplink && q.to.Port() == q.f.NodePort
}

// hasSecond reports whether a node has a link to a second network.
func hasSecond(n *cluster.Node) bool {
	return slices.ContainsFunc(n.Links, func(l cluster.HostLink) bool { return l.Name == "eth1" })
}

// secondAddress returns a node's own address on the second network.
func secondAddress(n *cluster.Node, f cluster.Family) netip.Addr {
	for _, p := range n.HostAddresses {
		if a := p.Addr(); cluster.FamilyOf(a) == f &&
			(prefix("10.10.10.0/24").Contains(a) || prefix("fd10::/64").Contains(a)) {
			return a
		}
	}
	return netip.Addr{}
}

// secondClient returns a client on the second network.
func secondClient(f cluster.Family) netip.Addr {
	if f == cluster.IPv6 {
		return addr("fd10::200")
	}
	return addr("10.10.10.200")
}

// second changes the client of an external question to one on the second network of node n.
func (p planned) second(q *question, n *cluster.Node) {
	q.src = secondClient(q.f.Family)
	q.seen = q.src
	for _, l := range n.Links {
		if l.Name == "eth1" {
			q.mac = l.MAC
		}
	}
}

// remote makes a question about an address of node n an external one, unless node n sends it.
// Packets of another node and its pods arrive with that node's address.
func (p planned) remote(q *question, n *cluster.Node) {
	if q.from.Node == n.Name {
		return
	}
	q.client, q.external, q.local = walk.Point{}, true, q.f.ExternalLocal
	if q.from.Node != "" {
		q.seen = p.world.Snapshot.Node(q.from.Node).Address(q.f.Family)
		return
	}
	q.src = addr("172.18.0.100")
	if q.f.Family == cluster.IPv6 {
		q.src = addr("fc00:f853:ccd::64")
	}
	q.seen = q.src
}

// endpoints returns the allowed endpoints: by location first, then by readiness (13, 14, 16, 18).
// none reports that the whole cluster has none.
func (q *question) endpoints() (list []cluster.Backend, none bool) {
	all := usable(q.f.Backends, func(b cluster.Backend) bool { return q.near(b) })
	if !q.local {
		return all, len(all) == 0
	}
	here := slices.DeleteFunc(slices.Clone(q.f.Backends), func(b cluster.Backend) bool { return b.Node != q.at.Name })
	return usable(here, func(cluster.Backend) bool { return true }), len(all) == 0
}

func usable(list []cluster.Backend, fits func(cluster.Backend) bool) []cluster.Backend {
	ready := slices.DeleteFunc(slices.Clone(list), func(b cluster.Backend) bool { return !b.Ready || !fits(b) })
	if len(ready) > 0 {
		return ready
	}
	return slices.DeleteFunc(slices.Clone(list),
		func(b cluster.Backend) bool { return b.Ready || !b.Serving || !b.Terminating })
}

// near applies zone hints: they count if every ready endpoint has one and some are for the node's
// zone.
func (q *question) near(b cluster.Backend) bool {
	some := false
	for _, x := range q.f.Backends {
		if x.Ready {
			if len(x.ForZones) == 0 {
				return true
			}
			some = some || slices.Contains(x.ForZones, q.at.Zone)
		}
	}
	return !some || slices.Contains(b.ForZones, q.at.Zone)
}

// source returns the source address that an endpoint must see.
func (q *question) source(b cluster.Backend) netip.Addr {
	v6 := q.f.Family == cluster.IPv6
	pick := func(a, b netip.Addr) netip.Addr {
		if v6 {
			return b
		}
		return a
	}
	pod := slices.ContainsFunc(q.p.world.Snapshot.Pods,
		func(x *cluster.Pod) bool { return slices.Contains(x.IPs, b.Addr) })
	dgp := q.at.Gateway.NodeLocal && q.to.Addr() == q.f.ClusterIP
	switch {
	case q.external && q.local:
		return q.seen
	case q.client.Pod != (cluster.Owner{}):
		for _, x := range q.p.world.Snapshot.Pods {
			if x.Owner != q.client.Pod {
				continue
			}
			own := x.IPs[slices.IndexFunc(x.IPs, func(a netip.Addr) bool { return cluster.FamilyOf(a) == q.f.Family })]
			switch {
			case own == b.Addr: // its own endpoint
				return pick(addr("169.254.169.5"), addr("fd69::5"))
			case pod || b.Node == x.Node:
				return own
			case q.onSecond(b):
				return secondAddress(q.at, q.f.Family)
			}
		}
	case q.onSecond(b):
		return secondAddress(q.at, q.f.Family)
	case pod && dgp:
		return pick(addr("10.244.%d.2", q.at.ID), addr("fd00:10:244:%x::2", q.at.ID))
	case pod:
		return pick(addr("100.64.0.%d", q.at.ID+1), addr("fd98::%x", q.at.ID+1))
	case b.Node == q.at.Name && dgp:
		return pick(addr("169.254.0.3"), addr("fd6b::3"))
	case b.Node == q.at.Name:
		return pick(addr("169.254.169.1"), addr("fd69::1"))
	}
	return q.at.Address(q.f.Family)
}

func (q *question) walk(t *rapid.T, w *walk.Walker, prefer ...netip.AddrPort) walk.Trace {
	q.walks++
	p := packet.Packet{Protocol: q.f.Protocol, Src: q.src, Dst: q.to.Addr(), DstPort: q.to.Port(), EthDst: q.mac}
	tr, err := w.WalkWithLater(q.from, p, prefer...)
	if err != nil {
		t.Fatalf("%s: %v\n%s", q, err, tr)
	}
	return tr
}

func (q *question) String() string {
	return q.f.Key() + " from " + q.from.String() + " at " + q.to.String()
}

func (q *question) check(t *rapid.T, w *walk.Walker) {
	list, none := q.endpoints()
	switch {
	case q.unused:
		// The ICMP error for UDP is not followed.
		if tr := q.walk(t, w); !tr.Verdict.Rejected || !tr.Verdict.Answered && q.f.Protocol != cluster.UDP {
			t.Fatalf("%s: no Service has this port, and the client does not hear of it\n%s", q, tr)
		}
		return
	case q.barred:
		if tr := q.walk(t, w); tr.Verdict.Delivered {
			t.Fatalf("%s: the client is in no range, and arrives\n%s", q, tr)
		}
		return
	case len(list) == 0:
		tr := q.walk(t, w)
		// The ICMP error for UDP is not followed.
		if v := tr.Verdict; v.Delivered || none && !v.Rejected || none && !v.Answered && q.f.Protocol != cluster.UDP ||
			!none && v.Rejected {
			t.Fatalf("%s: no endpoint (none anywhere: %v), and\n%s", q, none, tr)
		}
		return
	}
	for _, b := range q.f.Backends {
		if q.far(b) {
			continue
		}
		i := slices.IndexFunc(list, func(x cluster.Backend) bool { return x.Addr == b.Addr && x.Port == b.Port })
		q.one(t, w, b, i >= 0, list)
	}
}

// onSecond reports whether an endpoint is an address of another host on the second network.
func (q *question) onSecond(b cluster.Backend) bool {
	return b.Node != q.at.Name && (prefix("10.10.10.0/24").Contains(b.Addr) || prefix("fd10::/64").Contains(b.Addr))
}

// far reports whether an endpoint is an unreachable address of another host. Such an address is on
// the second network, if the host's routes do not apply or lack it, or behind a missing default
// gateway.
func (q *question) far(b cluster.Backend) bool {
	if n := q.p.world.Snapshot.Node(b.Node); n == q.at || !n.HasAddress(b.Addr) ||
		slices.Contains(n.Addresses, b.Addr) {
		return false
	}
	if q.onSecond(b) {
		return !cluster.ModeNamed(q.at.Gateway.Mode).ServicesByHost || !hasSecond(q.at)
	}
	return !slices.ContainsFunc(q.at.Gateway.NextHops, func(a netip.Addr) bool {
		return cluster.FamilyOf(a) == q.f.Family && !q.p.world.Silent[a]
	})
}

// one checks one endpoint.
func (q *question) one(t *rapid.T, w *walk.Walker, b cluster.Backend, may bool, list []cluster.Backend) {
	endpoint := netip.AddrPortFrom(b.Addr, b.Port)
	// If the endpoint is the node's own address, its gateway router uses the masquerade address
	// instead.
	masquerade := addr("169.254.169.2")
	if q.f.Family == cluster.IPv6 {
		masquerade = addr("fd69::2")
	}
	prefer := []netip.AddrPort{endpoint}
	if n := q.p.world.Snapshot.Node(b.Node); n.Address(q.f.Family) == b.Addr {
		prefer = append(prefer, netip.AddrPortFrom(masquerade, b.Port))
	}
	tr := q.walk(t, w, prefer...)
	v := tr.Verdict
	got := netip.AddrPortFrom(v.Seen.Dst, v.Seen.DstPort)
	if !may {
		if got == endpoint {
			t.Fatalf("%s: %s may not be reached\n%s", q, endpoint, tr)
		}
		return
	}
	switch {
	case !v.Delivered || !v.Answered:
		t.Fatalf("%s, endpoint %s: not delivered, or not answered\n%s", q, endpoint, tr)
	case got != endpoint || v.At.Node != b.Node:
		t.Fatalf("%s, endpoint %s on %s: arrived at %s on %s\n%s", q, endpoint, b.Node, got, v.At.Node, tr)
	case v.Seen.Src != q.source(b):
		t.Fatalf("%s, endpoint %s: it sees %s instead of %s\n%s", q, endpoint, v.Seen.Src, q.source(b), tr)
	}
	if there, back := changes(tr.Sent, tr.Forward),
		changes(inverse(v.Seen), tr.Reply); !slices.Equal(there, mirrored(back)) {
		t.Fatalf("%s, endpoint %s: the reply is not translated exactly in reverse\n there %v\n back  %v\n%s", q,
			endpoint, there, back, tr)
	}
}

// changes lists the packets of a path, without consecutive duplicates.
func changes(first packet.Packet, steps []packet.Step) []packet.Packet {
	list := []packet.Packet{bare(first)}
	for _, s := range steps {
		if p := bare(s.After); p != list[len(list)-1] {
			list = append(list, p)
		}
	}
	return list
}

// bare returns a packet's five-tuple.
func bare(p packet.Packet) packet.Packet {
	return packet.Packet{Protocol: p.Protocol, Src: p.Src, Dst: p.Dst, SrcPort: p.SrcPort, DstPort: p.DstPort}
}

func inverse(p packet.Packet) packet.Packet {
	return packet.Packet{Protocol: p.Protocol, Src: p.Dst, Dst: p.Src, SrcPort: p.DstPort, DstPort: p.SrcPort}
}

// mirrored reverses the reply's path.
func mirrored(back []packet.Packet) []packet.Packet {
	var list []packet.Packet
	for _, p := range slices.Backward(back) {
		list = append(list, inverse(p))
	}
	return list
}
