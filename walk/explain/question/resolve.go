package question

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/walk"
	"hairpin/walk/explain/names"
	"hairpin/walk/packet"
)

// The source addresses of external clients, if the question has none. They are from the ranges for
// documentation (RFC 5737, RFC 3849), so these clients use the nodes' default gateway.
var (
	outside4 = netip.MustParseAddr("192.0.2.1")
	outside6 = netip.MustParseAddr("2001:db8::1")
)

// BadArgument reports that a word of a question makes no sense in this cluster.
type BadArgument struct {
	Field string // as on the command line: FROM, TO, --via …
	Word  string
	Err   error
}

func (b *BadArgument) Error() string { return fmt.Sprintf("%s %q: %v", b.Field, b.Word, b.Err) }

func (b *BadArgument) Unwrap() error { return b.Err }

// Request is a question with its words resolved to addresses.
type Request struct {
	From     walk.Point
	Packet   packet.Packet
	Frontend *cluster.Frontend // nil when the packet is for no Service
	// Destination is the address of the packet with its kind: "ClusterIP 10.96.0.10:80".
	Destination string
	Prefer      []netip.AddrPort // endpoints and next hops that the walk chooses where it has a choice
}

// resolver resolves words to addresses.
type resolver struct {
	s *cluster.Snapshot
	q Question
	Request
}

// Resolve resolves the words of a question. An error is a *BadArgument.
func Resolve(s *cluster.Snapshot, q Question) (*Request, error) {
	r := &resolver{s: s, q: q}
	r.Packet.Protocol, r.Packet.SrcPort = q.Protocol, q.FromPort
	if q.Via != "" && s.Node(q.Via) == nil {
		return nil, &BadArgument{"--via", q.Via, r.noNode(q.Via)}
	}
	if err := r.source(); err != nil {
		return nil, &BadArgument{"FROM", q.From, err}
	}
	if err := r.target(); err != nil {
		return nil, &BadArgument{"TO", q.To, err}
	}
	if r.Packet.Protocol == 0 {
		r.Packet.Protocol = cluster.TCP
	}
	if r.From == (walk.Point{}) {
		r.externalSource()
	}
	if n := s.Node(q.Via); n != nil {
		r.preferNode(n)
	}
	if q.Endpoint != "" {
		if err := r.preferEndpoint(); err != nil {
			return nil, &BadArgument{"--endpoint", q.Endpoint, err}
		}
	}
	return &r.Request, nil
}

// source parses FROM.
func (r *resolver) source() error {
	kind, rest, _ := strings.Cut(r.q.From, "/")
	switch kind {
	case "host":
		if r.s.Node(rest) == nil {
			return r.noNode(rest)
		}
		r.From = walk.Point{Node: rest}
		return nil
	case "pod":
		p, err := r.pod(rest)
		if err != nil {
			return err
		}
		r.From = walk.Point{Node: p.Node, Pod: p.Owner}
		return nil
	case "outside":
		if rest == "" {
			return nil
		}
		a, err := netip.ParseAddr(rest)
		if err != nil {
			return fmt.Errorf("%q is not an address", rest)
		}
		r.Packet.Src = a
		return r.family(a)
	}
	return fmt.Errorf("must be %s", FromForms)
}

// family records the family of an address in the question, and rejects a second family.
func (r *resolver) family(a netip.Addr) error {
	f := cluster.FamilyOf(a)
	if r.q.Family != 0 && r.q.Family != f {
		return fmt.Errorf("%s is not %s", a, r.q.Family)
	}
	r.q.Family = f
	return nil
}

// target parses TO.
func (r *resolver) target() error {
	kind, rest, _ := strings.Cut(r.q.To, "/")
	switch kind {
	case "svc", "service":
		return r.service(rest)
	case "pod":
		return r.toPod(rest)
	case "outside":
		return r.toOutside(rest)
	}
	if name, ok := dnsName(r.q.To); ok {
		return r.service(name)
	}
	return r.toAddress(r.q.To)
}

