package ovn

import (
	"fmt"
	"net/netip"

	"hairpin/cluster"
	"hairpin/datapath/nb"
)

// Rules without a row: OVN adds them itself.
type (
	forceSNATRule struct{ port, address string } // lr_out_snat with lb_force_snat_ip
	unSNATRule    struct {                       // lr_in_unsnat; port is set for lb_force_snat_ip
		port string
		dst  netip.Addr
	}
	defrag struct{ dst netip.Addr } // lr_in_defrag

	lookedUp struct { // ls_in_l2_lkup
		to   cluster.MAC
		port string
	}
	connected struct { // lr_in_ip_routing
		port    *routerPort
		network netip.Prefix
	}
	learned struct { // ls_in_lb_aff_learn, lr_in_lb_aff_learn
		*vip
		to netip.AddrPort
	}
	option struct { // of a load balancer
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

func (r defrag) String() string {
	return fmt.Sprintf("ip && %s == %s, ct_dnat", dstField(r.dst), r.dst)
}

func (r lookedUp) String() string { return fmt.Sprintf("eth.dst == %s, outport = %q", r.to, r.port) }

func (r connected) String() string {
	return fmt.Sprintf("%s == %s, outport = %q", dstField(r.network.Addr()), r.network.Masked(), r.port.row.Name)
}

func (r learned) String() string {
	return fmt.Sprintf("commit_lb_aff(vip = %q, backend = %q, proto = %s, timeout = %s)", r.Addr, r.to,
		r.lb.Protocol, r.lb.Options["affinity_timeout"])
}

func (r option) String() string {
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
