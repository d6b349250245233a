package host

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/shell"
)

// Parse reads what Print wrote: one command on a line, empty lines and whole-line comments aside. A word that is not
// known is an error which names it.
func Parse(text string) (State, error) {
	s := State{
		Links: map[string]Link{}, Addresses: map[AddressKey]Address{}, Routes: map[RouteKey]Route{},
		Rules: map[Rule]cluster.Owner{}, Neighbors: map[NeighborKey]Neighbor{}, Sysctls: map[string]Sysctl{},
	}
	for i, l := range strings.Split(text, "\n") {
		c, err := cut(l)
		if err == nil && len(c.words) > 0 {
			err = s.read(c)
		}
		if err != nil {
			return State{}, fmt.Errorf("line %d: %w", i+1, err)
		}
	}
	return s, nil
}

// command is one line: its words, and what its comment says.
type command struct {
	words    []string
	borrowed bool
	owner    cluster.Owner
}

// cut splits a line.
func cut(line string) (command, error) {
	words, comment, err := shell.Words(line)
	c := command{words: words}
	about := strings.Fields(comment)
	if len(words) > 0 && len(about) > 0 && about[0] == borrowedWord {
		c.borrowed, about = true, about[1:]
	}
	if len(about) == 1 {
		c.owner = cluster.ParseOwner(about[0])
	}
	return c, err
}

// reader takes words of a command one after the other; the first error stays.
type reader struct {
	words []string
	err   error
}

func (r *reader) next() string {
	if len(r.words) == 0 {
		r.fail("a word is missing at the end")
		return ""
	}
	w := r.words[0]
	r.words = r.words[1:]
	return w
}

func (r *reader) fail(format string, a ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, a...)
	}
	r.words = nil
}

func (r *reader) unknown(w string) { r.fail("unknown word %q", w) }

func (r *reader) expect(words ...string) {
	for _, want := range words {
		if got := r.next(); got != want && r.err == nil {
			r.fail("%q where %q must be", got, want)
		}
	}
}

func (r *reader) prefix() netip.Prefix {
	w := r.next()
	p, err := netip.ParsePrefix(w)
	if err != nil && r.err == nil {
		r.fail("%q is not a prefix", w)
	}
	return p
}

func (r *reader) addr() netip.Addr {
	w := r.next()
	a, err := netip.ParseAddr(w)
	if (err != nil || a.Zone() != "") && r.err == nil {
		r.fail("%q is not an address", w)
	}
	return a
}

func (r *reader) mac() cluster.MAC {
	m, err := cluster.ParseMAC(r.next())
	if err != nil && r.err == nil {
		r.fail("%v", err)
	}
	return m
}

func (r *reader) number() int {
	w := r.next()
	n, err := strconv.ParseUint(w, 0, 32)
	if err != nil && r.err == nil {
		r.fail("%q is not a number", w)
	}
	return int(n)
}

func (s *State) read(c command) error {
	r := &reader{words: c.words}
	if c.words[0] == "sysctl" {
		return s.readSysctl(r, c)
	}
	r.expect("ip")
	family := cluster.IPv4
	if len(r.words) > 0 && r.words[0] == "-6" {
		r.next()
		family = cluster.IPv6
	}
	switch w := r.next(); w {
	case "link":
		return s.readLink(r, c)
	case "addr":
		return s.readAddress(r, c)
	case "neigh":
		return s.readNeighbor(r, c)
	case "route":
		return s.readRoute(r, c, family)
	case "rule":
		return s.readRule(r, c, family)
	default:
		r.unknown(w)
	}
	return r.err
}

// put adds an entry when its line had no error and its key is new.
func put[K comparable, V any](r *reader, m map[K]V, k K, v V) error {
	if _, twice := m[k]; twice && r.err == nil {
		r.fail("%v: a second time", k)
	}
	if r.err == nil {
		m[k] = v
	}
	return r.err
}

