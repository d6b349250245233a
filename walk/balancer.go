package walk

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/datapath/nb"
)

// The bits of ct_mark in which OVN stores facts about a load-balanced connection (ovn
// logical-fields).
const (
	markNatted    = 2
	markSkipSNAT  = 4
	markForceSNAT = 8
)

// vip is one virtual address of a load balancer.
type vip struct {
	lb *nb.LoadBalancer
	*nb.VIP
}

// endpoints returns the distinct backends: with affinity, Backends repeats each of them.
func (v *vip) endpoints() []netip.AddrPort {
	if !v.lb.Affinity {
		return v.Backends
	}
	var list []netip.AddrPort
	for _, a := range v.Backends {
		if !slices.Contains(list, a) {
			list = append(list, a)
		}
	}
	return list
}

type vipKey struct {
	addr     netip.AddrPort
	protocol cluster.Protocol
}

// group is a Load_Balancer_Group with the VIPs of its members.
type group struct {
	vips  map[vipKey][]*vip
	addrs map[netip.Addr]bool
}

type groups map[string]*group

// balancers holds the groups that a switch or router references, without those that have no VIP.
type balancers []*group

func newGroups(s nb.State) groups {
	all := groups{}
	for _, row := range s {
		lb, ok := row.(*nb.LoadBalancer)
		if !ok {
			continue
		}
		for _, name := range lb.Groups {
			for i := range lb.VIPs {
				g := all[name]
				if g == nil {
					g = &group{vips: map[vipKey][]*vip{}, addrs: map[netip.Addr]bool{}}
					all[name] = g
				}
				v := &lb.VIPs[i]
				k := vipKey{v.Addr, lb.Protocol}
				g.vips[k] = append(g.vips[k], &vip{lb, v})
				g.addrs[v.Addr.Addr()] = true
			}
		}
	}
	return all
}

func (g groups) of(names []string) balancers {
	var out balancers
	for _, name := range names {
		if x := g[name]; x != nil {
			out = append(out, x)
		}
	}
	return out
}

// holds reports whether an address is a VIP, on any port.
func (b balancers) holds(a netip.Addr) bool {
	for _, g := range b {
		if g.addrs[a] {
			return true
		}
	}
	return false
}

// lookup returns the VIP that a packet is for, or nil. Two load balancers with the same VIP are an
// error: OVN may take either.
func (b balancers) lookup(p *Packet) (*vip, error) {
	var found *vip
	for _, g := range b {
		for _, v := range g.vips[vipKey{netip.AddrPortFrom(p.Dst, p.DstPort), p.Protocol}] {
			if found != nil && found.lb != v.lb {
				return nil, fmt.Errorf("load balancers %s and %s both have %s/%s", found.lb.Name, v.lb.Name, v.Addr,
					p.Protocol)
			}
			found = v
		}
	}
	return found, nil
}

// routerFlags hold a router's flags of a packet between its stages (flags.force_snat_for_lb,
// skip_snat_for_lb).
type routerFlags struct{ force, skip bool }

func (f routerFlags) mark() uint32 {
	switch {
	case f.skip:
		return markSkipSNAT
	case f.force:
		return markForceSNAT
	}
	return 0
}

// outcome is what a load balancer does with a new connection.
type outcome uint8

const (
	balanced outcome = iota // it continues to an endpoint
	refused                 // there is no endpoint, and the sender gets a refusal
	dropped                 // the packet is lost
)

// balance sends a new connection to an endpoint of a VIP: ct_lb_mark in a zone. learn is the stage
// that learns the client of a VIP with an affinity timeout. OVN up to and including 25.03 drops the
// packet that it learns from.
func (r *run) balance(n *node, stage, learn string, z zone, v *vip,
	flags routerFlags) (out outcome, reason string, err error) {
	if err := unknownOption(v.lb, v.lb.Options, "reject", "event", "hairpin_snat_ip", "skip_snat", "affinity_timeout",
		"neighbor_responder", "ct_flush"); err != nil {
		return dropped, "", err
	}
	if len(v.Backends) == 0 {
		if v.lb.Options["reject"] == "true" {
			r.step(n, stage, v, v.lb.Owner, "no endpoint: rejected with "+refusalOf(r.p.Protocol)+
				" (options:reject=true)")
			return refused, fmt.Sprintf("rejected with %s: %s has no endpoint", refusalOf(r.p.Protocol), v.lb.Name), nil
		}
		r.step(n, stage, v, v.lb.Owner, "no endpoint: dropped")
		return dropped, "dropped: " + v.lb.Name + " has no endpoint", nil
	}
	to := v.Backends[r.choose(v.Backends)]
	if !v.lb.Affinity {
		r.recirculate() // for a group with dp_hash, the datapath computes the hash first
	}
	before := r.p
	made := r.track(z, translation{commit: true, nat: flow.NATDst, addr: to.Addr(), port: to.Port(),
		mark: markNatted | flags.mark()})
	did := changed(&before, &r.p)
	if v.lb.Affinity {
		did += " (hash of the client's address)"
	}
	s := r.step(n, stage, v, v.lb.Owner, did)
	if made != nil {
		s.Entry = made.String()
	}
	if ends := v.endpoints(); len(ends) > 1 {
		s.Choices = ends
	}
	if v.lb.Options["affinity_timeout"] != "" {
		r.step(n, learn, learned{v, to}, v.lb.Owner, "records the client's endpoint, drops the packet")
		return dropped, "OVN drops the first packet of a client with affinity (" + v.lb.Name +
			" affinity_timeout); TCP retransmits after a second", nil
	}
	return balanced, "", nil
}

// lost returns the cause if a load balancer drops a packet.
func (v *vip) lost() Cause {
	if len(v.Backends) == 0 {
		return NoEndpoint
	}
	return Learning
}

func refusalOf(p cluster.Protocol) string {
	switch p {
	case cluster.TCP:
		return "a TCP reset"
	case cluster.SCTP:
		return "an SCTP abort"
	}
	return "an ICMP port unreachable"
}

// hairpinSource returns the source address that a load balancer gives to a hairpinned packet
// (options:hairpin_snat_ip, one address per family; without it the VIP).
func hairpinSource(lb *nb.LoadBalancer, asked netip.Addr) (netip.Addr, error) {
	for _, word := range strings.Fields(lb.Options["hairpin_snat_ip"]) {
		a, err := netip.ParseAddr(word)
		if err != nil {
			return a, fmt.Errorf("%s: hairpin_snat_ip: %w", lb.Key(), err)
		}
		if cluster.FamilyOf(a) == cluster.FamilyOf(asked) {
			return a, nil
		}
	}
	return asked, nil
}