// toOutside parses ADDRESS[:PORT] of an external machine. Without an address, it uses one from the
// ranges for documentation.
func (r *resolver) toOutside(rest string) error {
	const http = 80
	to, err := netip.ParseAddrPort(rest)
	if a, other := netip.ParseAddr(rest); other == nil {
		to, err = netip.AddrPortFrom(a, http), nil
	} else if rest == "" {
		to, err = netip.AddrPortFrom(outside4, http), nil
		if r.q.Family == cluster.IPv6 {
			to = netip.AddrPortFrom(outside6, http)
		}
	}
	switch holder, _ := names.Holder(r.s, to.Addr()); {
	case err != nil:
		return notAddress(rest)
	case holder != "":
		return fmt.Errorf("%s has it", holder)
	case r.From == (walk.Point{}):
		return errors.New("FROM is outside, too")
	}
	if err := r.family(to.Addr()); err != nil {
		return err
	}
	return r.sendTo(to, "outside")
}

// notAddress reports a word that is not ADDRESS[:PORT].
func notAddress(word string) error {
	if i := strings.LastIndexByte(word, ':'); i >= 0 {
		if _, err := netip.ParseAddr(strings.Trim(word[:i], "[]")); err == nil {
			return fmt.Errorf("%q is not a port number (1 to 65535)", word[i+1:])
		}
	}
	return fmt.Errorf("%q is not an address", word)
}

// addressKind returns which kind of address of a Frontend an address is, empty if it is none of
// them.
func (r *resolver) addressKind(f *cluster.Frontend, to netip.AddrPort) string {
	a := to.Addr()
	switch {
	case f.Family != cluster.FamilyOf(a):
		return ""
	case a == f.ClusterIP && to.Port() == f.Port:
		return "ClusterIP"
	case slices.Contains(f.LoadBalancerIPs, a) && to.Port() == f.Port:
		return "load balancer address"
	case slices.Contains(f.ExternalIPs, a) && to.Port() == f.Port:
		return "external address"
	case f.NodePort == 0 || to.Port() != f.NodePort:
		return ""
	case a.IsLoopback():
		return "NodePort"
	}
	if name, node := names.Holder(r.s, a); node != "" && name == "host/"+node {
		return "NodePort of " + node
	}
	return ""
}

// sendTo sets the destination, an address of a kind. It returns nil, so that it can be the last
// call of a parser.
func (r *resolver) sendTo(to netip.AddrPort, kind string) error {
	r.Packet.Dst, r.Packet.DstPort = to.Addr(), to.Port()
	r.Destination = kind + " " + to.String()
	return nil
}

// service parses [NAMESPACE/]NAME[:PORT] and chooses the address of the Service.
func (r *resolver) service(name string) error {
	name, port, _ := strings.Cut(name, ":")
	f, err := r.frontend(name, port)
	if err != nil {
		return err
	}
	r.Frontend, r.Packet.Protocol = f, f.Protocol
	fromOutside := r.From == (walk.Point{})
	switch {
	case r.q.NodePort || fromOutside && f.NodePort != 0 && len(f.LoadBalancerIPs) == 0:
		return r.nodePort(f)
	case fromOutside && len(f.LoadBalancerIPs) > 0:
		return r.sendTo(netip.AddrPortFrom(f.LoadBalancerIPs[0], f.Port), "load balancer address")
	case fromOutside && len(f.ExternalIPs) > 0:
		return r.sendTo(netip.AddrPortFrom(f.ExternalIPs[0], f.Port), "external address")
	}
	return r.sendTo(netip.AddrPortFrom(f.ClusterIP, f.Port), "ClusterIP")
}

// frontend returns the Frontend of a Service by name; see pick.
func (r *resolver) frontend(name, port string) (*cluster.Frontend, error) {
	name = r.inNamespace(name)
	var all []*cluster.Frontend
	for _, f := range r.s.Frontends {
		if f.Owner.Namespace+"/"+f.Owner.Name == name {
			all = append(all, f)
		}
	}
	if len(all) == 0 {
		var known []string
		for _, f := range r.s.Frontends {
			known = append(known, f.Owner.Namespace+"/"+f.Owner.Name)
		}
		return nil, fmt.Errorf("there is no Service %q with a ClusterIP%s", name, names.Nearest(name, known))
	}
	return r.pick(all, port)
}

