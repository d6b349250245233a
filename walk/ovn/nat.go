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
	"hairpin/walk/path"
)

// nat is a NAT row of a gateway router.
type nat struct {
	row   *nb.NAT
	match rowMatch
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
	return n.match.holds(n.row, n.row.Match, m, sets)
}

// unDNAT runs lr_out_undnat and lr_out_post_undnat of a gateway router: every packet passes the
// DNAT zone. Replies of load-balanced connections get the VIP back, new connections are committed.
func unDNAT(pkt *path.Path, rt *logicalRouter) {
	if !rt.tracksOutgoing() {
		return
	}
	z := rt.dnatZone
	trackKnown(pkt, pkt.Join(rt.row.Name, " lr_out_undnat"), "ip, ct_dnat", z, rt.row.Owner)
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

// trackKnown looks the packet up in a zone and translates it as its connection requires. It adds a
// step only if the packet changes.
func trackKnown(pkt *path.Path, stage string, rule any, zone string, owner cluster.Owner) {
	before := pkt.Packet
	pkt.Track(zone, conntrack.Translation{NAT: flow.NATUndo})
	if effect := pkt.Changed(&before); effect != "" {
		pkt.Step(stage, rule, owner, effect)
	}
}

// commitNew commits a new connection that nothing has translated.
func commitNew(pkt *path.Path, stage string, zone string, owner cluster.Owner) {
	if !pkt.CT.Is(flow.CTNew) {
		return
	}
	if made := pkt.Track(zone, conntrack.Translation{Commit: true, Inline: true}); made != nil {
		s := pkt.Step(stage, "ct.new, ct_commit", owner, "committed")
		s.Entry = made.String()
	}
}
