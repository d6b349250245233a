package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"hairpin/lab"
	"hairpin/lab/probe"
)

// tries is the number of requests to a Service with several endpoints. They show whether one
// endpoint replies, or several.
const tries = 10

// family is an IP version of the matrix.
type family struct {
	name              string // as in "tcp4"
	masquerade, joins netip.Prefix
	nodeLocal         netip.Prefix
	transits          netip.Prefix
	localhost         netip.Addr
	unallocated       netip.Addr // in the range of the Services
}

// families returns the default addresses of the documentation. They are repeated here, so that the
// matrix does not test the product against its own constants.
func families() []family {
	p, a := netip.MustParsePrefix, netip.MustParseAddr
	return []family{
		{"4", p("169.254.169.0/29"), p("100.64.0.0/16"), p("169.254.0.0/20"), p("100.88.0.0/16"), a("127.0.0.1"),
			a("10.96.99.99")},
		{"6", p("fd69::/125"), p("fd98::/64"), p("fd6b::/64"), p("fd97::/64"), a("::1"), a("fd00:10:96::9999")},
	}
}

// Ports of the servers.
const (
	podPort    = 8080
	hostPort   = 8081
	clientPort = 9000
)

// endpoint is a client of cases, and a server of direct ones.
type endpoint struct {
	place lab.Place
	ips   []netip.Addr
	port  uint16
}

// address returns the endpoint's address of a family, or the zero Addr.
func (e endpoint) address(f family) netip.Addr { return ofFamily(e.ips, f) }

// on returns a port of the endpoint's machine.
func (e endpoint) on(port uint16, f family) netip.AddrPort {
	return netip.AddrPortFrom(e.address(f), port)
}

func ofFamily(list []netip.Addr, f family) netip.Addr {
	for _, a := range list {
		if a.Is4() == (f.name == "4") {
			return a
		}
	}
	return netip.Addr{}
}

// world is the environment of the matrix.
type world struct {
	lab       *lab.Lab
	objects   source
	slow      int  // see Options.Slow
	sctp      bool // the kernel has SCTP
	userspace bool // datapath of Open vSwitch
	shared    bool // gateway mode
	detached  bool

	openvswitch string // its version
	every       bool   // see Checks.Every

	nodeLocal bool // node-local = dgp
	redirect  bool // nodeport-path = redirect
	openflow  bool // service-engine of the attacker's node
	endpoints map[string]endpoint
	nodes     map[string]nodeFacts // by name
	services  map[string]serviceFacts
}

type nodeFacts struct {
	id       int
	podCIDRs []netip.Prefix
	others   []netip.Addr // other addresses of the host
}

type serviceFacts struct {
	clusterIPs     []netip.Addr
	external       []netip.Addr // spec.externalIPs
	balancer       []netip.Addr // status.loadBalancer.ingress
	port, nodePort uint16
	sctp           bool // also serves SCTP
}

// Result is the outcome of a Case over one protocol and family, "tcp4".
type Result struct {
	Case
	Protocol string // "tcp4", "udp6", …
	Got      string // source address that the server saw
	Want     string
	Millis   float64 // of the slowest try
	Problem  string  // empty: passed
	family   family
}

// name returns the name that the option --only is matched against.
func (r Result) name() string { return strings.Join([]string{r.From, r.To, r.Path, r.Protocol}, " ") }

// source returns the address that a word of Case.Saw means.
func (w *world) source(saw string, f family) (netip.Addr, error) {
	word, node, _ := strings.Cut(saw, " ")
	at := func(p netip.Prefix, n int) netip.Addr {
		a := p.Masked().Addr()
		for range n {
			a = a.Next()
		}
		return a
	}
	switch word + " " {
	case masquerade + " ":
		return at(f.masquerade, 1), nil
	case beyondDGP + " ":
		return at(f.nodeLocal, 3), nil
	case hairpin + " ":
		return at(f.masquerade, 5), nil
	case join:
		return at(f.joins, w.nodes[node].id+1), nil
	case management:
		for _, p := range w.nodes[node].podCIDRs {
			if p.Addr().Is4() == (f.name == "4") {
				return at(p, 2), nil
			}
		}
	default:
		if e, ok := w.endpoints[saw]; ok {
			return e.address(f), nil
		}
	}
	return netip.Addr{}, fmt.Errorf("the lab has no %q", saw)
}

