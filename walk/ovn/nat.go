package ovn

import (
	"fmt"
	"strconv"
	"strings"

	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/datapath/nb"
	"hairpin/walk/conntrack"
	"hairpin/walk/ovn/match"
	"hairpin/walk/packet"
	"hairpin/walk/path"
)

// nat is a NAT row of a gateway router.
type nat struct {
	row   *nb.NAT
	match match.Expression // parsed when a packet first meets it; nil without row.Match
}

// The priorities of lr_out_snat on a gateway router. The priority of a row without a match is its
// prefix length plus one: a single IPv6 address comes before the flags of load balancers.
const (
	snatMatch = 300
	snatSkip  = 120
	snatForce = 110
)

func (n *nat) priority() int {
	if n.row.Match != "" {
		return snatMatch
	}
	return n.row.Logical.Bits() + 1
}

func (n *nat) matches(m *match.Facts, sets map[string]*nb.AddressSet) (bool, error) {
	if n.row.Type != nb.SNAT {
		return false, fmt.Errorf("%s: type %q is not known", n.row.Key(), n.row.Type)
	}
	if !n.row.Logical.Contains(m.Packet.Src) {
		return false, nil
	}
	if n.row.Match == "" {
		return true, nil
	}
	if n.match == nil {
		var err error
		if n.match, err = match.Parse(n.row.Match, sets); err != nil {
			return false, fmt.Errorf("%s: %w", n.row.Key(), err)
		}
	}
	return n.match.Holds(m), nil
}

// resolveNextHop runs lr_in_arp_resolve and lr_in_arp_request. It returns the MAC of the next hop,
// or the reason why there is none. It looks at ports of the same switch, then at static MAC
// bindings, then at the external network.
func (n *Network) resolveNextHop(pkt *path.Path, rt *logicalRouter, to routed) (mac cluster.MAC, reason string) {
	stage := pkt.Join(rt.row.Name, " lr_in_arp_resolve")
	var sw *logicalSwitch
	if to.out.peer != nil {
		sw = to.out.peer.sw
		if m, ok := sw.macFor(to.hop); ok && rt.byIP[to.hop] == nil {
			return m, ""
		}
	}
	if rt.byIP[pkt.Dst] != nil {
		return mac, fmt.Sprintf("%s drops it: %s is the router's own address, and nothing translated the packet", stage,
			pkt.Dst)
	}
	if b := n.bindings[binding{to.out.row.Name, to.hop}]; b != nil {
		pkt.Step(stage, b, b.Owner, "next hop "+to.hop.String()+" has "+packet.MACText(b.MAC))
		return b.MAC, ""
	}
	if sw != nil && sw.localnet() {
		if m, ok := n.node.Resolve(to.hop); ok {
			return m, ""
		}
	}
	return mac, fmt.Sprintf("no neighbour of %s has %s", to.out.row.Name, to.hop)
}

// localnet reports whether the switch reaches a network outside of OVN.
func (sw *logicalSwitch) localnet() bool {
	for _, p := range sw.ports {
		if p.row.Type == "localnet" {
			return true
		}
	}
	return false
}

// unDNAT runs lr_out_undnat and lr_out_post_undnat of a gateway router: every packet passes the
// DNAT zone. Replies of load-balanced connections get the VIP back, new connections are committed.
func unDNAT(pkt *path.Path, rt *logicalRouter) {
	if !rt.tracksOutgoing() {
		return
	}
	z := rt.dnatZone
	unNAT(pkt, pkt.Join(rt.row.Name, " lr_out_undnat"), "ip, ct_dnat", z, rt.row.Owner)
	commitNew(pkt, pkt.Join(rt.row.Name, " lr_out_post_undnat"), z, rt.row.Owner)
}

// sourceNAT runs lr_out_snat: the first match of NAT rows with a match, the flags of the load
// balancer, and NAT rows by prefix length. NAT rows do not apply to replies.
func (n *Network) sourceNAT(pkt *path.Path, rt *logicalRouter, out *routerPort, flags Flags) error {
	m := match.Facts{Packet: &pkt.Packet, Out: out.row.Name, Skip: flags.skip, CTMark: pkt.CT.Mark()}
	var found *nat
	level := 0
	for _, x := range rt.nats {
		if p := x.priority(); found != nil && p < level || flags.skip && p < snatSkip || flags.force && p < snatForce {
			break
		}
		if pkt.CT.Is(flow.CTRpl) {
			break
		}
		switch ok, err := x.matches(&m, n.sets); {
		case err != nil:
			return err
		case !ok:
		case found == nil:
			found, level = x, x.priority()
		case x.row.External != found.row.External || x.row.PortRange != found.row.PortRange:
			return fmt.Errorf("%s and %s both match, OVN may take either", found.row.Key(), x.row.Key())
		}
	}
	switch {
	case found != nil:
		row := found.row
		return snat(pkt, rt, row, row.Owner, conntrack.Translation{Addr: row.External}, row.PortRange)
	case flags.skip:
		pkt.Step(pkt.Join(rt.row.Name, " lr_out_snat"), "flags.skip_snat_for_lb == 1, next", rt.row.Owner,
			"keeps its source")
	case flags.force:
		a := out.address(cluster.FamilyOf(pkt.Src))
		if !a.IsValid() {
			return fmt.Errorf("%s has no %s address for lb_force_snat_ip", out.row.Key(), cluster.FamilyOf(pkt.Src))
		}
		return snat(pkt, rt, forceSNATRule{out.row.Name, a.String()}, rt.row.Owner, conntrack.Translation{Addr: a}, "")
	}
	return nil
}

// snat applies ct_snat in the router's SNAT zone.
func snat(pkt *path.Path, rt *logicalRouter, rule any, owner cluster.Owner, t conntrack.Translation,
	ports string) error {
	if ports != "" {
		low, high, _ := strings.Cut(ports, "-")
		a, err := strconv.ParseUint(low, 10, 16)
		b := a
		if err == nil && high != "" {
			b, err = strconv.ParseUint(high, 10, 16)
		}
		if err != nil || a == 0 || b < a {
			return fmt.Errorf("port range %q is not known", ports)
		}
		t.Ports = conntrack.PortRange{Min: uint16(a), Max: uint16(b)}
	}
	t.Commit, t.NAT = true, flow.NATSrc
	before := pkt.Packet
	made := pkt.Track(rt.snatZone, t)
	effect := pkt.Changed(&before)
	if effect == "" {
		effect = "source stays " + pkt.Src.String()
	}
	if s := pkt.Step(pkt.Join(rt.row.Name, " lr_out_snat"), rule, owner, effect); made != nil {
		s.Entry = made.String()
	}
	return nil
}
