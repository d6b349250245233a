package ovn

import (
	"fmt"
	"net/netip"

	"hairpin/cluster"
	"hairpin/datapath/nb"
	"hairpin/walk/ovn/match"
)

// rowMatch is the match of a row. It is parsed when a packet first meets it.
type rowMatch struct{ parsed match.Expression }

// holds reports whether text, the match of a row, holds.
func (r *rowMatch) holds(row nb.Row, text string, m *match.Facts, sets map[string]*nb.AddressSet) (bool, error) {
	if r.parsed == nil {
		var err error
		if r.parsed, err = match.Parse(text, sets); err != nil {
			return false, fmt.Errorf("%s: %w", row.Key(), err)
		}
	}
	return r.parsed.Holds(m), nil
}

// Texts of rules without a row: OVN adds the rules itself.
type (
	forceSNATRule struct{ port, address string } // lr_out_snat with lb_force_snat_ip
	unSNATRule    struct {                       // lr_in_unsnat; port is set for lb_force_snat_ip
		port string
		dst  netip.Addr
	}
	defragRule struct{ dst netip.Addr } // lr_in_defrag

	lookupRule struct { // ls_in_l2_lkup
		to   cluster.MAC
		port string
	}
	connectedRule struct { // lr_in_ip_routing
		port    *routerPort
		network netip.Prefix
	}
	learnRule struct { // ls_in_lb_aff_learn, lr_in_lb_aff_learn
		*vip
		to netip.AddrPort
	}
	optionRule struct { // of a load balancer
		lb  *nb.LoadBalancer
		key string
	}
)

func (r forceSNATRule) String() string {
	return fmt.Sprintf("flags.force_snat_for_lb == 1 && outport == %q, ct_snat(%s) [lb_force_snat_ip=router_ip]",
		r.port, r.address)
}

func (r unSNATRule) String() string {
	if r.port != "" {
		return fmt.Sprintf("inport == %q && %s == %s, ct_snat", r.port, dstField(r.dst), r.dst)
	}
	return fmt.Sprintf("ip && %s == %s, ct_snat", dstField(r.dst), r.dst)
}

func (r defragRule) String() string {
	return fmt.Sprintf("ip && %s == %s, ct_dnat", dstField(r.dst), r.dst)
}

func (r lookupRule) String() string { return fmt.Sprintf("eth.dst == %s, outport = %q", r.to, r.port) }

func (r connectedRule) String() string {
	return fmt.Sprintf("%s == %s, outport = %q", dstField(r.network.Addr()), r.network.Masked(), r.port.row.Name)
}

func (r learnRule) String() string {
	return fmt.Sprintf("commit_lb_aff(vip = %q, backend = %q, proto = %s, timeout = %s)", r.Addr, r.to,
		r.lb.Protocol, r.lb.Options["affinity_timeout"])
}

func (r optionRule) String() string {
	return fmt.Sprintf("set Load_Balancer %s options:%s=%q", r.lb.Name, r.key, r.lb.Options[r.key])
}

// String returns the load balancer with only this address.
func (v *vip) String() string {
	return nb.Line(&nb.LoadBalancer{Name: v.lb.Name, Protocol: v.lb.Protocol,
		VIPs: []nb.VIP{{Addr: v.Addr, Backends: v.endpoints()}}, Affinity: v.lb.Affinity})
}

func dstField(a netip.Addr) string {
	if a.Is4() {
		return "ip4.dst"
	}
	return "ip6.dst"
}
