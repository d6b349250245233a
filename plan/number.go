package plan

import (
	"hash/fnv"
	"net/netip"
	"slices"

	"hairpin/claims"
	"hairpin/cluster"
	"hairpin/datapath/nft"
)

// A Frontend with a policy Local and an address from outside has a port at the addresses that stand in for its own: the NodePort,
// or without one a number. It has an order in which it wants the numbers, by hash, and gets the first that no older one has:
// every number follows from the Services alone, and no Service loses one to a younger Service, whatever its name.
//
// Who has a number keeps it while others come and go: it would be somebody else's a moment before, and the host's packets would get
// there before Open vSwitch has heard of the change. No order can have that without a memory, because numbers are fewer than Services that
// there may be. So a Planner remembers them; the one of an agent that starts begins with those that the node has.

// The numbers are all ports but placeholderPort and those that usually are NodePorts, and a few at the end: their count is a prime, so
// that any step leads to all of them.
const (
	numbers       = 62761
	firstNodePort = 30000
	lastNodePort  = 32767
)

// tries is how many numbers are tried: with three quarters of them taken, 100 are taken for one in 10^12 Frontends.
const tries = 100

// Ranks of who claims a number: NodePorts cannot choose, who has one keeps it, the others look for one.
const (
	rankNodePort uint8 = iota
	rankHeld
	rankNumber
)

// Numbers are what ports of Services have.
type Numbers map[servicePort]uint16

// servicePort is a port of a Service, in one family.
type servicePort struct {
	owner    cluster.Owner
	family   cluster.Family
	protocol cluster.Protocol
	port     uint16
}

func servicePortOf(f *cluster.Frontend) servicePort {
	return servicePort{f.Owner, f.Family, f.Protocol, f.Port}
}

// NumbersIn returns those that a node has: where its host leads clients of external addresses. A Service whose name is too long for nft's
// comments is not known by it.
func NumbersIn(tables nft.State, c *cluster.Config) Numbers {
	standIn := map[netip.Addr]bool{}
	for _, subnet := range c.Gateway.MasqueradeSubnets {
		for _, place := range []int{claims.MasqETPLocal, claims.MasqCluster} {
			if a, err := cluster.Nth(subnet, place); err == nil {
				standIn[a] = true
			}
		}
	}
	had := Numbers{}
	if tables[nft.Inet] == nil {
		return had
	}
	for _, of := range servicesOf {
		for _, m := range []*nft.Map{of.externals, of.ownIPs, of.spreadIPs, of.stickyIPs} {
			there := tables[nft.Inet].Maps[m.Name]
			if there == nil {
				continue
			}
			for e, to := range there.Elements.All() {
				if standIn[to.Addr.Addr()] && to.Owner != (cluster.Owner{}) {
					had[servicePort{to.Owner, cluster.FamilyOf(e.Addr), e.Protocol, e.Port}] = to.Addr.Port()
				}
			}
		}
	}
	return had
}

// seat is a Frontend that wants a number: a port of a Service.
type seat struct {
	by       *claimant
	family   cluster.Family
	protocol cluster.Protocol
	port     uint16
}

func seatOf(c *claimant, f *cluster.Frontend) seat { return seat{c, f.Family, f.Protocol, f.Port} }

// frontend gives it as it is now, or nil when it wants none any more. Of two with one name, the second is not served.
func (r *registry) frontend(s seat) *cluster.Frontend {
	for i, f := range s.by.given {
		same := func(g *cluster.Frontend) bool { return wordOf(g) == wordOf(f) }
		if seatOf(s.by, f) == s && wantsNumber(f) && !slices.ContainsFunc(s.by.given[:i], same) && r.first[claim{kind: claimClusterIP, addr: f.ClusterIP}].by == s.by {
			return f
		}
	}
	return nil
}

// wantsNumber reports whether a Frontend needs a number when it has no NodePort. It keeps it when it has one.
func wantsNumber(f *cluster.Frontend) bool {
	return (f.InternalLocal || f.ExternalLocal) && len(f.ExternalIPs)+len(f.LoadBalancerIPs) > 0
}

