package ovn

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/datapath/nb"
	"hairpin/walk/conntrack"
	"hairpin/walk/ovn/match"
	"hairpin/walk/packet"
	"hairpin/walk/path"
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

// balancerGroup is a Load_Balancer_Group with the VIPs of its members.
type balancerGroup struct {
	vips  map[vipKey][]*vip
	addrs map[netip.Addr]bool
}

type groups map[string]*balancerGroup

// balancers holds the groups that a switch or router references, without those that have no VIP.
type balancers []*balancerGroup

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
					g = &balancerGroup{vips: map[vipKey][]*vip{}, addrs: map[netip.Addr]bool{}}
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

// haveAddress reports whether an address is a VIP, on any port.
func (b balancers) haveAddress(a netip.Addr) bool {
	for _, g := range b {
		if g.addrs[a] {
			return true
		}
	}
	return false
}

// lookup returns the VIP that a packet is for, or nil. Two load balancers with the same VIP are an
// error: OVN may take either.
func (b balancers) lookup(p *packet.Packet) (*vip, error) {
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

// Flags hold a router's flags of the packet in it, between its stages (flags.force_snat_for_lb,
// skip_snat_for_lb).
type Flags struct{ force, skip bool }

func (f Flags) mark() uint32 {
	switch {
	case f.skip:
		return match.SkipSNAT
	case f.force:
		return match.ForceSNAT
	}
	return 0
}

// balance sends a new connection to an endpoint of a VIP: ct_lb_mark in a zone. learn is the stage
// that learns the client of a VIP with an affinity timeout. OVN up to and including 25.03 drops the
// packet that it learns from.
//
// The packet ends if there is no endpoint, or if OVN learns from it.
func balance(pkt *path.Path, stage, learn, zone string, v *vip, flags Flags) error {
	if err := unknownOption(v.lb, v.lb.Options, "reject", "event", "hairpin_snat_ip", "skip_snat", "affinity_timeout",
		"neighbor_responder", "ct_flush"); err != nil {
		return err
	}
	if len(v.Backends) == 0 {
		if v.lb.Options["reject"] == "true" {
			rejection := packet.RejectionOf(pkt.Protocol)
			pkt.Step(stage, v, v.lb.Owner, "no endpoint: rejected with "+rejection+" (options:reject=true)")
			pkt.Reject(packet.NoEndpoint, fmt.Sprintf("rejected with %s: %s has no endpoint", rejection, v.lb.Name))
			return nil
		}
		pkt.Step(stage, v, v.lb.Owner, "no endpoint: dropped")
		pkt.Drop(packet.NoEndpoint, "dropped: "+v.lb.Name+" has no endpoint")
		return nil
	}
	to := v.Backends[pkt.Choose(v.Backends)]
	if !v.lb.Affinity {
		pkt.Recirculate() // for a group with dp_hash, the datapath computes the hash first
	}
	before := pkt.Packet
	made := pkt.Track(zone, conntrack.Translation{Commit: true, NAT: flow.NATDst, Addr: to.Addr(), Port: to.Port(),
		Mark: match.Natted | flags.mark()})
	effect := pkt.Changed(&before)
	if v.lb.Affinity {
		effect += " (hash of the client's address)"
	}
	s := pkt.Step(stage, v, v.lb.Owner, effect)
	if made != nil {
		s.Entry = made.String()
	}
	if ends := v.endpoints(); len(ends) > 1 {
		s.Choices = ends
	}
	if v.lb.Options["affinity_timeout"] != "" {
		pkt.Step(learn, learnRule{v, to}, v.lb.Owner, "records the client's endpoint, drops the packet")
		pkt.Drop(packet.Learning, "OVN drops the first packet of a client with affinity ("+v.lb.Name+
			" affinity_timeout); TCP retransmits after a second")
	}
	return nil
}

// hairpinSource returns the source address that a load balancer gives to a hairpinned packet
// (options:hairpin_snat_ip, one address per family; without it the VIP).
func hairpinSource(lb *nb.LoadBalancer, vip netip.Addr) (netip.Addr, error) {
	for _, word := range strings.Fields(lb.Options["hairpin_snat_ip"]) {
		a, err := netip.ParseAddr(word)
		if err != nil {
			return a, fmt.Errorf("%s: hairpin_snat_ip: %w", lb.Key(), err)
		}
		if cluster.FamilyOf(a) == cluster.FamilyOf(vip) {
			return a, nil
		}
	}
	return vip, nil
}