// saw returns what the server of a case must see. With node-local = dgp, requests of a host to a
// cluster IP come from the management port.
func (w *world) saw(c Case) string {
	if !w.nodeLocal || c.Path != "ClusterIP" || strings.HasPrefix(c.From, "pod-") {
		return c.Saw
	}
	if _, node, ok := strings.Cut(c.Saw, join); ok {
		return management + node
	}
	return strings.Replace(c.Saw, masquerade, beyondDGP, 1)
}

// sources returns the addresses of words separated by |. The server may see any of them.
func (w *world) sources(saw string, f family) ([]netip.Addr, error) {
	var list []netip.Addr
	for _, word := range strings.Split(saw, "|") {
		a, err := w.source(word, f)
		if err != nil {
			return nil, err
		}
		list = append(list, a)
	}
	return list, nil
}

// target returns the destination of a case.
func (w *world) target(c Case, f family) (netip.AddrPort, error) {
	path, node, _ := strings.Cut(c.Path, " ")
	s, known := w.services[c.To]
	switch path {
	case "direct":
		if e, ok := w.endpoints[c.To]; ok {
			return netip.AddrPortFrom(e.address(f), e.port), nil
		}
	case "ClusterIP":
		if known {
			return netip.AddrPortFrom(ofFamily(s.clusterIPs, f), s.port), nil
		}
	case "other":
		if known {
			return netip.AddrPortFrom(ofFamily(s.clusterIPs, f), s.port+1), nil
		}
	case "unallocated":
		return netip.AddrPortFrom(f.unallocated, 80), nil
	case "external":
		if a := ofFamily(s.external, f); a.IsValid() {
			return netip.AddrPortFrom(a, s.port), nil
		}
	case "balancer":
		if a := ofFamily(s.balancer, f); a.IsValid() {
			return netip.AddrPortFrom(a, s.port), nil
		}
	case "localhost":
		return netip.AddrPortFrom(f.localhost, s.nodePort), nil
	case "masquerade":
		return netip.AddrPortFrom(nth(f.masquerade, 2), s.nodePort), nil
	case "mp0":
		a, err := w.source(c.Path, f)
		return netip.AddrPortFrom(a, s.nodePort), err
	case "secondary":
		if a := ofFamily(w.nodes[node].others, f); a.IsValid() {
			return netip.AddrPortFrom(a, s.nodePort), nil
		}
	case "NodePort":
		if e, ok := w.endpoints["host-"+strings.TrimPrefix(node, "node-")]; ok && known {
			return netip.AddrPortFrom(e.address(f), s.nodePort), nil
		}
	}
	return netip.AddrPort{}, fmt.Errorf("the lab has no %s by %s", c.To, c.Path)
}

// protocols returns the protocols of a case. A Service has SCTP if the kernel has.
func (w *world) protocols(c Case) []string {
	list := []string{"tcp", "udp"}
	if s := w.services[c.To]; w.sctp && s.sctp && !inVain(c.By) {
		list = append(list, "sctp")
	}
	return list
}

// rows returns the results to fill for the cases: each over all protocols and families.
func (w *world) rows(cases []Case, fits func(name string) bool) (rows [][]Result) {
	for _, c := range cases {
		var results []Result
		for _, protocol := range w.protocols(c) {
			for _, f := range families() {
				if r := (Result{Case: c, Protocol: protocol + f.name, family: f}); fits(r.name()) {
					results = append(results, r)
				}
			}
		}
		rows = append(rows, results)
	}
	return rows
}

// run tries the cases in order, with all rows of a case concurrently, and reports each result.
func (w *world) run(ctx context.Context, rows [][]Result, tell func(Result)) error {
	for _, results := range rows {
		var wg sync.WaitGroup
		for i, r := range results {
			wg.Go(func() { results[i] = w.try(ctx, r) })
		}
		wg.Wait()
		if err := ctx.Err(); err != nil {
			return err
		}
		for _, r := range results {
			tell(r)
		}
	}
	return nil
}