// pick selects one of a Service's Frontends by port, protocol and family. It prefers IPv4 and TCP.
// If two ports remain, it returns an error that lists them.
func (r *resolver) pick(all []*cluster.Frontend, port string) (*cluster.Frontend, error) {
	var fit []*cluster.Frontend
	for _, f := range all {
		if (port == "" || port == f.PortName || port == strconv.Itoa(int(f.Port))) &&
			(r.q.Protocol == 0 || r.q.Protocol == f.Protocol) && (r.q.Family == 0 || r.q.Family == f.Family) {
			fit = append(fit, f)
		}
	}
	if len(fit) == 0 {
		return nil, fmt.Errorf("the Service has no such port; it has %s", names.Ports(all))
	}
	first := slices.MinFunc(fit, func(a, b *cluster.Frontend) int {
		return cmp.Or(cmp.Compare(a.Family, b.Family), cmp.Compare(a.Protocol, b.Protocol))
	})
	for _, f := range fit {
		if f != first && f.Family == first.Family && f.Protocol == first.Protocol {
			return nil, fmt.Errorf("which port? The Service has %s", names.Ports(all))
		}
	}
	return first, nil
}

// nodePort selects the node for a NodePort: --via, else the node where the packet starts, else the
// first.
func (r *resolver) nodePort(f *cluster.Frontend) error {
	if f.NodePort == 0 {
		return fmt.Errorf("the Service has no NodePort")
	}
	name := r.q.Via
	if name == "" {
		name = r.From.Node
	}
	if name == "" && len(r.s.Nodes) > 0 {
		name = r.s.Nodes[0].Name
	}
	n := r.s.Node(name)
	if n == nil {
		return r.noNode(name)
	}
	a := n.Address(f.Family)
	if !a.IsValid() {
		return fmt.Errorf("Node %s has no %s address", name, f.Family)
	}
	return r.sendTo(netip.AddrPortFrom(a, f.NodePort), "NodePort of "+name)
}

// externalSource sets the source of an external packet, and the node that it is routed to.
func (r *resolver) externalSource() {
	if !r.Packet.Src.IsValid() {
		r.Packet.Src = outside4
		if r.Packet.Dst.Is6() {
			r.Packet.Src = outside6
		}
	}
	n := r.s.Node(r.q.Via)
	if _, node := names.Holder(r.s, r.Packet.Dst); n != nil && node != n.Name {
		r.Packet.EthDst = walk.ExternalMAC(n)
		r.Destination += " via " + n.Name
	}
}

// preferNode makes the walk prefer one of several nodes with an egress address of the sender. The
// next hop to a node is its address on the join or the transit switch.
func (r *resolver) preferNode(n *cluster.Node) {
	f := cluster.FamilyOf(r.Packet.Dst)
	for _, list := range [][]netip.Prefix{r.s.Config.JoinSubnets, r.s.Config.TransitSubnets} {
		if a, err := cluster.Nth(cluster.PrefixOf(list, f), n.ID+claims.NodeOffset); err == nil {
			r.Prefer = append(r.Prefer, netip.AddrPortFrom(a, 0))
		}
	}
}

// preferEndpoint makes the walk prefer one endpoint. A gateway router uses the masquerade address
// instead of its node's own, so that is preferred as well.
func (r *resolver) preferEndpoint() error {
	if r.Frontend == nil {
		return fmt.Errorf("the packet is for no Service")
	}
	word := r.q.Endpoint
	if pod, ok := strings.CutPrefix(word, "pod/"); ok {
		word = "pod/" + r.inNamespace(pod)
	}
	for _, b := range r.Frontend.Backends {
		at := netip.AddrPortFrom(b.Addr, b.Port)
		name, _ := names.Holder(r.s, b.Addr)
		if !slices.Contains([]string{b.Addr.String(), at.String(), name}, word) {
			continue
		}
		r.Prefer = append(r.Prefer, at)
		for _, n := range r.s.Nodes {
			if n.Address(r.Frontend.Family) != b.Addr {
				continue
			}
			if m, err := cluster.Nth(cluster.PrefixOf(r.s.Config.Gateway.MasqueradeSubnets, r.Frontend.Family),
				claims.MasqHost); err == nil {
				r.Prefer = append(r.Prefer, netip.AddrPortFrom(m, b.Port))
			}
		}
		return nil
	}
	var ends []string
	for _, b := range r.Frontend.Backends {
		ends = append(ends, netip.AddrPortFrom(b.Addr, b.Port).String())
	}
	return fmt.Errorf("the Service has no such endpoint; it has %s", cmp.Or(names.List(ends), "none"))
}