func (s *State) readSysctl(r *reader, c command) error {
	r.expect("sysctl", "-w")
	w := r.next()
	path, value, found := strings.Cut(w, "=")
	if r.err == nil && (!found || path == "") {
		r.fail("%q is not NAME=VALUE", w)
	}
	if len(r.words) > 0 {
		r.unknown(r.words[0])
	}
	path = swapDots(path)
	return put(r, s.Sysctls, path, Sysctl{Path: path, Value: value, Owner: c.owner})
}

func (s *State) readLink(r *reader, c command) error {
	r.expect("set", "dev")
	l := Link{Name: r.next(), Owner: c.owner}
	up := false
	for len(r.words) > 0 {
		switch w := r.next(); w {
		case "address":
			l.MAC = r.mac()
		case "mtu":
			l.MTU = r.number()
		case "tx":
			r.expect("off")
			l.Checksums = true
		case "up":
			up = true
		default:
			r.unknown(w)
		}
	}
	if !up && r.err == nil {
		r.fail("link %s is not set up", l.Name)
	}
	return put(r, s.Links, l.Name, l)
}

func (s *State) readAddress(r *reader, c command) error {
	r.expect("replace")
	a := Address{AddressKey: AddressKey{Prefix: r.prefix()}, Borrowed: c.borrowed, Owner: c.owner}
	r.expect("dev")
	a.Link = r.next()
	for len(r.words) > 0 {
		switch w := r.next(); w {
		case "nodad":
		case "preferred_lft":
			r.expect("0")
			a.Deprecated = true
		default:
			r.unknown(w)
		}
	}
	return put(r, s.Addresses, a.AddressKey, a)
}

func (s *State) readNeighbor(r *reader, c command) error {
	r.expect("replace")
	n := Neighbor{NeighborKey: NeighborKey{IP: r.addr()}, Owner: c.owner}
	r.expect("lladdr")
	n.MAC = r.mac()
	r.expect("dev")
	n.Link = r.next()
	r.expect("nud", "permanent")
	if len(r.words) > 0 {
		r.unknown(r.words[0])
	}
	return put(r, s.Neighbors, n.NeighborKey, n)
}

func (s *State) readRoute(r *reader, c command, family cluster.Family) error {
	r.expect("replace")
	route := Route{RouteKey: RouteKey{Table: mainTable}, Borrowed: c.borrowed, Owner: c.owner}
	local := len(r.words) > 0 && r.words[0] == "local"
	if local {
		r.next()
	}
	if len(r.words) > 0 && r.words[0] == "default" {
		r.next()
		route.Prefix = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
		if family == cluster.IPv6 {
			route.Prefix = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
		}
	} else {
		route.Prefix = r.prefix()
	}
	ours := false
	for len(r.words) > 0 {
		switch w := r.next(); w {
		case "via":
			route.Via = r.addr()
		case "dev":
			route.Link = r.next()
		case "mtu":
			route.MTU = r.number()
		case "src":
			route.Src = r.addr()
		case "table":
			route.Table = r.number()
		case "proto":
			r.expect(strconv.Itoa(claims.RouteProtocol))
			ours = true
		default:
			r.unknown(w)
		}
	}
	if ours == c.borrowed && r.err == nil {
		r.fail("a route is either proto %d or %s", claims.RouteProtocol, borrowedWord)
	}
	if local != (route.Table == LocalTable) && r.err == nil {
		r.fail("routes of table %d, and no others, are of type local", LocalTable)
	}
	return put(r, s.Routes, route.RouteKey, route)
}

func (s *State) readRule(r *reader, c command, family cluster.Family) error {
	r.expect("add", "priority")
	rule := Rule{Family: family, Priority: r.number()}
	r.expect("from")
	if len(r.words) > 0 && r.words[0] == "all" {
		r.next()
	} else {
		rule.From = r.prefix()
	}
	if len(r.words) > 0 && r.words[0] == "fwmark" {
		r.next()
		rule.Mark = uint32(r.number())
	}
	r.expect("table")
	if len(r.words) > 0 && r.words[0] == strconv.Itoa(OtherRule) {
		r.next()
		rule.Table = OtherRule
	} else {
		rule.Table = r.number()
	}
	if len(r.words) > 0 {
		r.unknown(r.words[0])
	}
	return put(r, s.Rules, rule, c.owner)
}