func (w *world) try(ctx context.Context, r Result) Result {
	c, f, protocol := r.Case, r.family, r.Protocol[:len(r.Protocol)-1]
	to, err := w.target(c, f)
	if inVain(c.By) {
		if r.Want = c.By; c.By == closed {
			r.Want = refused
			if c.Path == "masquerade" && w.openflow { // the host has no such address
				r.Want = dropped
			}
		}
		return w.tryInVain(ctx, r, protocol, to, err)
	}
	wants, err2 := w.sources(w.saw(c), f)
	from, ok := w.endpoints[c.From]
	if err := errors.Join(err, err2); err != nil || !ok {
		r.Problem = fmt.Sprintf("cannot be tried: %v, from %s", err, c.From)
		return r
	}
	r.Want = wants[0].String()
	n := 1
	if strings.ContainsAny(c.By, "|") || strings.HasSuffix(c.By, " pod") || strings.HasSuffix(c.By, " pods") {
		n = tries
	}
	by := map[string]bool{}
	for range n {
		// A lost datagram is never sent again. A late one on a busy machine must not count as lost.
		a := lab.Get(ctx, from.place,
			probe.Request{Protocol: protocol, To: to, Timeout: longer(10*time.Second, w.slow)})
		r.Millis = max(r.Millis, a.Millis)
		if a.Error != "" {
			r.Problem = a.Error
			return r
		}
		r.Got = a.Saw.Addr().String()
		if n > 1 && a.Name == c.From { // one of several endpoints is the client itself
			own, err := w.source(hairpin, f)
			if err != nil || a.Saw.Addr() != own {
				r.Problem = fmt.Sprintf("reached itself from %s, not from %s", a.Saw.Addr(), own)
				return r
			}
			r.Got = r.Want
		} else if !slices.Contains(wants, a.Saw.Addr()) {
			r.Problem = fmt.Sprintf("%s saw another source", a.Name)
			return r
		}
		by[a.Name] = true
	}
	r.Problem = wrongAnswer(c.By, by)
	return r
}

// wrongAnswer returns what is wrong with the servers that replied, or "".
func wrongAnswer(want string, by map[string]bool) string {
	switch want {
	case "one pod":
		if len(by) != 1 {
			return fmt.Sprintf("%d pods answered %d requests of one client", len(by), tries)
		}
	case "some pods":
		if len(by) < 2 {
			return fmt.Sprintf("one pod answered all %d requests", tries)
		}
	default:
		for name := range by {
			if !slices.Contains(strings.Split(want, "|"), name) {
				return name + " answered instead of " + want
			}
		}
	}
	return ""
}

func inVain(by string) bool { return by == refused || by == dropped || by == closed }

// tryInVain expects no reply: a timeout, or a rejection.
func (w *world) tryInVain(ctx context.Context, r Result, protocol string, to netip.AddrPort, err error) Result {
	from, ok := w.endpoints[r.From]
	if err != nil || !ok {
		r.Problem = fmt.Sprintf("cannot be tried: %v, from %s", err, r.From)
		return r
	}
	request := probe.Request{Protocol: protocol, To: to, Timeout: longer(time.Second, w.slow)}
	a := lab.Get(ctx, from.place, request)
	// Retry, because a kernel rate-limits ICMP errors to one machine (net.ipv6.icmp.ratelimit), and
	// other cases consume some, too.
	for n := 0; n < 2 && r.Want == refused && protocol == "udp" && strings.Contains(a.Error, "timeout"); n++ {
		a = lab.Get(ctx, from.place, request)
	}
	r.Millis = a.Millis
	switch {
	case a.Error == "":
		r.Got = a.Saw.Addr().String()
		r.Problem = a.Name + " answered"
	case strings.Contains(a.Error, "refused"):
		r.Got = refused
	case strings.Contains(a.Error, "timeout") || strings.Contains(a.Error, "deadline"):
		r.Got = dropped
	case strings.Contains(a.Error, "not permitted"): // the kernel's error for a local process in both cases, over UDP
		r.Got = r.Want
	default:
		r.Got, r.Problem = "-", a.Error
	}
	if r.Problem == "" && r.Got != r.Want {
		r.Problem = "not " + r.Want
	}
	return r
}