func proxyPortOf(f *cluster.Frontend, port uint16) claim {
	return claim{kind: claimStandIn, family: f.Family, protocol: f.Protocol, port: port}
}

// numberOf returns the number that a Frontend tries after i others.
func numberOf(f *cluster.Frontend, i int) claim { return proxyPortOf(f, numbered(f, i)) }

func numbered(f *cluster.Frontend, i int) uint16 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(f.Key())) // never fails
	start := mix(h.Sum64())
	step := 1 + mix(start)%(numbers-1)
	n := placeholderPort + 1 + (start%numbers+uint64(i)*step)%numbers
	if n >= firstNodePort {
		n += lastNodePort - firstNodePort + 1
	}
	return uint16(n)
}

// seatAll finds numbers for all that must look for one. Of those that look, an older one takes it from a younger, which looks on.
func (r *registry) seatAll() {
	var seated []seat
	for len(r.unseated) > 0 {
		s := r.unseated[len(r.unseated)-1]
		r.unseated = r.unseated[:len(r.unseated)-1]
		f := r.frontend(s)
		if f == nil {
			continue
		}
		r.dirty[s.by] = true
		if r.holds(s, f) {
			continue
		}
		x, i := claimed{s.by, rankNumber, s.port}, 0
		for ; i < tries; i++ {
			k := numberOf(f, i)
			if r.add(k, x); r.first[k] == x {
				break
			}
		}
		for i++; r.claims(numberOf(f, i), x); i++ {
			r.drop(numberOf(f, i), x)
		}
		seated = append(seated, s)
	}
	for _, s := range seated {
		r.settle(s)
	}
	r.unseated = nil // settle names who has a number
}

// holds reports whether a Frontend keeps the number that it had.
func (r *registry) holds(s seat, f *cluster.Frontend) bool {
	n := r.numbers[servicePortOf(f)]
	if n == 0 {
		return false
	}
	k, x := proxyPortOf(f, n), claimed{s.by, rankHeld, s.port}
	if r.add(k, x); r.first[k] == x {
		return true
	}
	r.drop(k, x)
	delete(r.numbers, servicePortOf(f))
	return false
}

// settle makes the number that one has found its own.
func (r *registry) settle(s seat) {
	f, x := r.frontend(s), claimed{s.by, rankNumber, s.port}
	for i := 0; r.claims(numberOf(f, i), x); i++ {
		if k := numberOf(f, i); r.first[k] == x {
			r.add(k, claimed{s.by, rankHeld, s.port})
			r.numbers[servicePortOf(f)] = k.port
		}
		r.drop(numberOf(f, i), x)
	}
}

// unseat makes one look for a number again that lost one, or may have one that it wants more than its own.
func (r *registry) unseat(k claim, x claimed) {
	if k.kind == claimStandIn && x.rank != rankNodePort {
		r.unseated = append(r.unseated, seat{x.by, k.family, k.protocol, x.port})
	}
}

// forget lets go of the numbers of Frontends that want none any more.
func (r *registry) forget(list []*cluster.Frontend, wanted func(*cluster.Frontend) bool) {
	for _, f := range list {
		if wantsNumber(f) && !wanted(f) {
			delete(r.numbers, servicePortOf(f))
		}
	}
}

// claims reports whether something is claimed.
func (r *registry) claims(k claim, x claimed) bool {
	first, taken := r.first[k]
	if !taken || first.compare(x) == 0 {
		return taken
	}
	_, found := slices.BinarySearchFunc(r.others[k], x, claimed.compare)
	return found
}

// number returns the number that a Frontend has, or 0.
func (r *registry) number(c *claimant, f *cluster.Frontend) uint16 {
	n := r.numbers[servicePortOf(f)]
	if n == 0 || r.first[proxyPortOf(f, n)] != (claimed{c, rankHeld, f.Port}) {
		return 0
	}
	return n
}
