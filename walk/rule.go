package walk

import (
	"fmt"
	"net/netip"
	"strings"

	"hairpin/cluster"
	"hairpin/datapath/flow"
	"hairpin/datapath/nb"
	"hairpin/datapath/nft"
)

// Rules without a row: OVN adds them itself.
type (
	forceSNATRule struct{ port, address string } // lr_out_snat with lb_force_snat_ip
	unSNAT        struct {                       // lr_in_unsnat; port is set for lb_force_snat_ip
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

// Rules that need another object to print.
type (
	localRoute netip.Addr
	nftRule    struct {
		table *nft.Table
		rule  *nft.Rule
	}
)

// rule returns a rule in the syntax of its tool. It caches texts: rendering a row costs more than
// walking it.
func (w *Walker) rule(x any) string {
	if s, ok := x.(string); ok {
		return s
	}
	if s, ok := w.texts[x]; ok {
		return s
	}
	s := ruleText(x)
	w.texts[x] = s
	return s
}

// join returns a + b. It caches the result, because few combinations occur.
func (w *Walker) join(a, b string) string {
	k := [2]string{a, b}
	s, ok := w.joined[k]
	if !ok {
		s = a + b
		w.joined[k] = s
	}
	return s
}

func ruleText(x any) string {
	switch x := x.(type) {
	case *flow.Flow:
		return x.String()
	case *flow.Group:
		return x.String()
	case *vip:
		return nb.Line(&nb.LoadBalancer{Name: x.lb.Name, Protocol: x.lb.Protocol,
			VIPs: []nb.VIP{{Addr: x.Addr, Backends: x.endpoints()}}, Affinity: x.lb.Affinity})
	case learned:
		return fmt.Sprintf("commit_lb_aff(vip = %q, backend = %q, proto = %s, timeout = %s)", x.Addr, x.to,
			x.lb.Protocol, x.lb.Options["affinity_timeout"])
	case option:
		return fmt.Sprintf("set Load_Balancer %s options:%s=%q", x.lb.Name, x.key, x.lb.Options[x.key])
	case lookedUp:
		return fmt.Sprintf("eth.dst == %s, outport = %q", x.to, x.port)
	case connected:
		return fmt.Sprintf("%s == %s, outport = %q", dstField(x.network.Addr()), x.network.Masked(), x.port.row.Name)
	case nb.Row:
		return strings.TrimSuffix(nb.Line(x), " # "+nb.OwnerOf(x).String())
	case unSNAT:
		if x.port != "" {
			return fmt.Sprintf("inport == %q && %s == %s, ct_snat", x.port, dstField(x.dst), x.dst)
		}
		return fmt.Sprintf("ip && %s == %s, ct_snat", dstField(x.dst), x.dst)
	case defrag:
		return fmt.Sprintf("ip && %s == %s, ct_dnat", dstField(x.dst), x.dst)
	case forceSNATRule:
		return fmt.Sprintf("flags.force_snat_for_lb == 1 && outport == %q, ct_snat(%s) [lb_force_snat_ip=router_ip]",
			x.port, x.address)
	case localRoute:
		return "local " + netip.Addr(x).String() + " dev lo table local"
	case nftRule:
		return x.table.RuleText(x.rule)
	case fmt.Stringer:
		return x.String()
	}
	return fmt.Sprintf("%T", x)
}

// String returns the route in the format of `ip route show`.
func (r *kernelRoute) String() string {
	if !r.connected {
		return r.Route.String()
	}
	plain := r.Route
	plain.Borrowed = true // has no protocol number of ours
	return plain.String() + " proto kernel scope link"
}

func dstField(a netip.Addr) string {
	if a.Is4() {
		return "ip4.dst"
	}
	return "ip6.dst"
}
