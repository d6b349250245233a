package churn

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"hairpin/lab"
	"hairpin/lab/probe"
)

// portCounter returns source ports in turn, because the kernel would reuse one while a conntrack
// still remembers its last use. Each place has its own ports. Where pods leave with their host's
// address, the userspace datapath does not detect that two of them use the same port. Nor does it
// for a pod and the host (docs/reference/compatibility.md).
type portCounter struct {
	place int
	n     atomic.Uint32
}

func (c *portCounter) next() uint16 { return uint16(c.first() + int(c.n.Add(1)%portsEach)) }

func (c *portCounter) first() int { return 33000 + portsEach*c.place }

// all returns a place's ports in the kernel's format.
func (c *portCounter) all() string { return fmt.Sprintf("%d-%d", c.first(), c.first()+portsEach-1) }

const portsEach = 2700

// Time limits of a client: for a reply that must arrive, on a busy machine, and for one that must
// not.
const (
	patience = 20 * time.Second
	silence  = 1500 * time.Millisecond
)

// ways returns the paths by which a client can reach a Service.
func (c *churn) ways(s *service, from *place, family int) []way {
	at := func(a netip.Addr, nodePort bool) func(version) netip.AddrPort {
		return func(v version) netip.AddrPort {
			if nodePort {
				return netip.AddrPortFrom(a, s.nodePort())
			}
			return netip.AddrPortFrom(a, v.port)
		}
	}
	own, outside := from.node, from.node == ""
	if outside {
		own = c.nodes[0].Name() // its route to cluster IPs
	}
	list := []way{{"cluster IP", own, false, at(s.clusterIP(family), false)},
		{"other port", own, false,
			func(v version) netip.AddrPort { return netip.AddrPortFrom(s.clusterIP(family), v.port+100) }}}
	if from.host {
		list = append(list, way{"localhost", own, false,
			at(netip.MustParseAddr([]string{"127.0.0.1", "::1"}[family]), true)})
	}
	for i, n := range c.nodes {
		list = append(list, way{"node port", n.Name(), from.node != n.Name(), at(c.hosts[i].ips[family], true)})
		if a := c.second[i].Load(); a != nil && from.node == n.Name() {
			list = append(list, way{"second address", n.Name(), false, at(a[family], true)})
		}
	}
	for _, x := range []struct {
		kind string
		ip   netip.Addr
		node int
	}{{"external IP", s.externalIP(family, len(c.nodes)), s.slot % len(c.nodes)},
		{"balancer", s.balancerIP(family, len(c.nodes)), (s.slot + 1) % len(c.nodes)}} {
		w := way{x.kind, own, outside, at(x.ip, false)}
		if outside {
			w.node = c.nodes[x.node].Name()
		}
		list = append(list, w)
	}
	return list
}

// ask sends one request, anywhere to anywhere, and judges the reply.
func (c *churn) ask(ctx context.Context, r *rand.Rand) {
	s, from, family, protocol := c.services[r.IntN(len(c.services))], c.places[r.IntN(len(c.places))], r.IntN(2),
		[]string{"tcp", "udp"}[r.IntN(2)]
	ways := c.ways(s, from, family)
	w := ways[r.IntN(len(ways))]
	oldest := s.oldest()
	before := s.since(oldest)
	v := before[len(before)-1]
	a := w.expect(v, from, family)
	if a.none {
		return
	}
	q := probe.Request{Protocol: protocol, To: w.to(v), Timeout: patience, Again: 2 * time.Second, Speak: true}
	if a.dropped {
		q.Timeout = silence
	}
	var got probe.Answer
	begin := time.Now()
	// A connection of the agent may use the port since before it was reserved.
	for used := true; used && ctx.Err() == nil; used = strings.Contains(got.Error, syscall.EADDRINUSE.Error()) {
		begin, q.Port = time.Now(), from.from.next()
		got = lab.Get(ctx, from, q)
	}
	if ctx.Err() != nil {
		return
	}
	c.count(protocol, w.kind, a)
	during := s.since(oldest)
	if why := judge(w, from, family, q.To, during, got); why != "" {
		text := fmt.Sprintf("%s from %s to %s (%s at %s): %s; after %v\n  asked from port %d, answered by %q", protocol,
			from.Name(), q.To, w.kind, w.node, why,
			time.Since(begin).Round(time.Millisecond), q.Port, got.Name)
		for _, v := range during {
			text += "\n  " + s.name() + " " + v.String()
		}
		c.fault(begin, text)
	}
}

// judge returns what is wrong with a reply, whichever of the versions the request met.
func judge(w way, from *place, family int, to netip.AddrPort, versions []version, got probe.Answer) string {
	refused, dropped, must := false, false, true
	var by []string
	for _, v := range versions {
		a := w.expect(v, from, family)
		if a.none || w.to(v) != to {
			return ""
		}
		refused, dropped, must = refused || a.refused, dropped || a.dropped, must && len(a.by) > 0
		by = append(by, a.by...)
	}
	if len(versions) > 1 && !from.host && slices.Contains(by, from.Name()) {
		// a pod that connects to itself loses the connection when it is no longer chosen
		// (docs/user/services.md)
		must = false
	}
	switch {
	case got.Error == "" && slices.Contains(by, got.Name):
		return ""
	case got.Error == "" && len(by) == 0:
		return "answered by " + got.Name + ", though nobody may"
	case got.Error == "":
		return fmt.Sprintf("answered by %s instead of one of %v", got.Name, by)
	case must:
		return fmt.Sprintf("not answered by any of %v: %s", by, got.Error)
	case len(by) == 0 && !dropped && !isRefusal(got.Error):
		return "not refused, but: " + got.Error
	case len(by) == 0 && !refused && isRefusal(got.Error):
		return "refused instead of dropped: " + got.Error
	}
	return ""
}

// isRefusal recognizes a rejection: a reset, an ICMP error, or the local kernel's refusal to send.
func isRefusal(text string) bool {
	return slices.ContainsFunc([]string{"refused", "reset by peer", "not permitted"},
		func(s string) bool { return strings.Contains(text, s) })
}
